"""Interrupts at random moments of a training step under pressure: rule 8, as Ctrl-C sees it.

    python tests/faults/interrupts.py --count 1000

After each interrupt the rules hold, and the step, run again from the state before it, gives the
bits of plain PyTorch. The network calls Python in forward and in backward, so that interrupts
arrive between ops and inside of them.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn

import coop
from networks import tokens, transformer
from same import assert_same, trained


class Doubled(torch.autograd.Function):
    """Python in the middle of backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        ctx.save_for_backward(x, y)
        return y + x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        _, y = ctx.saved_tensors
        return grad * (1 - y * y) + grad


class Called(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x)


class Training:
    """The same each time; it can be set back to a state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(transformer(1), Called(), transformer(1), Called())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.batch = tokens(8)
        self.loss = torch.zeros(())

    def step(self) -> None:
        torch.manual_seed(1)  # of dropout
        self.optimizer.zero_grad()
        self.loss = self.model(self.batch).square().mean()
        self.loss.backward()
        self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        state = [value for group in self.optimizer.state.values() for value in group.values()]
        return [*self.model.parameters(), *state]

    def set_back(self, state: list[torch.Tensor]) -> None:
        self.optimizer.zero_grad()
        self.loss = torch.zeros(())  # the rest of the graph would be committed: it was made from these parameters
        with torch.no_grad():
            for tensor, before in zip(self.tensors(), state, strict=True):
                tensor.copy_(before)

    def result(self) -> dict[str, Any]:
        return trained(self.model, self.optimizer, [self.loss])


@contextmanager
def interrupt_after(seconds: float) -> Iterator[list[bool]]:
    """A KeyboardInterrupt after this delay, unless the block ends before. Yields whether it
    came."""
    came = [False]

    def raise_it(*_: object) -> None:
        came[0] = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield came
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        assert came[0]
    finally:
        signal.signal(signal.SIGALRM, before)


def measured() -> int:
    with coop.measure() as memory:
        training = Training()
        training.step()
        training.step()
    return memory.stats().peak


def hunt(count: int, seed: int = 0, share: float = 0.7, **options: Any) -> dict[str, int]:
    """Interrupts so many steps; AssertionError if a bit differs."""
    choose = random.Random(seed)
    plain = Training()
    plain.step()
    state = [tensor.detach().clone() for tensor in plain.tensors()]
    plain.step()
    expected = plain.result()
    size = int(share * measured())
    arrived = 0
    with coop.budget(size, **{"checks": 1, **options}) as memory:
        training = Training()
        training.step()
        begin = time.perf_counter()
        training.step()
        duration = time.perf_counter() - begin
        for number in range(count):
            training.set_back(state)
            with interrupt_after(choose.uniform(1e-4, duration)) as came:
                begin = time.perf_counter()
                training.step()
                duration = 0.8 * duration + 0.2 * (time.perf_counter() - begin)  # on a machine that may be busy
            arrived += came[0]
            memory.check()
            training.set_back(state)
            training.step()
            assert_same(expected, training.result(), f"after interrupt {number} of seed {seed}: ")
        evictions = memory.stats().evictions
    return {"interrupts": arrived, "evictions": evictions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="steps that are interrupted, for each way (1000)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(2)
    for name, options in WAYS.items():
        print(f"{name}: {hunt(given.count, given.seed, **options)}", flush=True)


WAYS: dict[str, dict[str, Any]] = {
    "coop": {},
    "dtr": {"policy": "dtr"},
    "swap": {"swap": "256MiB"},
    "shaken": {"checks": 3},
}

if __name__ == "__main__":
    main()
