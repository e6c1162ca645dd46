"""The simulator against the clock and against what it simulates.

    play      a step of BERT Large at half of its memory, played: how long that takes
    search    one search for room with 10,000 storages of many sizes resident: the median and the 99th percentile
    live      small networks, recorded, then trained for real and played inside the same budgets: the share of recomputation

Asked: below 1 s; below 100 microseconds and 1 ms; within 2 points.
"""

import argparse
import random
import statistics
import time
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch
import torch

from common import add_models, number, parser, progress, share, show, write
from job import Job, Way
from processes import Failed, call

RATIOS = (0.8, 0.6, 0.5, 0.4)
STORAGES = 10_000


def play(rounds: int) -> dict[str, Any]:
    """Seconds for one step of BERT Large (16) at half of its memory."""
    from coop import models
    from coop.simulate import Player
    from coop.trace.device import load
    from coop.trace.shapes import shape_trace

    trace = shape_trace(models.get("bert-large"), None, load("a100"))
    player = Player(trace)
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        answer = player.play(0.5)
        seconds.append(time.process_time() - start)
        assert answer.status == "ok"
    return {"ops": sum(1 for _ in trace.ops), "seconds": statistics.median(seconds)}


def search(searches: int) -> dict[str, Any]:
    """Percentiles of a search, timed by the engine itself, one at a time."""
    import coop

    sizes = random.Random(0)
    one = torch.ones(1 << 12)

    def make() -> torch.Tensor:
        return one[: sizes.randrange(256, 1 << 12)] + 1

    with coop.budget(STORAGES * (9 << 10)) as memory:
        stock = [make() for _ in range(STORAGES)]
        while memory.stats().searches < 5:
            stock.append(make())
        resident = memory.stats().storages
        seconds = []
        while len(seconds) < searches:
            before = memory.stats()
            stock.append(make())
            after = memory.stats()
            if after.searches == before.searches + 1:
                seconds.append(after.search_seconds - before.search_seconds)
    cuts = statistics.quantiles(seconds, n=100)
    return {"storages": resident, "searches": searches, "median": statistics.median(seconds), "p99": cuts[98]}


def live(model: str, small: bool, threads: int) -> list[dict[str, Any]]:
    """The share of recomputation at each ratio, trained and played."""
    import coop
    from coop.simulate import Player

    torch.set_num_threads(threads)
    job = Job(Way(model, "fused", small=small, threads=threads))
    job.step()
    player = Player(coop.record(job.step))
    rows = []
    for ratio in RATIOS:
        budget = int(player.peak * ratio)
        played = player.play(budget, steps=3)
        row: dict[str, Any] = {"ratio": ratio, "played": played.overhead and 1 - 1 / played.overhead}
        job = Job(Way(model, "fused", small=small, threads=threads))
        try:
            with coop.budget(budget) as memory:
                memory.adopt(job.model, job.optimizer, job.batch)
                job.step()
                before = memory.stats()
                for _ in range(3):
                    job.step()
                after = memory.stats()
            again = after.recompute_seconds - before.recompute_seconds
            row["trained"] = again / (again + after.op_seconds - before.op_seconds)
        except coop.OutOfBudget as error:
            row["error"] = str(error)
        rows.append(row)
    return rows


def main() -> None:
    made = parser(__doc__)
    add_models(made)
    made.add_argument("--rounds", type=int, default=5, help="of which the median counts (5)")
    settings = made.parse_args()
    rows = measure(settings)
    lines = []
    for row in rows:
        match row:
            case {"error": error}:
                lines.append([row["kind"], row.get("model", ""), error[:60]])
            case {"kind": "play"}:
                lines.append(["play", f"{row['ops']:,} ops", f"{number(row['seconds'])} s"])
            case {"kind": "search"}:
                microseconds = " / ".join(number(1e6 * row[key], 0) for key in ("median", "p99"))
                lines.append(["search", f"{row['storages']:,} storages", f"{microseconds} microseconds"])
            case _:
                what = f"{row['model']} at {row['ratio']}"
                lines.append(["live", what, f"played {share(row['played'])}, trained {share(row['trained'])}"])
    show("The simulator", ["", "of", "reached"], lines)
    write(settings.json, "simulator", settings, rows)


def measure(settings: argparse.Namespace) -> list[dict[str, Any]]:
    plan: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("play", play, (settings.rounds,)),
        ("search", search, (2000,)),
        *(("live", live, (model, settings.scale == "small", settings.threads)) for model in settings.models),
    ]
    rows: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("", total=len(plan))
        for kind, work, args in plan:
            key = {"kind": kind} | ({"model": args[0]} if kind == "live" else {})
            bar.update(task, description=" ".join(map(str, key.values())), refresh=True)
            try:
                found = call(work, *args, limit=600)
                rows += [key | row for row in (found if isinstance(found, list) else [found])]
            except Failed as failure:
                rows.append(key | {"error": str(failure)})
            bar.advance(task)
    return rows


if __name__ == "__main__":
    main()
