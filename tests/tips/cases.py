"""Random programs that run out of budget, to check that the tip in the error is true.

A case is a program, a policy and a budget that is too small, all drawn from one number. It runs
until `OutOfBudget`, then once more with exactly the budget that the tip names, and so on until the
whole program runs.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import coop

POLICIES = ("coop", "coop", "coop-paper", "dtr", "dte", "lru")
MANY = 12
"""The most tips that are followed in one case."""

Program = Callable[[], None]


@dataclass(frozen=True)
class Failure:
    """Where a run ended, and what the next run showed."""

    budget: int
    ops: int
    error: coop.OutOfBudget

    def explain(self) -> str:
        return f"{self.budget} fails at op {self.ops}: {self.error}"


@dataclass
class Verdict:
    """The result of a case."""

    seed: int
    name: str
    floor: int
    peak: int
    failures: list[Failure] = field(default_factory=list)
    """At the first budget, then at each budget that was named for the whole program."""
    broken: list[tuple[Failure, Failure]] = field(default_factory=list)
    """A failure, and a failure of the same op, or of an earlier one, in the budget that was named
    for it."""
    last: int = 0
    """The budget that was enough for the whole program; 0: none was."""

    def explain(self) -> str:
        lines = [f"case {self.seed}: {self.name}; floor {self.floor}, peak {self.peak}, ran with {self.last}"]
        lines += [f"  {failure.explain()}" for failure in self.failures]
        lines += [f"  BROKEN {before.explain()}\n    {after.explain()}" for before, after in self.broken]
        return "\n".join(lines)


# --- programs ---------------------------------------------------------------------------------------------------------


def optimizer_for(model: nn.Module, rng: random.Random) -> tuple[str, torch.optim.Optimizer]:
    kind = rng.choice(["sgd", "momentum", "adam", "adam foreach", "adam fused", "adamw", "adamw fused"])
    how: dict[str, Any] = {"foreach": "foreach" in kind, "fused": "fused" in kind}
    if kind == "sgd" or kind == "momentum":
        how = {"foreach": rng.random() < 0.5, "momentum": 0.9 if kind == "momentum" else 0.0}
        return kind, torch.optim.SGD(model.parameters(), lr=0.01, **how)
    make = torch.optim.AdamW if kind.startswith("adamw") else torch.optim.Adam
    return kind, make(model.parameters(), lr=1e-3, **how)


def training(build: Callable[[], nn.Module], batch: Callable[[], torch.Tensor], seed: int, steps: int) -> Program:
    def program() -> None:
        torch.manual_seed(seed)
        model = build()
        _, optimizer = optimizer_for(model, random.Random(seed))
        for _ in range(steps):
            loss = model(batch()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def transformer(rng: random.Random) -> tuple[str, Program]:
    width, layers = rng.choice([32, 64, 96]), rng.randint(1, 3)
    shape = (rng.randint(2, 8), rng.randint(8, 48), width)

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=rng_dropout, batch_first=True)
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    rng_dropout = rng.choice([0.0, 0.1])
    return "transformer", training(build, lambda: torch.randn(shape), rng.randrange(1 << 30), rng.randint(1, 3))


def convolutions(rng: random.Random) -> tuple[str, Program]:
    channels, depth, side = rng.choice([8, 16, 24]), rng.randint(2, 6), rng.choice([12, 16, 24])
    shape = (rng.randint(2, 8), 3, side, side)

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Conv2d(3 if i == 0 else channels, channels, 3, padding=1, bias=i % 2 == 0)]
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=i % 2 == 1)]
        return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(10))

    return "convolutions", training(build, lambda: torch.randn(shape), rng.randrange(1 << 30), rng.randint(1, 3))


def perceptron(rng: random.Random) -> tuple[str, Program]:
    widths = [rng.choice([64, 128, 192, 256]) for _ in range(rng.randint(3, 9))]
    batch = rng.choice([16, 128, 512])

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), rng_kind()]
        return nn.Sequential(*layers)

    rng_kind = rng.choice([nn.GELU, nn.Tanh, nn.ReLU])
    return "perceptron", training(
        build, lambda: torch.randn(batch, widths[0]), rng.randrange(1 << 30), rng.randint(1, 3)
    )


def two_chains(rng: random.Random) -> tuple[str, Program]:
    """From one source, joined at the end."""
    length, size, backward = rng.choice([20, 60]), rng.choice([1000, 5000]), rng.random() < 0.5

    def program() -> None:
        source = torch.ones(size, requires_grad=backward)
        ends = []
        kept = []
        for chain in range(2):
            value = source
            for _ in range(length):
                value = torch.sin(value) if chain else torch.cos(value)
                kept.append(value)
            ends.append(value)
        joined = ends[0] * ends[1]
        if backward:
            joined.sum().backward()
        else:
            joined.sum()

    return "two chains", program


def random_graph(rng: random.Random) -> tuple[str, Program]:
    count, size, backward = rng.randint(10, 40), rng.choice([2000, 8000]), rng.random() < 0.5
    plan = []
    for i in range(count):
        near = rng.random() < 0.7
        pick = lambda i=i, near=near: rng.randint(max(0, i - 3), i) if near else rng.randint(0, i)  # noqa: E731
        plan.append((rng.choice(["add", "mul", "sin", "cat", "mm"]), pick(), pick()))

    def program() -> None:
        torch.manual_seed(0)
        values = [torch.randn(size // 20, 20, requires_grad=backward)]
        weight = torch.randn(20, 20)
        for kind, a, b in plan:
            x, y = values[a], values[b]
            if kind == "add":
                values.append(x + y)
            elif kind == "mul":
                values.append(x * y.tanh())
            elif kind == "sin":
                values.append(x.sin())
            elif kind == "cat":
                values.append(torch.cat([x, y])[: size // 20].contiguous())
            else:
                values.append(x @ weight)
        total = values[-1].sum() + values[len(values) // 2].sum() + values[1].sum()
        if backward:
            total.backward()

    return "random graph", program


KINDS = (transformer, transformer, convolutions, convolutions, perceptron, two_chains, random_graph)


# --- cases ------------------------------------------------------------------------------------------------------------


def attempt(program: Program, budget: int, policy: str, swap: Any) -> Failure | None:
    with coop.budget(budget, policy, swap=swap) as memory:
        try:
            program()
        except coop.OutOfBudget as error:
            return Failure(budget, memory.stats().ops, error.with_traceback(None))
    return None


def case(seed: int) -> Verdict | None:
    """None: it ran in every budget that was tried."""
    rng = random.Random(seed)
    name, program = rng.choice(KINDS)(rng)
    policy = rng.choice(POLICIES)
    swap = "1GiB" if rng.random() < 0.3 else None
    with coop.measure() as memory:
        program()
    floor, peak = memory.stats().floor, memory.stats().peak
    verdict = Verdict(seed, f"{name}, {policy}{', swap' if swap else ''}", floor, peak)
    low = floor // 2
    budget = int(low + rng.random() * (peak - low) * 0.6)
    for _ in range(4):
        failure = attempt(program, budget, policy, swap)
        if failure:
            break
        budget = int(budget * 0.4)
    else:
        return None
    while failure and len(verdict.failures) < MANY:
        verdict.failures.append(failure)
        served = attempt(program, failure.error.enough, policy, swap)
        if served and served.ops <= failure.ops:
            verdict.broken.append((failure, served))
        budget = failure.error.program
        failure = attempt(program, budget, policy, swap) if budget != failure.error.enough else served
    verdict.last = 0 if failure else budget
    return verdict
