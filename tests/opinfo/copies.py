"""A sample's tensors, copied bit for bit: each run of a program starts from the same bytes, in
memory of its own.

A copy is the result of an op, not a source, so it can be evicted like anything else. A tensor that
wants a gradient is copied into a leaf, and the program gets a clone of the leaf, which may also be
written to in place.
"""

import dataclasses
from typing import Any

import torch
from torch.utils._pytree import tree_map_only


class Copies:
    """The copies that one run makes, and the leaves that get the gradients."""

    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []
        self.tensors: list[torch.Tensor] = []
        self._done: dict[int, torch.Tensor] = {}
        self._wholes: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        """Of each storage: tensors that share memory have copies that share memory."""

    def of(self, tree: Any) -> Any:
        """The tree with tensors and generators replaced by copies; the same tensor gives the same
        copy."""
        if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            return dataclasses.replace(
                tree, **{f.name: self.of(getattr(tree, f.name)) for f in dataclasses.fields(tree)}
            )
        tree = tree_map_only(torch.Generator, torch.Generator.clone_state, tree)
        return tree_map_only(torch.Tensor, self._copy, tree)

    def gradients(self) -> list[torch.Tensor | None]:
        return [leaf.grad for leaf in self.leaves]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._done:
            copy = self._differentiable(tensor) if tensor.requires_grad else self._copied(tensor.detach())
            self._done[id(tensor)] = copy
            self.tensors.append(copy)
        return self._done[id(tensor)]

    def _differentiable(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_conj():
            return self._differentiable(tensor.detach().conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._differentiable(torch._neg_view(tensor.detach())))
        if is_exotic(tensor):
            leaf = tensor.detach().clone().requires_grad_()
            self.leaves.append(leaf)
            return leaf.clone()
        leaf = _bytes_of(tensor).clone().requires_grad_()
        self.leaves.append(leaf)
        return leaf.clone().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_exotic(tensor):
            return tensor.clone()
        if tensor.is_conj():
            return self._copied(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._copied(torch._neg_view(tensor)))
        key = tensor.untyped_storage()._cdata, tensor.dtype
        whole = self._wholes.get(key)
        if whole is None:
            whole = self._wholes[key] = _bytes_of(tensor).clone()
        return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the tensor's storage, in its dtype: strides, offsets and overlaps are copied with
    it."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=tensor.dtype)
    return whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))


def is_exotic(tensor: torch.Tensor) -> bool:
    """No strides over bytes: sparse, nested, quantized, a zero without memory, a subclass."""
    return (
        tensor.layout is not torch.strided
        or tensor._is_zerotensor()
        or tensor.is_nested
        or tensor.is_quantized
        or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
    )
