"""A place where tensors have no bytes, for a script that is not written for it.

Tensors are fake: shapes, no bytes. What the script puts on a GPU lies on the CPU here, whose ops
are recorded, as in shapes.py. A script that asks for a value (`loss.item()`) gets 1, or False, and
how often that happened is counted: a script that goes another way because of it is traced on that
way. What cannot go on without values, such as `nonzero`, fails.
"""

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from coop.trace.device import Device
from coop.trace.fused import FusedDropout
from coop.trace.replaced import Replaced

_NOTHING = (
    "set_device", "synchronize", "empty_cache", "set_rng_state", "reset_peak_memory_stats", "reset_max_memory_allocated",
)  # fmt: skip
"""Functions of torch.cuda that have nothing to do here."""
_ZERO = ("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


class WithoutBytes:
    def __init__(self, device: Device, devices: int = 1) -> None:
        """`devices`: as many GPUs as the script finds."""
        self._device = device
        self._devices = devices
        self._values = _Values()
        self._within = ExitStack()

    @property
    def asked(self) -> int:
        """How many values the script has asked for."""
        return self._values.asked

    def __enter__(self) -> "WithoutBytes":
        with ExitStack() as within:
            within.enter_context(Replaced([*self._replaced(), *(_foreach() if self._device.gpu else [])]))
            within.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            within.enter_context(self._values)
            within.enter_context(FusedDropout(self._device.gpu))
            within.enter_context(_OnCPU())
            self._within = within.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._within.close()

    def _replaced(self) -> list[tuple[Any, str, Any]]:
        functions: dict[str, Callable[..., Any]] = dict.fromkeys(_NOTHING, lambda *_, **__: None)
        functions |= dict.fromkeys(_ZERO, lambda *_, **__: 0)
        functions["device_count"] = lambda: self._devices
        functions["get_rng_state"] = lambda *_, **__: torch.empty(0, dtype=torch.uint8)
        autocast = torch.amp.autocast_mode.autocast
        begin = autocast.__init__

        def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            if device_type == "cuda" and not args:
                kwargs["dtype"] = kwargs.get("dtype") or torch.get_autocast_dtype("cuda")
            begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

        no_references = SimpleNamespace(getweakrefs=lambda _: [])
        return [
            # `module.to` swaps fake parameters, unless there are weak references to them, and the
            # mode itself has some.
            (torch.utils, "weakref", no_references),
            *((torch.cuda, name, function) for name, function in functions.items()),
            (autocast, "__init__", __init__),
        ]


def _foreach() -> list[tuple[Any, str, Any]]:
    """On a GPU optimizers take all parameters at once, which needs more memory at the same time."""
    there = _foreach_utils._get_foreach_kernels_supported_devices()
    return [
        (optimizer, "_get_foreach_kernels_supported_devices", lambda: [*there, "cpu"]),
        (_foreach_utils, "_get_foreach_kernels_supported_devices", lambda: [*there, "cpu"]),
        (optimizer, "_foreach_supported_types", [*optimizer._foreach_supported_types, FakeTensor]),
        (_foreach_utils, "_foreach_supported_types", [*_foreach_utils._foreach_supported_types, FakeTensor]),
    ]


class _Values(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if op is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # a fake one would be another tensor
        if op is not torch.ops.aten._local_scalar_dense.default:
            return op(*args, **(kwargs or {}))
        try:
            return op(*args)  # some are known: those of constants
        except DataDependentOutputException:
            self.asked += 1
            dtype = args[0].dtype
            return False if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1


class _OnCPU(TorchFunctionMode):
    """What is asked for on a GPU is made on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.device:  # only a name: scripts look at it
            return function(*args, **kwargs)
        if function is torch.Tensor.cuda:
            return args[0]
        if kwargs.get("device") is not None and _is_gpu(kwargs["device"]):
            kwargs["device"] = "cpu"
        if any(map(_is_gpu, args)):
            args = tuple("cpu" if _is_gpu(arg) else arg for arg in args)
        return function(*args, **kwargs)


def _is_gpu(device: Any) -> bool:
    return (isinstance(device, str) and device.split(":")[0] == "cuda") or (
        isinstance(device, torch.device) and device.type == "cuda"
    )
