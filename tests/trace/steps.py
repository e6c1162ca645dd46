"""Helpers that the tests of traces share."""

import torch

from coop.models import Network
from coop.trace import Op, Release, Source, Trace, record
from coop.trace.trace import storages_of


def training(network: Network):
    torch.manual_seed(0)
    model = network.build()
    optimizer = network.optimizer(model.parameters())
    inputs = network.batch(network.batch_size)
    return lambda: network.step(model, optimizer, inputs)


def recorded(step) -> Trace:
    return record(step, warm_up=0)


def ops(trace: Trace, name: str) -> list[Op]:
    return [op for op in trace.ops if op.name.split(".")[0] == f"aten::{name}"]


def op(trace: Trace, name: str) -> Op:
    (found,) = ops(trace, name)
    return found


def history(trace: Trace) -> list[tuple]:
    """Ops, and the births and deaths of storages. Views come and go a little differently under fake
    tensors."""
    storage_of, sizes = storages_of(trace.instructions)
    references = [0] * len(sizes)
    events: list[tuple] = []
    for i in trace.instructions:
        if isinstance(i, Source):
            references[storage_of[i.tensor]] += 1
            events.append(("source", i.bytes, i.kind))
        elif isinstance(i, Op):
            inputs, outputs = [storage_of[t] for t in i.inputs], [storage_of[o.tensor] for o in i.outputs]
            for storage in outputs:
                references[storage] += 1
            events.append((i.name, i.phase, inputs, outputs, [o.bytes for o in i.outputs], i.writes, i.replayable))
        elif isinstance(i, Release):
            references[storage_of[i.tensor]] -= 1
            if not references[storage_of[i.tensor]]:
                events.append(("dead", storage_of[i.tensor]))
    return events


def releases_after(trace: Trace, tensor: int) -> str:
    """The op after which a tensor is released; "" if it is held to the end."""
    last = ""
    for i in trace.instructions:
        if isinstance(i, Op):
            last = i.name
        elif isinstance(i, Release) and i.tensor == tensor:
            return last
    return ""


def sources(trace: Trace, kind: str) -> list[Source]:
    return [i for i in trace.instructions if isinstance(i, Source) and i.kind == kind]
