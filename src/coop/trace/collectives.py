"""Collectives of torch.distributed, as a trace and a device model see them.

A collective cannot be repeated: the other ranks do not take part a second time. Schemas of `c10d`
say nothing about writes, so what is written is known here, by the same rule as in
csrc/torch/op_info.cpp: every tensor that is not named as an input, unless the op only sends.

Its cost is the time that its bytes take, or in a recording the time until the call returns. The
time in which a rank waits for others is no cost: it passes in `Work.wait`, which is no op, and in
the ops of WAITING, whose cost is 0.

Bytes that a rank sends, and as many that it receives, for n ranks and S bytes in the whole:

    all_reduce                                   2 (n - 1) / n * S    a ring, twice around
    all_gather, reduce_scatter, all_to_all         (n - 1) / n * S    a ring, once around
    broadcast, reduce, gather, scatter, messages                 S
    barriers                                                     0
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coop.trace.tensors import tensors_in

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
WAITING = {"c10d::monitored_barrier_", "_c10d_functional::wait_tensor", "_c10d_functional_autograd::wait_tensor"}
"""Ops that return only when other ranks have come as far."""
_READING = {"send", "barrier", "monitored_barrier_", "check_for_nan"}
_INPUTS = ("input", "sparse_indices")
_HIDDEN = {
    "_c10d_functional::irecv": {"tensor"},
    "_c10d_functional::batch_p2p_ops": {"tensors"},
}
"""Arguments that other ops write without saying so."""
_RING = ("allreduce", "allgather", "reducescatter", "alltoall")


def is_collective(name: str) -> bool:
    """`name` as in a schema: with its namespace, without its overload."""
    return name.partition("::")[0] in NAMESPACES


def written_by(schema: Any) -> set[str]:
    """The arguments that an op writes, those included that its schema does not mark."""
    marked = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    namespace, _, base = schema.name.partition("::")
    if namespace == "c10d" and base not in _READING:
        return marked | {a.name for a in schema.arguments if not a.name.startswith(_INPUTS) and "Tensor" in str(a.type)}
    return marked | _HIDDEN.get(schema.name, set())


def composed_of(op: Any) -> Callable[..., Any] | None:
    """The function that an op of FSDP is, if it calls other ops to copy tensors together and
    apart."""
    if op.namespace != "fsdp":
        return None
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as fsdp

    known: dict[str, Callable[..., Any]] = {
        "all_gather_copy_in": fsdp.all_gather_copy_in_cuda,  # which is the CPU's, too
        "split_with_sizes_copy": fsdp.split_with_sizes_copy,
        "chunk_cat": fsdp.chunk_cat,
    }
    return known.get(op._opname)


def traffic(schema: Any, args: Sequence[Any], result: Any) -> int:
    """The bytes that this rank sends in one call. The whole is the largest argument or result."""
    base = schema.name.partition("::")[2].replace("_", "")
    if schema.name in WAITING or base == "barrier":
        return 0
    whole = max(map(_bytes_in, [*args, result]), default=0)
    if not any(ring in base for ring in _RING):
        return whole
    ranks = len(ranks_of(schema, args))
    return (2 if "allreduce" in base else 1) * whole * (ranks - 1) // ranks


def ranks_of(schema: Any, args: Sequence[Any]) -> list[int]:
    """The ranks that take part in one call of a collective."""
    from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group
    from torch.distributed import get_process_group_ranks

    for argument, value in zip(schema.arguments, args, strict=False):
        if isinstance(value, ProcessGroup):
            return get_process_group_ranks(value)
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(argument.type):
            return get_process_group_ranks(ProcessGroup.unbox(value))
        if argument.name == "group_name":
            return get_process_group_ranks(_resolve_process_group(value))
    raise ValueError(f"{schema.name} has no process group among its arguments")


def _bytes_in(things: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(things))
