"""The tensors that exist when a recording begins: the sources of its trace.

Python's garbage collector knows every tensor, module and optimizer. So all sources are in the
trace from its first instruction on, as they are in memory: also parameters that the step does not
use and moments that only its last op needs. Nobody has to name them. If the step uses a module or
an optimizer, everything that belongs to it is part of the step.
"""

import gc
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from coop.trace.tensors import plain, tensors_in


class Existing:
    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, str]] = {}
        self._groups: list[list[int]] = []

    def find(self) -> None:
        kinds: dict[type, list[Any] | None] = {}  # a million objects have few types: cache the answer
        tensors: list[Tensor] = []
        modules: list[nn.Module] = []
        optimizers: list[torch.optim.Optimizer] = []
        families: list[tuple[type, list[Any]]] = [
            (Tensor, tensors), (nn.Module, modules), (torch.optim.Optimizer, optimizers),
        ]  # fmt: skip
        for thing in gc.get_objects():
            kind = type(thing)  # isinstance would read the object's own __class__
            if kind not in kinds:
                kinds[kind] = next((members for family, members in families if issubclass(kind, family)), None)
            if (members := kinds[kind]) is not None:
                members.append(thing)
        self._note(tensors, "data")
        for module in modules:
            self._group(parameter=list(module.parameters()), buffer=list(module.buffers()))
        for optimizer in optimizers:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self._group(state=list(tensors_in(list(optimizer.state.values()))), parameter=parameters)

    def take(self) -> Iterator[tuple[Any, str]]:
        """The storages and their kinds. They are no longer kept here afterwards, so that they can
        die."""
        found, self._found = self._found, {}
        while found:
            yield found.pop(next(iter(found)))

    def belonging_to(self, touched: list[int]) -> list[int]:
        """Addresses: those touched, then those that share an owner with them, the largest owner
        first."""
        owners = [group for group in self._groups if not set(touched).isdisjoint(group)]
        owners.sort(key=len, reverse=True)
        return list(dict.fromkeys(chain(touched, *owners)))

    def _group(self, **members: list[Tensor]) -> None:
        members["gradient"] = [t.grad for t in members["parameter"] if t.grad is not None]
        self._groups.append([address for kind, tensors in members.items() for address in self._note(tensors, kind)])

    def _note(self, tensors: list[Tensor], kind: str) -> list[int]:
        addresses = []
        for tensor in chain.from_iterable(map(plain, tensors)):
            try:
                storage = tensor.untyped_storage()
            except (NotImplementedError, RuntimeError):  # sparse, or a wrapper around something else
                continue
            addresses.append(storage._cdata)
            if kind != "data" or storage._cdata not in self._found:
                self._found[storage._cdata] = (storage, kind)
        return addresses
