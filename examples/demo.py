"""Trains the same GPT three times: plainly, without a limit to learn its peak, and in half of that
memory.

    make demo

Prints one line for each, and fails if the bits differ.
"""

import argparse
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

import coop
from coop.sizes import format_bytes
from gpt import train


@dataclass
class Training:
    losses: list[float]
    parameters: dict[str, torch.Tensor]
    seconds: float

    def same_bits(self, other: "Training") -> bool:
        pairs = zip(self.parameters.values(), other.parameters.values(), strict=True)
        return self.losses == other.losses and all(torch.equal(a, b) for a, b in pairs)


def timed(steps: int, memory: coop.Memory | None = None) -> Training:
    start = time.perf_counter()
    with memory or nullcontext():
        model, losses = train(steps)
    return Training(losses, model.state_dict(), time.perf_counter() - start)


def compared(plain: Training, managed: dict[str, tuple[Training, coop.Stats]]) -> Table:
    """One column for each training, the plain one first."""
    runs = [plain, *(run for run, _ in managed.values())]
    stats = [of for _, of in managed.values()]
    table = Table(title=f"A small GPT, {len(plain.losses)} steps")
    table.add_column("")
    for name in ("plain PyTorch", *(f"coop, {name}" for name in managed)):
        table.add_column(name, justify="right")
    table.add_row("first loss", *(f"{run.losses[0]:.7f}" for run in runs))
    table.add_row("last loss", *(f"{run.losses[-1]:.7f}" for run in runs))
    table.add_row("losses and parameters", "", *("equal" if run.same_bits(plain) else "DIFFERENT" for run in runs[1:]))
    table.add_row("peak", "", *(format_bytes(of.peak) for of in stats))
    table.add_row("time", *(f"{run.seconds:.1f} s" for run in runs))
    table.add_row("evictions", "", *(f"{of.evictions:,}" for of in stats))
    table.add_row("rematerialisations", "", *(f"{of.rematerialisations:,}" for of in stats))
    table.add_row("recomputation", "", *(f"{of.recompute_seconds:.1f} s" for of in stats))
    return table


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--share", type=float, default=0.5, help="the budget, as a share of the measured peak")
    options = parser.parse_args()
    console = Console()

    with console.status("plain PyTorch"):
        train(1)  # what happens only once is not timed
        plain = timed(options.steps)
    measured = coop.measure()
    with console.status("coop without a limit"):
        free = timed(options.steps, measured)
    size = int(measured.stats().peak * options.share)
    limited = coop.budget(size)
    with console.status(f"coop in {format_bytes(size)}"):
        tight = timed(options.steps, limited)

    console.print(compared(plain, {"no limit": (free, measured.stats()), format_bytes(size): (tight, limited.stats())}))
    return 0 if free.same_bits(plain) and tight.same_bits(plain) else 1


if __name__ == "__main__":
    sys.exit(main())
