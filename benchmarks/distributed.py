"""What a budget costs ranks of DDP, and how soon they end when one of them runs out.

1. A transformer of six layers on two ranks (gloo, one thread each): time of a step in a budget in
   which nothing has to leave, over plain DDP. Asked: 1.03.
2. The same in half of the activations, beside the same model and share in one process without DDP.
   Asked: within 5 % of it.
3. One rank runs out of budget: seconds until all ranks have ended. Asked: 10.

The ways take turns in the same processes. A figure is the median over rounds of the ratio of CPU
times in the same round, and of all ranks the worst.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import median, number, parser, progress, show, write

HERE = Path(__file__).parent
RANKS = 2
ASKED = {"large": 1.03, "half": 1.05, "end": 10.0}


def launcher(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def ratios(found: dict[str, Any], way: str, clock: str) -> float:
    times = {(row["round"], row["way"]): row[clock] for row in found["rows"]}
    turns = {row["round"] for row in found["rows"]}
    return median(times[turn, way] / times[turn, "plain"] for turn in turns) or 0.0


def trained(ranks: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """For each way, the worst rank's ratios."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found"
        command = launcher(ranks) if ranks > 1 else [sys.executable]
        subprocess.run(
            [*command, HERE / "distributed_rank.py", out, str(rounds), str(steps)],
            check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        all_ranks = [json.loads(out.with_name(f"found.{rank}.json").read_text()) for rank in range(ranks)]
    rows = []
    for way in ("large", "half"):
        mine = [row for found in all_ranks for row in found["rows"] if row["way"] == way]
        digests = {(rank, row["digest"]) for rank, found in enumerate(all_ranks) for row in found["rows"]}
        rows.append(
            {
                "ranks": ranks, "way": way,
                "cpu": max(ratios(found, way, "cpu") for found in all_ranks),
                "wall": max(ratios(found, way, "wall") for found in all_ranks),
                "recomputation": median(row["recomputation"] for row in mine),
                "evictions": min(row["evictions"] for row in mine) if way == "half" else max(row["evictions"] for row in mine),
                "same": len(digests) == ranks,
            }
        )  # fmt: skip
    return rows


def seconds_to_the_end() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        when = Path(folder) / "when"
        done = subprocess.run(
            [*launcher(RANKS), "-m", "coop", "run", "--budget", "64MiB", HERE / "distributed_failing.py", when],
            capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        end = time.time()
        return {
            "way": "end",
            "ranks": RANKS,
            "seconds": end - float(when.read_text()),
            "failed": done.returncode != 0,
            "named": "rank 1 of 2" in done.stderr and "OutOfBudget" in done.stderr,
        }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=7, help="turns of each way (7)")
    made.add_argument("--steps", type=int, default=3, help="of training in each turn (3)")
    settings = made.parse_args()
    rows: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("", total=5)
        for ranks in (1, RANKS):
            bar.update(task, description=f"training with {ranks} processes", refresh=True)
            rows += trained(ranks, settings.rounds, settings.steps)
            bar.advance(task)
        for _ in range(3):
            bar.update(task, description="a rank runs out of budget", refresh=True)
            rows.append(seconds_to_the_end())
            bar.advance(task)
    show(
        "A training step, time / the same without a budget",
        ["processes", "budget", "CPU", "wall", "recomputation", "evictions", "same bits"],
        [
            [str(row["ranks"]), row["way"], number(row["cpu"], 3), number(row["wall"], 3),
             f"{row['recomputation']:.1%}", str(row["evictions"]), "yes" if row["same"] else "no"]
            for row in rows if row["way"] != "end"
        ],
    )  # fmt: skip
    ends = [row for row in rows if row["way"] == "end"]
    show(
        "One rank runs out of budget: until all have ended",
        ["seconds", "asked", "the error is named"],
        [[number(row["seconds"], 1), number(ASKED["end"], 0), "yes" if row["named"] else "no"] for row in ends],
    )
    write(settings.json, "distributed", settings, rows)


if __name__ == "__main__":
    main()
