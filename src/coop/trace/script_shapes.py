"""Records one step of a script by shapes alone: nothing is computed and no tensor has bytes. The
script may be one rank of many.

    found = trace_shapes("train.py", source, [], device=load("a100"), rank=0, world_size=64)

Costs are those of a device model. `about` says which rank of how many it is, and how often the
script has asked for a value that fake tensors do not have.
"""

from contextlib import ExitStack
from typing import Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from coop.trace.device import Device
from coop.trace.script import ScriptRecorder
from coop.trace.trace import Trace
from coop.trace.without_bytes import WithoutBytes


class NeedsValues(ValueError):
    """The script cannot go on without the values of its tensors."""


class _Recorded(BaseException):
    """Ends a script whose step is recorded. No script catches it by mistake."""


def trace_shapes(
    path: str,
    source: bytes,
    arguments: list[str],
    *,
    device: Device,
    step: int = 3,
    rank: int = 0,
    world_size: int | None = None,
) -> Trace | None:
    """The trace of the script's step. None: the script ended before it, as with `sys.exit()`.

    With a `world_size`, the script is that rank of so many. Raises NeedsValues, and whatever the
    script raises.
    """
    found: list[Trace] = []

    def recorded(trace: Trace) -> None:
        found.append(trace)
        raise _Recorded

    def cost(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, view: bool, _: int) -> int:
        return device.cost(op, args, kwargs, result, view)

    recorder = ScriptRecorder(step, recorded, cost=cost, device=device.name, about=device.about)
    with ExitStack() as within:
        devices = 1
        if world_size is not None:
            from coop.trace.fake_rank import FakeRank  # which loads all of torch.distributed

            per_node = device.interconnect.per_node if device.interconnect is not None else None
            devices = within.enter_context(FakeRank(rank, world_size, per_node)).per_node
        place = within.enter_context(WithoutBytes(device, devices))
        try:
            recorder.run(path, source, arguments)
        except _Recorded:
            (trace,) = found
            trace.about |= {"values_asked": place.asked} if place.asked else {}
            return trace
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise NeedsValues(
                f"{path} cannot be traced by shapes alone: it calls {error.func}, whose result depends on values. "
                "Tip: without --shapes a step is recorded as it runs"
            ) from error
    return None
