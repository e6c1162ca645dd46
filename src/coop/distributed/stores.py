"""Stores of torch.distributed: small values by name that all ranks can see."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_POLL = 0.02


def until(seconds: float, true: Callable[[], bool]) -> bool:
    """Whether it came true in time. A store's own `wait` complains on stderr when it did not."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL)
    return True


def programs_store(prefix: str) -> "Store":
    """The default process group's, with names that begin with `prefix`. When torchrun starts a
    program again, it may give it the same store: names of the attempt before must not be found."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.distributed_c10d._get_default_store()
    return torch._C._distributed_c10d.PrefixStore(f"{prefix}/attempt {attempt}", store)


def store_at(host: str, port: int, prefix: str, timeout: timedelta) -> "Store":
    """A new connection to a store that somebody else has. Raises RuntimeError."""
    c10d = torch._C._distributed_c10d
    store = c10d.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    return c10d.PrefixStore(prefix, store)
