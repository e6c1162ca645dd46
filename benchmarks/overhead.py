"""What being managed costs when nothing has to leave.

1. A stream of 64-element adds inside a budget, against plain PyTorch: nanoseconds of CPU for each
   op. "dropped" drops each result at once; "chain" adds to the last result; "kept" holds the
   results, a thousand at a time; "graph" is a chain that autograd records. Asked: 1.5 (dropped).
2. A training step of each model in a budget that is large enough, against eager. Asked: 1.02.
   "coop@2": twice the activations fit; "measure": coop.measure(), without a limit.

Both sides are processes of their own that take turns within one run, plain ones without coop
imported; a figure is the median over rounds of the ratio of CPU times in the same round.
"""

import argparse
import dataclasses
import time
from multiprocessing.connection import Connection
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch
import torch

from common import add_models, median, names, number, parser, progress, show, write
from job import Way
from processes import Failed, Process, Trainer, profile_of, take_turns
from workloads import TITLES

ADDS = 1000
STREAMS = ("dropped", "chain", "kept", "graph")
ASKED = {"stream": 1.5, "model": 1.02}


def adds(stream: str) -> None:
    """A thousand of them."""
    x, y = torch.ones(64), torch.ones(64)
    if stream == "dropped":
        for _ in range(ADDS):
            x + y
    elif stream == "kept":
        kept = [x + y for _ in range(ADDS)]
        del kept
    else:
        x.requires_grad_(stream == "graph")
        for _ in range(ADDS):
            x = x + y


def serve_adds(connection: Connection, managed: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    if managed:
        import coop

        with coop.budget("64MiB"):
            _answer(connection)
    else:
        _answer(connection)


def _answer(connection: Connection) -> None:
    while True:
        stream, repeats = connection.recv()
        adds(stream)
        start = time.process_time()
        for _ in range(repeats):
            adds(stream)
        connection.send((True, (time.process_time() - start) / repeats / ADDS))


def measure_adds(stream: str, settings: argparse.Namespace) -> dict[str, Any]:
    with Process(serve_adds, False, settings.threads) as plain, Process(serve_adds, True, settings.threads) as managed:
        rounds = []
        for number_ in range(settings.rounds):
            sides = [plain, managed][:: -1 if number_ % 2 else 1]
            seconds = {id(side): side.ask((stream, 20), 60) for side in sides}
            rounds.append((seconds[id(plain)], seconds[id(managed)]))
    return {
        "what": "stream", "name": stream, "asked": ASKED["stream"] if stream == "dropped" else None,
        "ratio": median(b / a for a, b in rounds), "plain": median(a for a, _ in rounds), "managed": median(b for _, b in rounds),
        "rounds": rounds,
    }  # fmt: skip


def measure_model(model: str, optimizer: str, settings: argparse.Namespace) -> list[dict[str, Any]]:
    base = Way(model, optimizer, small=settings.scale == "small", threads=settings.threads)
    budget = profile_of(base).budget(2)
    ways = {
        "eager": base,
        "coop@2": dataclasses.replace(base, name="coop@2", policy="coop", budget=budget),
        "measure": dataclasses.replace(base, name="measure", policy="coop"),
    }
    trainers: dict[str, Trainer] = {}
    rows = []
    try:
        for name, way in ways.items():
            trainers[name] = Trainer(way, 3, 120)
        rounds, failed = take_turns(trainers, settings.rounds, settings.steps, lambda _: None)
        outcomes = {name: trainer.finish() for name, trainer in trainers.items()}
        for name in ("coop@2", "measure"):
            row = {"what": "model", "model": model, "optimizer": optimizer, "name": name, "asked": ASKED["model"]}
            rows.append(row)
            if name in failed:
                row["error"] = str(failed[name])
                continue
            for kind in ("cpu", "wall"):
                pairs = [(getattr(clocks["eager"], kind), getattr(clocks[name], kind)) for clocks in rounds]
                row |= {kind: median(b / a for a, b in pairs), f"{kind} rounds": pairs}
            stats = outcomes[name].stats or {}
            seconds = sum(clocks[name].wall for clocks in rounds) * settings.steps
            row |= {
                "ops": stats["ops"] / settings.rounds / settings.steps, "evictions": stats["evictions"],
                "search": stats["search_seconds"] / seconds, "bits": outcomes[name].digests == outcomes["eager"].digests,
                "seconds": median(clocks["eager"].wall for clocks in rounds),
            }  # fmt: skip
    except Failed as failure:
        rows.append({"what": "model", "model": model, "optimizer": optimizer, "name": "coop@2", "error": str(failure)})
    finally:
        for trainer in trainers.values():
            trainer.end()
    return rows


def main() -> None:
    made = parser(__doc__)
    add_models(made)
    made.add_argument("--optimizers", **names(("adam", "fused")))
    made.add_argument("--rounds", type=int, default=11, help="turns of each side (11)")
    made.add_argument("--steps", type=int, default=1, help="of training in each turn (1)")
    settings = made.parse_args()

    rows: list[dict[str, Any]] = []
    jobs = [(model, optimizer) for model in settings.models for optimizer in settings.optimizers]
    with progress() as bar:
        task = bar.add_task("", total=len(STREAMS) + len(jobs))
        for stream in STREAMS:
            bar.update(task, description=f"adds: {stream}", refresh=True)
            rows.append(measure_adds(stream, settings))
            bar.advance(task)
        for model, optimizer in jobs:
            bar.update(task, description=f"{TITLES[model]}, {optimizer}", refresh=True)
            rows += measure_model(model, optimizer, settings)
            bar.advance(task)
    show(
        "64-element adds, CPU time of an op",
        ["stream", "managed / plain", "asked", "plain ns", "managed ns"],
        [
            [
                row["name"],
                number(row["ratio"]),
                number(row["asked"], 1),
                number(row["plain"] * 1e9, 0),
                number(row["managed"] * 1e9, 0),
            ]
            for row in rows
            if row["what"] == "stream"
        ],
    )
    show(
        "A training step in which nothing needs to leave, time / eager",
        ["model", "Adam", "scope", "CPU", "asked", "wall", "step s", "ops a step", "search", "evictions", "same bits"],
        [
            [TITLES[row["model"]], row["optimizer"], row["name"], *_model_cells(row)]
            for row in rows
            if row["what"] == "model"
        ],
    )
    write(settings.json, "overhead", settings, rows)


def _model_cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["error"][:60]]
    return [
        number(row["cpu"], 3), number(row["asked"]), number(row["wall"], 3), number(row["seconds"], 3), number(row["ops"], 0),
        f"{row['search']:.1%}", str(row["evictions"]), "yes" if row["bits"] else "no",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
