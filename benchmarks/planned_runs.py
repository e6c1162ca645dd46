"""Two parts of planners.py in which a plan is carried out: by coop on a live program, and by
torch.compile."""

import argparse
import functools
import gc
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch
import torch

from common import median, share
from plan_job import SLACK, Job, Row, about_plan, call_for
from processes import Failed, call

LIVE = ("gpt", "resnet")
FOR_ADDRESSES = 0.995  # the share of the budget that is planned with: storages need room in one piece
COMPILED = ("perceptron", "convolutions", "transformer")
SOLVERS = ("coop", "dp", "greedy")
BUDGETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


# --- live ------------------------------------------------------------------------------------------------------------


def live(given: argparse.Namespace) -> Iterator[Job]:
    for name in LIVE:
        yield Job(
            f"{name} trained at half of its peak: recomputation, planned and measured",
            functools.partial(_live, given, name),
            "same bits, within 2 points",
            lambda row: row["same_bits"] and abs(row["measured"] - row["planned"]) <= 0.02,
            lambda row: (
                f"{'same' if row['same_bits'] else 'other'} bits, {share(row['planned'])}, {share(row['measured'])} "
                f"(coop without a plan: {share(row['online'])})"
            ),
        )


def _live(given: argparse.Namespace, name: str) -> Row:
    """A process for each way: only ways with a budget have coop's allocator."""
    file = given.folder / f"{name}.plan"
    row: Row = call(_plan_live, name, given.threads, 60 * given.scale, file, limit=SLACK)
    ways = {
        "eager": (None, None),
        "plan": (row["arena"], file),
        "online": (row["arena"], None),
    }
    found = {way: _trained(way, name, given, *how) for way, how in ways.items()}
    return row | {
        "same_bits": len({answer["digest"] for answer in found.values()} - {None}) == 1,
        "measured": found["plan"]["recomputation"],
        "online": found["online"]["recomputation"],
        "cpu": {way: answer["cpu"] for way, answer in found.items()},
        "lost": found["plan"]["lost"],
        "followed_steps": found["plan"]["followed_steps"],
        "replays": found["plan"]["replays"],
    }


def _trained(way: str, name: str, given: argparse.Namespace, *how: Any) -> Row:
    """A budget that is enough with a plan may be too small without one: then there is no row."""
    try:
        row: Row = call(_train, name, given.threads, given.steps, *how, limit=SLACK)
    except Failed:
        if way != "online":
            raise
        return {"digest": None, "recomputation": None, "cpu": None}
    return row


def _plan_live(name: str, threads: int, limit: float, file: Path) -> Row:
    import coop
    from coop.plan import floor, graph_of, peak_of, solve, write

    torch.set_num_threads(threads)
    training = Training(name)
    training.step()
    graph = graph_of(coop.record(training.step))
    budget = max(peak_of(graph) // 2, int(floor(graph)[0] / FOR_ADDRESSES) + 1)
    plan = solve(graph, int(FOR_ADDRESSES * budget), time_limit=limit)
    write(plan, file)
    row = about_plan(plan) | {
        "network": name,
        "nodes": len(graph.nodes),
        "arena": budget,
        "ratio": budget / peak_of(graph),
        "limit": limit,
    }
    return row | {"planned": plan.increase / (1 + plan.increase)}


class Training:
    """A small network, of which activations are most, and steps that leave no gradients."""

    def __init__(self, name: str) -> None:
        import transformers

        torch.manual_seed(0)
        if name == "gpt":
            shape = transformers.GPT2Config(
                vocab_size=512, n_positions=128, n_embd=128, n_layer=4, n_head=4, use_cache=False
            )
            words = torch.randint(0, 512, (16, 128))
            self.model: Any = transformers.GPT2LMHeadModel(shape)
            self.batch = {"input_ids": words, "labels": words}
        else:
            sizes = {"embedding_size": 16, "hidden_sizes": [32, 48, 64, 96], "depths": [3, 4, 6, 3]}
            shape = transformers.ResNetConfig(**sizes, layer_type="basic", num_labels=10)
            self.model = transformers.ResNetForImageClassification(shape)
            self.batch = {"pixel_values": torch.randn(64, 3, 64, 64), "labels": torch.randint(0, 10, (64,))}
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses: list[float] = []

    def step(self) -> None:
        loss = self.model(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def digest(self) -> str:
        found = hashlib.sha256(repr(self.losses).encode())
        for tensor in (*self.model.parameters(), *self.model.buffers(), torch.get_rng_state()):
            found.update(tensor.detach().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]


def _train(name: str, threads: int, steps: int, budget: int | None, plan: Path | None) -> Row:
    """The first two steps do not count: the optimizer makes its state in them, and the plan does
    not match yet."""
    torch.set_num_threads(threads)
    if budget is None:
        training = Training(name)
        cpu = [_cpu(training.step) for _ in range(2 + steps)][2:]
        return {"digest": training.digest(), "cpu": median(cpu)}
    import coop

    with coop.budget(budget, plan=plan) as memory:
        training = Training(name)
        for _ in range(2):
            training.step()
        seen, cpu = [memory.stats()], []
        for _ in range(steps):
            cpu.append(_cpu(training.step))
            seen.append(memory.stats())
        before, after = seen[0], seen[-1]
        row: Row = {"lost": memory.why_lost() if after.plan_losses > before.plan_losses else ""}
    row["recomputation"] = median(itertools.starmap(_recomputation, itertools.pairwise(seen)))
    row["followed_steps"] = after.planned_steps - before.planned_steps
    row["replays"] = (after.replays - before.replays) / steps
    return row | {"digest": training.digest(), "cpu": median(cpu)}


def _recomputation(before: Any, after: Any) -> float:
    """Its share in the time of all ops of a step."""
    again = after.recompute_seconds - before.recompute_seconds
    return again / (again + after.op_seconds - before.op_seconds)


def _cpu(step: Callable[[], None]) -> float:
    gc.collect()
    start = time.process_time()
    step()
    return time.process_time() - start


# --- torch.compile ---------------------------------------------------------------------------------------------------


def compile(given: argparse.Namespace) -> Iterator[Job]:
    for name in COMPILED:
        for solver in SOLVERS:
            yield Job(
                f"{name}, torch.compile with {solver}: the peak goes up with the budget",
                functools.partial(call_for, _compiled, 10 * given.scale, name, solver, given.threads),
                "never down" if solver == "coop" else "",
                lambda row: row["monotone"],
                lambda row: "never down" if row["monotone"] else "down at some budgets",
            )


def _network_of(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    nn = torch.nn
    if name == "perceptron":
        return nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.GELU()))), torch.randn(
            512, 64
        )
    if name == "convolutions":
        layers = [(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(8)]
        return nn.Sequential(*(layer for several in layers for layer in several)), torch.randn(8, 16, 32, 32)
    layer = functools.partial(nn.TransformerEncoderLayer, 64, 4, 256, dropout=0.0, batch_first=True)
    return nn.Sequential(*(layer() for _ in range(4))), torch.randn(8, 64, 64)


def _compiled(limit: float, name: str, solver: str, threads: int) -> Row:
    """Peaks of the second call, in bytes: the first one compiles."""
    from torch._functorch import config

    from coop import _C
    from coop.plan.running.compile_solver import compile_solver

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, x = _network_of(name)
    chosen = compile_solver("auto", time_limit=limit) if solver == "coop" else solver
    tally = _C.Tally()

    def step() -> torch.Tensor:
        return model(x).square().mean()

    def peak(function: Callable[[], torch.Tensor]) -> int:
        model.zero_grad(set_to_none=True)
        tally.listen()
        try:
            tally.begin()
            function().backward()
            return tally.most
        finally:
            tally.stop()

    eager, peaks = peak(step), []
    for budget in BUDGETS:
        torch._dynamo.reset()
        with config.patch(activation_memory_budget=budget, activation_memory_budget_solver=chosen):
            compiled = torch.compile(step, backend="aot_eager")
            peaks.append([peak(compiled) for _ in range(2)][1])
    row = {"network": name, "solver": solver, "budgets": BUDGETS, "eager": eager, "peaks": peaks, "limit": limit}
    return row | {"monotone": peaks == sorted(peaks)}
