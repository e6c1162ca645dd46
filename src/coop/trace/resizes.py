"""Storages that are resized by a method, which is no op."""

from collections.abc import Callable
from typing import Any

import torch

from coop.trace.replaced import Replaced


class Resizes(Replaced):
    """While it is entered, `resized` is called with each storage that has been resized."""

    def __init__(self, resized: Callable[[Any], None]) -> None:
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            resized(storage)
            return result

        super().__init__([(torch.UntypedStorage, "resize_", resize_)])
