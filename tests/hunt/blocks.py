"""Blocks: contexts in which the next steps of a program run. Each gets the machine and a number."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hunt.scenes import Machine


def on_thread(work: Callable[[], None]) -> None:
    """Does the work on a thread of its own, and waits for it."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    if raised:
        raise raised[0]


@contextlib.contextmanager
def pack_hooks(m: Machine, k: int) -> Iterator[None]:
    """What autograd saves goes through hooks."""
    packs: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
        (lambda x: x.detach().clone(), lambda x: x),
        (
            lambda x: x.detach().cpu().numpy().copy() if x.dtype is torch.float32 else x,
            lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x,
        ),
        (lambda x: x * 1, lambda x: x * 1),
    ]
    with torch.autograd.graph.saved_tensors_hooks(*packs[k % len(packs)]):
        yield


class Count(TorchDispatchMode):
    """Sees all ops; raises at one of them."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.left = fails_at

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            raise ValueError("from a mode")
        return op(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_dtype(m: Machine, k: int) -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic(m: Machine, k: int) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def two_threads(m: Machine, k: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3 - before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def multithreading(m: Machine, k: int) -> Iterator[None]:
    with torch.autograd.set_multithreading_enabled(bool(k & 1)):
        yield


BLOCKS: dict[str, Callable[[Machine, int], Any]] = {
    "no_grad": lambda m, k: torch.no_grad(),
    "inference": lambda m, k: torch.inference_mode(),
    "enable_grad": lambda m, k: torch.enable_grad(),
    "autocast": lambda m, k: torch.autocast("cpu", torch.bfloat16),
    "pack_hooks": pack_hooks,
    "mode": lambda m, k: Count(0),
    "mode_raises": lambda m, k: Count(1 + k),
    "fork_rng": lambda m, k: torch.random.fork_rng(devices=[]),
    "default_dtype": default_dtype,
    "deterministic": deterministic,
    "two_threads": two_threads,
    "multithreading": multithreading,
    "thread": lambda m, k: contextlib.nullcontext(),  # the steps run by `on_thread`
}
