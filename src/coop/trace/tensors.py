"""Tensors inside of other things: of arguments and results, and of tensors that wrap others."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_in(things: Any) -> Iterable[Tensor]:
    if isinstance(things, Tensor):
        yield things
    elif isinstance(things, list | tuple):
        for thing in things:
            yield from tensors_in(thing)
    elif isinstance(things, dict):
        yield from tensors_in(tuple(things.values()))


def plain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that have the bytes: of a wrapper, such as a DTensor, those inside of it."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        if isinstance(inner := getattr(tensor, name), Tensor):  # some name their mesh, too
            yield from plain(inner)
