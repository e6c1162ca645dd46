"""Shape-only traces: a full-size network's step on fake tensors, with the costs of a device model.

Nothing is computed and no tensor has bytes, so a network of 2.7 billion parameters fits anywhere.
The ops are those of the CPU, with one exception: for a GPU, dropout is one kernel that keeps a
mask of bytes.
"""

from collections.abc import Callable
from typing import Any

from torch._subclasses import FakeTensorMode

from coop.models import Network
from coop.trace.device import Device
from coop.trace.fused import FusedDropout
from coop.trace.recording import record
from coop.trace.trace import Trace


def shape_trace(
    network: Network, batch: int | None, device: Device, progress: Callable[[str], None] = lambda _: None
) -> Trace:
    """The trace of one training step. `progress` is called with messages."""
    batch = network.batch_size if batch is None else batch
    with FakeTensorMode(), FusedDropout(device.gpu):
        progress(f"building {network.name}")
        model = network.build()
        optimizer = network.optimizer(model.parameters())
        inputs = network.batch(batch)
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1
            progress(f"{network.name}: step {steps} of 3")
            network.step(model, optimizer, inputs)

        def cost(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, view: bool, _: int) -> int:
            return device.cost(op, args, kwargs, result, view)

        trace = record(step, name=network.name, cost=cost, device=device.name)
    trace.about |= {"batch": batch} | device.about
    return trace
