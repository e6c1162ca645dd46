"""Estimates what a program needs that has run out of budget, from its optimizers and from the ops
so far.

When everything has left that can, the sources remain: parameters, gradients, an optimizer's state.
When an op fails, some of them do not exist yet; the program's optimizers tell which. The rest is
what a single op needs at once. An op of the backward pass needs more than one of the forward pass.
"""

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from coop import _C

_BACKWARD = 3.0
"""An op of the backward pass, with what it is made from, needs so many times the bytes of a
forward op."""
_GROWTH = 2.0
"""In a program that trains nothing, a later op may need so many times the most bytes so far."""
_SMALL = 1 << 16
"""Bytes below which a storage does not swap."""
_MARGIN = 1.25
"""A margin, because steps differ."""


def program_needs(numbers: Mapping[str, Any]) -> int:
    """An estimate in bytes. `numbers` are the engine's, from the shortage: sources now, the most
    that one op has needed so far besides them, and whether sources may leave."""
    parameters = to_come = together = small = 0
    trained = False
    for optimizer in _optimizers():
        for group in optimizer.param_groups:
            tensors = [p for p in group["params"] if p.requires_grad]
            sizes = [p.nbytes for p in tensors]
            states = _states(group)
            made = [_made(optimizer.state.get(p)) for p in tensors]
            trained = trained or any(made)
            parameters += sum(sizes)
            small += (2 + states) * sum(size for size in sizes if size < _SMALL)
            to_come += sum(p.nbytes for p in tensors if p.grad is None or not _is_there_for_good(p.grad))
            had = [sum(moment.nbytes for moment in moments if _is_there_for_good(moment)) for moments in made]
            to_come += sum(max(0, states * size - there) for size, there in zip(sizes, had, strict=True))
            together = max(together, _together(group, sizes, states, numbers["swaps"]))
    working = max(numbers["working"], numbers["enough"] - numbers["sources"])
    working *= _MARGIN if trained else _BACKWARD if parameters else _GROWTH
    stays = small if numbers["swaps"] else numbers["sources"] + to_come
    return int(stays + max(working, together))


def _optimizers() -> list[torch.optim.Optimizer]:
    """The program's optimizers. An object refers to its class, and the garbage collector finds
    what refers to a class: three times as fast as a walk over all objects."""
    classes = set(_with_subclasses(torch.optim.Optimizer))
    return [thing for thing in gc.get_referrers(*classes) if type(thing) in classes]


def _with_subclasses(base: type) -> Iterator[type]:
    yield base
    subclasses: list[type] = base.__subclasses__()
    for derived in subclasses:
        yield from _with_subclasses(derived)


def _states(group: Mapping[str, Any]) -> int:
    """Tensors of a parameter's size that the optimizer keeps for each parameter."""
    if "betas" in group:
        return 3 if group.get("amsgrad") else 2
    if "alpha" in group:  # RMSprop
        return 1 + bool(group.get("momentum")) + bool(group.get("centered"))
    return int(bool(group.get("momentum")) or "lr_decay" in group or "rho" in group)


def _made(state: Mapping[str, Any] | None) -> list[torch.Tensor]:
    return [value for value in (state or {}).values() if isinstance(value, torch.Tensor) and value.dim()]


def _is_there_for_good(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a source or outside the arena. Zeros that will become a moment are
    neither: they can be recomputed, and take no room until they are written."""
    return _C.state(tensor) not in ("resident", "evicted", "swapped")


def _together(group: Mapping[str, Any], sizes: list[int], states: int, swaps: bool) -> int:
    """Bytes that an optimizer step needs at once, besides what stays."""
    largest, all_ = max(sizes, default=0), sum(sizes)
    if group.get("fused"):
        return (2 + states) * all_ if swaps else 0
    if group.get("foreach"):
        return (3 if swaps else 1) * all_
    return ((2 + states) if swaps else 0) * largest + 2 * largest
