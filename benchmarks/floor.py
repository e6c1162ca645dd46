"""How low a budget can be, and whether the machine sees the same limit as the engine.

1. The lowest budget in which each model trains, found by bisection to 1 %, divided by the floor
   that coop.measure() reports: the sources and the largest working set of a single op. Nothing can
   run below it. Asked: 1.10. Each trial trains in a process of its own, and counts only if the bits
   equal eager's.
2. Real resident memory: the process's memory outside of the arena's own pages, sampled in a thread
   over a whole run in a budget of half of the activations. Its value after two steps is the
   constant (libraries, Python's heap, the engine's records). Asked: no later sample is above it.
   "later" is the growth in the second half of the run: a leak continues, a heap does not.
"""

import argparse
import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any

from common import add_models, mebibytes, names, number, parser, progress, show, write
from job import Job, Way, scope
from processes import Failed, call, profile_of
from workloads import TITLES

ASKED = {"floor": 1.10, "resident": 0}
STEPS = 3
PRECISION = 0.01


def train(way: Way, steps: int) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Digests, and the scope's statistics."""
    with scope(way) as memory:
        job = Job(way)
        for _ in range(steps):
            job.step()
        stats = dataclasses.asdict(memory.stats()) if memory else None
    return job.digests(), stats


def lowest(base: Way, policy: str, limit: float) -> dict[str, Any]:
    """Bisection between the floor and the peak. The budgets that run are not always an interval:
    the answer runs, and a slightly smaller budget has failed."""
    row: dict[str, Any] = {
        "what": "floor",
        "model": base.model,
        "optimizer": base.optimizer,
        "policy": policy,
        "asked": ASKED["floor"],
    }
    expected, _ = call(train, base, STEPS)
    digests, measured = call(train, dataclasses.replace(base, policy="coop"), STEPS)
    assert measured is not None
    floor, peak = measured["floor"], measured["peak"]
    row |= {"floor": floor, "peak": peak, "wrong bits": [] if digests == expected else ["measure"], "errors": {}}
    low, high = int(floor * (1 - PRECISION)), None
    trial = int(floor * (1 + PRECISION))
    while high is None or high - low > PRECISION * floor:
        try:
            digests, stats = call(train, dataclasses.replace(base, policy=policy, budget=trial), STEPS, limit=limit)
            assert stats is not None
            if digests != expected:
                row["wrong bits"].append(trial)
            high, row["evictions"], row["recomputation"] = (
                trial,
                stats["evictions"],
                stats["recompute_seconds"] / stats["op_seconds"],
            )
        except Failed as failure:
            low = trial
            if failure.kind != "OutOfBudget":
                row["errors"][trial] = str(failure)
        if high is None:
            if trial > 1.5 * peak:
                return row | {"error": f"does not run in {trial} bytes, 1.5 x its peak"}
            trial = min(int(trial * 1.1), max(int(1.51 * peak), trial + 1))
        else:
            trial = (low + high) // 2
    return row | {"lowest": high, "ratio": high / floor, "to peak": high / peak}


# --- real memory ----------------------------------------------------------------------------------------------------------


def outside(arena: int) -> int:
    """Resident bytes of this process outside of the mapping of the arena, found by its size."""
    resident = inside = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, _, rest = line.partition(":")
        if word == "Size":
            size = int(rest.split()[0]) * 1024
        elif word == "Rss":
            here = int(rest.split()[0]) * 1024
            resident += here
            if size == arena:
                inside += here
    return resident - inside


def watch(way: Way, steps: int, interval: float) -> dict[str, Any]:
    """Samples while training. In a process of its own."""
    page = os.sysconf("SC_PAGE_SIZE")
    arena = -(-way.budget // page) * page
    samples: list[tuple[float, int]] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(interval):
            samples.append((time.perf_counter(), outside(arena)))

    watcher = threading.Thread(target=sample)
    watcher.start()  # before the scope: it is no part of the program
    try:
        before = outside(arena)
        with scope(way) as memory:
            job = Job(way)
            job.step()
            job.step()
            constant = outside(arena)
            since = time.perf_counter()
            for _ in range(steps // 2):
                job.step()
            half = outside(arena)
            for _ in range(steps - steps // 2):
                job.step()
            after = outside(arena)
            stats = memory.stats()
    finally:
        done.set()
        watcher.join()
    highest = max((value for moment, value in samples if moment >= since), default=after)
    return {
        "arena": arena, "imports": before, "constant": constant - before, "growth": max(highest, after) - constant,
        "later": after - half, "samples": len(samples), "evictions": stats.evictions,
    }  # fmt: skip


def resident(base: Way, settings: argparse.Namespace) -> dict[str, Any]:
    row = {"what": "resident", "model": base.model, "optimizer": base.optimizer, "asked": ASKED["resident"]}
    budget = profile_of(base).budget(0.5)
    for _ in range(12):
        way = dataclasses.replace(base, policy="coop", budget=budget)
        try:
            return row | call(watch, way, settings.steps, 0.02, limit=settings.limit)
        except Failed as failure:
            row["error"] = str(failure)
            if failure.kind != "OutOfBudget":
                break
            budget = int(budget * 1.05)
    return row


def main() -> None:
    made = parser(__doc__)
    add_models(made, scale="small")
    made.add_argument("--optimizers", **names(("adam", "fused")))
    made.add_argument("--policies", **names(("coop", "coop-paper", "dtr", "dtr-eq", "dte", "lru"), ("coop",)))
    made.add_argument("--steps", type=int, default=20, help="trained while memory is watched (20)")
    made.add_argument("--limit", type=float, default=60.0, help="seconds that a trial may take (60)")
    settings = made.parse_args()

    rows = []
    bases = [
        Way(model, optimizer, small=settings.scale == "small", threads=settings.threads)
        for model in settings.models
        for optimizer in settings.optimizers
    ]
    with progress() as bar:
        task = bar.add_task("", total=len(bases) * (len(settings.policies) + 1))
        for base in bases:
            for policy in settings.policies:
                bar.update(
                    task, description=f"{TITLES[base.model]}, {base.optimizer}: lowest budget, {policy}", refresh=True
                )
                try:
                    rows.append(lowest(base, policy, settings.limit))
                except Failed as failure:
                    rows.append(
                        {
                            "what": "floor",
                            "model": base.model,
                            "optimizer": base.optimizer,
                            "policy": policy,
                            "error": str(failure),
                        }
                    )
                bar.advance(task)
            bar.update(task, description=f"{TITLES[base.model]}, {base.optimizer}: resident memory", refresh=True)
            try:
                rows.append(resident(base, settings))
            except Failed as failure:
                rows.append(
                    {"what": "resident", "model": base.model, "optimizer": base.optimizer, "error": str(failure)}
                )
            bar.advance(task)
    show(
        "The lowest budget that trains / sources and the largest single op",
        ["model", "Adam", "policy", "ratio", "asked", "floor MiB", "lowest MiB", "peak MiB", "recomputed", "notes"],
        [
            [TITLES[row["model"]], row["optimizer"], row["policy"], *_floor_cells(row)]
            for row in rows
            if row["what"] == "floor"
        ],
    )
    show(
        "Resident memory outside of the arena while training in half of the activations, MiB",
        ["model", "Adam", "arena", "constant", "growth", "asked", "later", "samples", "evictions"],
        [[TITLES[row["model"]], row["optimizer"], *_resident_cells(row)] for row in rows if row["what"] == "resident"],
    )
    write(settings.json, "floor", settings, rows)


def _floor_cells(row: dict[str, Any]) -> list[str]:
    if "ratio" not in row:
        return ["-", "-", mebibytes(row.get("floor")), "-", mebibytes(row.get("peak")), "-", row["error"][:60]]
    notes = [f"wrong bits at {row['wrong bits']}"] if row["wrong bits"] else []
    notes += [f"{text[:50]} at {budget}" for budget, text in row["errors"].items()]
    return [
        number(row["ratio"]), number(row["asked"]), mebibytes(row["floor"]), mebibytes(row["lowest"]), mebibytes(row["peak"]),
        f"{row['recomputation']:.0%}", "; ".join(notes),
    ]  # fmt: skip


def _resident_cells(row: dict[str, Any]) -> list[str]:
    if "error" in row and "arena" not in row:
        return [row["error"][:60]]
    return [
        mebibytes(row["arena"]), mebibytes(row["constant"]), mebibytes(row["growth"]), str(row["asked"]), mebibytes(row["later"]), str(row["samples"]),
        str(row["evictions"]),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
