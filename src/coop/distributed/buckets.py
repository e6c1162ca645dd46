"""DDP's reducer inside a budget.

The reducer keeps gradients in buckets and asks by pointers whether a gradient lies in one. So its
buckets are resident from the end of a forward pass, when the reducer is prepared for the backward
pass, to the beginning of the next one. With a swap tier they may leave in between.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from coop import _C
from coop.storages import Wrapped


def reducer_wrappers() -> list[Wrapped]:
    """What to put in the place of the reducer's methods: owner, name, wrapper."""
    if not torch.distributed.is_available():
        return []
    reducer = torch._C._distributed_c10d.Reducer
    kept: dict[int, _C.Buckets] = {}
    """By the reducer's id: it cannot be referred to weakly."""

    def making(name: str) -> Wrapped:
        """A method that makes buckets."""
        original = getattr(reducer, name)

        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            buckets = _C.Buckets() if name == "__init__" else kept.get(id(self)) or _C.Buckets()
            kept[id(self)] = buckets
            return buckets.collect(lambda: original(self, *args, **kwargs))

        return reducer, name, wrapper

    def before(name: str, act: Callable[[_C.Buckets], None]) -> Wrapped:
        original = getattr(reducer, name)

        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if id(self) in kept:
                act(kept[id(self)])
            return original(self, *args, **kwargs)

        return reducer, name, wrapper

    def past_operators(name: str) -> Wrapped:
        """A function that reads, without an operator, what it has made with one: that stays."""
        original = getattr(torch.distributed, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return _C.Buckets().collect(lambda: original(*args, **kwargs))

        return torch.distributed, name, wrapper

    return [
        past_operators("_verify_params_across_processes"),
        making("__init__"),
        making("_rebuild_buckets"),
        before("prepare_for_forward", lambda buckets: buckets.release()),
        before("prepare_for_backward", lambda buckets: buckets.keep()),
    ]
