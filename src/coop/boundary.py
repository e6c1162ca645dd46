"""Where tensors leave PyTorch's operators.

The engine learns from operators which tensors they touch. A few Python methods do not go through
operators: they read a tensor's memory, or hand out a pointer to it. While a scope is open they are
wrapped:

- A method that reads a tensor (tolist) brings it back first.
- A method that hands out a pointer (numpy, data_ptr, dlpack, share_memory_) brings the tensor back
  and keeps it in place for as long as it lives. A numpy array may be written to at any time: such a
  tensor is a source, and ops that read it are recorded with a copy of what they read.
- Storage objects have a file of their own: storages.py.

C++ code that takes a writable pointer is noticed by the storage itself. Reading an evicted storage
in any other way raises an error.

Threads started inside the scope are managed too. torch.compile plans memory itself, so compiled
functions run eagerly inside the scope.
"""

import functools
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from coop import _C
from coop.distributed.buckets import reducer_wrappers
from coop.storages import storage_wrappers

_SHARING = ["numpy", "__dlpack__"]
"""These give others the same memory to write to, even if it lies outside the arena."""
_EXPOSING = ["data_ptr", "const_data_ptr"]
"""Programs call these to compare tensors. Memory outside the arena is not affected."""


class Boundary:
    """The wrappers of one scope: installed when it opens, removed when it ends."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        for name in _SHARING:
            self._wrap_method(name, _C.share)
        for name in _EXPOSING:
            self._wrap_method(name, _C.expose)
        self._wrap_tolist()
        for name in ("_to_dlpack", "_to_dlpack_versioned"):
            self._wrap_function(torch._C, name)
        self._wrap_function(torch.utils.dlpack, "to_dlpack")
        for module in (torch, torch.utils.dlpack):
            self._wrap_function(module, "from_dlpack")
        self._wrap_alias_question()
        for owner, name, wrapper in [*storage_wrappers(), *reducer_wrappers()]:
            self._replace(owner, name, wrapper)
        self._manage_threads()
        self._run_eagerly()

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        own = name in vars(owner)
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before) if own else delattr(owner, name))

    def _wrap_method(self, name: str, prepare: Callable[[torch.Tensor], None]) -> None:
        original = getattr(torch.Tensor, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if type(self).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
                prepare(self)
            return original(self, *args, **kwargs)

        self._replace(torch.Tensor, name, wrapper)

    def _wrap_tolist(self) -> None:
        """tolist bypasses operators. A tensor that is only marked as negated or conjugated is
        resolved first, and then brought back."""
        original = torch.Tensor.tolist

        @functools.wraps(original)
        def wrapper(self: torch.Tensor) -> Any:
            if type(self).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
                if self.is_conj() or self.is_neg():
                    with _disable_current_modes():  # modes must see only the program's own calls
                        self = self.resolve_conj().resolve_neg()
                _C.materialise(self)
            return original(self)

        self._replace(torch.Tensor, "tolist", wrapper)

    def _wrap_alias_question(self) -> None:
        """This compares the pointers of two tensors, so both are pinned meanwhile."""
        original: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]

        @functools.wraps(original)
        def wrapper(first: torch.Tensor, second: torch.Tensor) -> bool:
            _C.pin(first)
            try:
                _C.pin(second)
                try:
                    return original(first, second)
                finally:
                    _C.unpin(second)
            finally:
                _C.unpin(first)

        self._replace(torch._C, "_is_alias_of", wrapper)

    def _wrap_function(self, module: Any, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensor, torch.Tensor):
                _C.share(tensor)
            return original(tensor, *args, **kwargs)

        self._replace(module, name, wrapper)

    def _manage_threads(self) -> None:
        original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]  # called even if run() is overridden

        @functools.wraps(original)
        def bootstrap(self: threading.Thread) -> None:
            _C.manage_this_thread(_C.is_open())
            try:
                original(self)
            finally:
                _C.manage_this_thread(False)

        self._replace(threading.Thread, "_bootstrap_inner", bootstrap)

    def _run_eagerly(self) -> None:
        if "torch._dynamo" in sys.modules:
            stance = torch.compiler.set_stance("force_eager")
            self._undo.append(lambda: stance.__exit__(None, None, None))
        original = torch.compile

        @functools.wraps(original)
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            warnings.warn(
                "torch.compile has no effect inside a coop budget: compiled code keeps its own memory. The model runs eagerly.",
                stacklevel=2,
            )
            return model if model is not None else (lambda function: function)

        self._replace(torch, "compile", compile)
