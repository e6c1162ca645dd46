"""Python's storage objects inside a budget.

`tensor.untyped_storage()` gives an object that knows no address yet. Only its methods read bytes or
hand out a pointer, and these are wrapped while a scope is open:

- A method that reads brings the storage back, and the storage stays in place while it runs.
- Any other method that may touch bytes exposes the storage: it is brought back, and stays in place
  for as long as it lives.
- Some callers of `data_ptr` only compare what they get (torch.save, FSDP). They get a number that
  stands for the storage, which does not have to be resident for that.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from coop import _C

Wrapped = tuple[Any, str, Callable[..., Any]]
"""Owner, name, and what takes its place."""

_READING = {
    "_write_file", "is_shared", "_get_filename", "_get_shared_fd", "_shared_decref", "_shared_incref", "resize_",
}  # fmt: skip
_NEUTRAL = {
    "__len__", "__delitem__", "element_size", "new", "nbytes", "resizable", "_set_cdata", "_fix_weakref", "_weak_ref",
}  # fmt: skip
"""These touch no bytes."""
_COMPARING = {
    ("torch.serialization", "_save.<locals>.persistent_id"),
    ("torch.serialization", "_legacy_save.<locals>.persistent_id"),
    ("torch.serialization", "_load.<locals>.load_tensor"),
    ("torch.serialization", "_legacy_load.<locals>.persistent_load"),
    ("torch.distributed.fsdp._fully_shard._fsdp_param", "FSDPParam.reset_sharded_param"),
}
"""These compare addresses and do nothing else with them."""


def storage_wrappers() -> list[Wrapped]:
    """What takes the place of methods while a scope is open."""
    owner = torch.UntypedStorage
    methods = [name for name, value in vars(torch._C.StorageBase).items() if _belongs_to_one(value)]
    return [
        *[(owner, name, _wrapper(name, getattr(owner, name))) for name in methods if name not in _NEUTRAL],
        _write_record(),
    ]


def _belongs_to_one(method: Any) -> bool:
    """It is called on a storage; others make a new one."""
    return type(method).__name__ in ("method_descriptor", "wrapper_descriptor")


def _wrapper(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if name == "data_ptr" and _only_compares(sys._getframe(1)):
            return self._cdata if self.nbytes() else 0
        reads = name in _READING or (name == "__getitem__" and not isinstance(args[0], slice))
        if not reads and self.device.type == "cpu":  # a slice, for one, shares the memory
            _C.expose_storage(self)
        with _resident(*args, *([self] if reads else [])):
            return original(self, *args, **kwargs)

    return wrapper


def _only_compares(caller: FrameType) -> bool:
    if caller.f_code is torch.TypedStorage._data_ptr.__code__ and caller.f_back is not None:
        caller = caller.f_back
    return (caller.f_globals.get("__name__"), caller.f_code.co_qualname) in _COMPARING


def _write_record() -> Wrapped:
    """The writer of torch.save takes storages and reads them in C++."""
    owner = torch._C.PyTorchFileWriter
    original = owner.write_record

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any) -> Any:
        with _resident(*args):
            return original(self, *args)

    return owner, "write_record", wrapper


@contextmanager
def _resident(*things: Any) -> Iterator[None]:
    """The storages among them are resident and stay in place until the end of the block."""
    held: list[_C.Held] = []
    try:
        for thing in things:
            if isinstance(thing, torch.UntypedStorage) and thing.device.type == "cpu":
                held.append(_C.Held(thing))
        yield
    finally:
        for one in held:
            one.release()
