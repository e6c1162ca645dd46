"""Functions that are several ops on a CPU and one kernel on a GPU."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class FusedDropout(TorchFunctionMode):
    """Dropout is one kernel that keeps a mask of bytes."""

    def __init__(self, active: bool) -> None:
        super().__init__()
        self._active = active

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._active and function is torch.nn.functional.dropout:
            return self._dropout(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    @staticmethod
    def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or p == 0:
            return input
        return torch.native_dropout(input, p, True)[0]
