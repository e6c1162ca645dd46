"""Device models: what an op would cost on another machine.

The cost of an op is a roofline: the time to launch it, plus the longer of computing its FLOPs and
moving its bytes. FLOPs come from `torch.utils.flop_counter`; ops that it does not know only move
bytes. Caches, overlap and preferred shapes of kernels are left out. The figures are in TOML files:
`devices/` has some, and users may write their own. Files with `watts` and a table `[paging]` also
serve the planner poet, which saves energy. `link`, or paging, is where storages swap to. A table
`[interconnect]` says how fast ranks exchange bytes: a collective costs its launch and the time of
what it sends (collectives.py).
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from coop.trace import collectives
from coop.trace.content import is_rate, is_whole
from coop.trace.interconnect import Interconnect
from coop.trace.paging import Paging
from coop.trace.tensors import tensors_in
from coop.trace.trace import is_alignment

_PARTLY_READ = {"embedding", "index", "index_select", "gather", "nll_loss_forward", "nll_loss2d_forward"}
"""The first argument of these ops is a table, of which they read no more than they return."""
_UNSET = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


@dataclass(frozen=True)
class Device:
    name: str
    gpu: bool
    """GPUs have one fused kernel for some things that are several ops on a CPU: dropout."""
    alignment: int
    """Allocations are rounded up to a multiple of so many bytes."""
    launch: float
    """Seconds to launch an op."""
    bandwidth: float
    """Bytes per second."""
    flops: dict[str, float]
    """FLOP/s for each dtype. Others count as float32."""
    watts: float | None = None
    """Power while it computes. None: not known."""
    paging: Paging | None = None
    """Its storage, for what does not fit in memory. None: it has none, or it is not known."""
    link: float | None = None
    """Bytes per second to the memory of its host, and the same back. None: it has no host."""
    interconnect: Interconnect | None = None
    """What joins it to other devices. None: nothing, or it is not known."""

    @property
    def about(self) -> dict[str, Any]:
        """What a trace says of the device, along with its costs."""
        said: dict[str, Any] = {"alignment": self.alignment, "copy_bandwidth": self.bandwidth / 2}  # read and written
        if self.link:
            said["swap_bandwidth"] = [self.link, self.link]
        elif self.paging:
            said["swap_bandwidth"] = [self.paging.in_bandwidth, self.paging.out_bandwidth]
        return said

    def cost(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, view: bool) -> int:
        """Nanoseconds of one call. A view computes nothing and moves nothing."""
        name = op.overloadpacket.__name__
        if view or name in _UNSET:
            return 0
        if collectives.is_collective(op._schema.name):
            return self._cost_of_collective(op._schema, args, result)
        inputs, outputs = list(tensors_in((args, kwargs))), list(tensors_in(result))
        moved = [_bytes(tensor) for tensor in inputs]
        written = sum(map(_bytes, outputs))
        if name in _PARTLY_READ:
            moved[0] = min(moved[0], written)
        flops = _flops(op.overloadpacket, args, kwargs, result)
        seconds = self.launch + max(flops / self._rate(inputs), (sum(moved) + written) / self.bandwidth)
        return round(1e9 * seconds)

    def _cost_of_collective(self, schema: Any, args: Sequence[Any], result: Any) -> int:
        if schema.name in collectives.WAITING:
            return 0
        sent = collectives.traffic(schema, args, result)
        if not sent:
            return round(1e9 * self.launch)
        if self.interconnect is None:
            raise ValueError(
                f"the device {self.name!r} does not say how fast ranks exchange bytes, and the step calls {schema.name}. "
                "Tip: a table [interconnect] with bandwidth, in a file of your own"
            )
        return round(1e9 * (self.launch + self.interconnect.seconds(sent, collectives.ranks_of(schema, args))))

    def _rate(self, inputs: list[Tensor]) -> float:
        dtype = next((tensor.dtype for tensor in inputs if tensor.dtype.is_floating_point), torch.float32)
        return self.flops.get(str(dtype).removeprefix("torch."), self.flops["float32"])


def known() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def load(device: str | Path) -> Device:
    """A device that comes with coop, by name, or one described by a TOML file."""
    if str(device) in known():
        return _parse(str(device), str(device), (_folder() / f"{device}.toml").read_text())
    path = Path(device)
    if path.suffix != ".toml":
        raise ValueError(
            f"there is no device {str(device)!r}; the known ones are {', '.join(known())}, or a .toml file"
        )
    try:
        return _parse(path.stem, str(path), path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read the device {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"the device {str(path)!r} is not a text file") from None


def _flops(op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    if op is torch.ops.aten.convolution_backward:
        # As much as forward for each of the two gradients. The registered formula forgets groups:
        # 100 times too much.
        gradient, inputs, weight, _, *settings, wanted = args
        convolution = flop_registry[torch.ops.aten.convolution]
        return int(convolution(inputs, weight, None, *settings, out_val=gradient)) * sum(map(bool, wanted[:2]))
    formula = flop_registry.get(op)
    return int(formula(*args, **kwargs, out_val=result)) if formula else 0


def _bytes(tensor: Tensor) -> int:
    """Bytes that have to be moved for the tensor: an expanded tensor has fewer than its elements
    suggest."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _folder() -> Any:
    return resources.files("coop.trace") / "devices"


def _parse(name: str, where: str, text: str) -> Device:
    try:
        content = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one; so is a number with thousands of digits
        raise ValueError(f"the device {where!r} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"the device {where!r} is not TOML that can be read: it is nested too deep") from None

    def value(key: str, within: dict[str, Any], good: Callable[[Any], bool], rule: str) -> Any:
        if key not in within:
            raise ValueError(f"the device {where!r} does not say {key!r}")
        if not good(within[key]):
            raise ValueError(f"the device {where!r} has {key} = {repr(within[key])[:100]}; it must be {rule}")
        return within[key]

    def table(key: str, rule: str) -> dict[str, Any]:
        found: dict[str, Any] = value(key, content, lambda found: isinstance(found, dict), rule)
        return found

    def number(key: str, within: dict[str, Any], unit: str) -> float:
        return float(value(key, within, is_rate, f"a number of {unit} above 0, from 1e-18 to 1e24"))

    def known_only(within: dict[str, Any], keys: set[str], what: str) -> None:
        if unknown := within.keys() - keys:
            raise ValueError(f"the device {where!r} says {', '.join(sorted(unknown))}, which no {what} has")

    rates = table("flops", "a table of FLOP/s, one for each dtype")
    flops = {dtype: number(dtype, rates, "FLOP/s") for dtype in {**rates, "float32": 0}}
    alignment = value("alignment", content, is_alignment, "a number of bytes above 0, a power of two up to 2**30")
    keys = {"gpu", "alignment", "launch", "bandwidth", "flops", "watts", "paging", "link", "interconnect"}
    known_only(content, keys, "device")
    paging = None
    if "paging" in content:
        described = table("paging", "a table")
        units = {
            "in_latency": "seconds",
            "in_bandwidth": "bytes/s",
            "out_latency": "seconds",
            "out_bandwidth": "bytes/s",
        }
        known_only(described, {*units, "watts", "capacity"}, "paging")
        paging = Paging(
            **{key: number(key, described, unit) for key, unit in units.items()},
            watts=number("watts", described, "watts"),
            capacity=value("capacity", described, lambda found: is_whole(found, 1), "a number of bytes above 0")
            if "capacity" in described
            else None,
        )
    interconnect = None
    if "interconnect" in content:
        described = table("interconnect", "a table")
        known_only(described, {"bandwidth", "network", "per_node"}, "interconnect")
        interconnect = Interconnect(
            number("bandwidth", described, "bytes/s"),
            number("network", described, "bytes/s") if "network" in described else None,
            value("per_node", described, lambda found: is_whole(found, 1), "a number of devices above 0")
            if "per_node" in described
            else None,
        )
    return Device(
        name,
        value("gpu", content, lambda found: isinstance(found, bool), "true or false"),
        alignment,
        number("launch", content, "seconds"),
        number("bandwidth", content, "bytes/s"),
        flops,
        number("watts", content, "watts") if "watts" in content else None,
        paging,
        number("link", content, "bytes/s") if "link" in content else None,
        interconnect,
    )
