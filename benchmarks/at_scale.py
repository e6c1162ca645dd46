"""What a rank of many needs, found on one machine: examples/sharded.py by shapes alone.

    python benchmarks/at_scale.py --json docs/figures/at-scale.json
    python benchmarks/at_scale_page.py

Llama of 7 billion parameters with FSDP2, one sequence of 4,096 words on each rank, on a device
model of the A100. For some numbers of ranks: what rank 0 holds all the time, its peak, its floor,
and the time of its collectives. For 64 ranks and some budgets: what the policy and a plan cost.
Nothing is computed, and no tensor has bytes.
"""

import time
from pathlib import Path
from typing import Any

import common
from coop.plan import PlanError, solve
from coop.simulate.player import Player
from coop.trace import Source, Trace
from coop.trace.collectives import is_collective
from coop.trace.device import load
from coop.trace.script_shapes import trace_shapes

SCRIPT = Path(__file__).parents[1] / "examples" / "sharded.py"
WORLDS = (8, 16, 64, 256)
CHOSEN = 64
GIB = 2**30


def traced(world: int, arguments: list[str]) -> tuple[Trace, float]:
    started = time.perf_counter()
    source = SCRIPT.read_bytes()
    found = trace_shapes(str(SCRIPT), source, arguments, device=load("a100"), world_size=world)
    if found is None:
        raise RuntimeError(f"{SCRIPT} ended before its step")
    return found, time.perf_counter() - started


def rank(world: int, arguments: list[str]) -> tuple[dict[str, Any], Player]:
    trace, seconds = traced(world, arguments)
    player = Player(trace)
    held = [
        i.bytes for i in trace.instructions if isinstance(i, Source) and i.kind in ("parameter", "state", "gradient")
    ]
    return {
        "part": "ranks",
        "world": world,
        "options": " ".join(arguments),
        "ops": sum(1 for _ in trace.ops),
        "held": sum(held),
        "peak": player.peak,
        "floor": player.floor().bytes,
        "step": trace.cost,
        "collectives": sum(op.cost for op in trace.ops if is_collective(op.name)),
        "seconds": seconds,
    }, player


def budget(player: Player, size: float, seconds: float) -> dict[str, Any]:
    played = player.play(int(size * GIB))
    row: dict[str, Any] = {
        "part": "budgets",
        "world": CHOSEN,
        "budget": played.budget,
        "ratio": played.ratio,
        "status": played.status,
        "policy": None if played.overhead is None else played.overhead - 1,
    }
    try:
        plan = solve(player.trace, played.budget, time_limit=seconds)
    except PlanError as error:
        return row | {"plan": None, "bound": None, "why": str(error)}
    return row | {"plan": plan.increase, "bound": plan.to_json()["bound"], "seconds": plan.seconds}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--worlds", type=lambda text: [int(n) for n in text.split(",")], default=list(WORLDS))
    parser.add_argument("--budgets", type=lambda text: [float(n) for n in text.split(",")], default=[26.0, 22.0, 18.0])
    parser.add_argument("--plan-seconds", type=float, default=60.0, help="for each plan (60)")
    settings = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for world in settings.worlds:
        row, player = rank(world, [])
        rows.append(row)
        if world == CHOSEN:
            rows += [budget(player, size, settings.plan_seconds) for size in settings.budgets]
    rows.append(rank(CHOSEN, ["--keep"])[0])
    ranks = [row for row in rows if row["part"] == "ranks"]
    common.show(
        "a rank of many",
        ["ranks", "options", "held, GiB", "peak, GiB", "floor, GiB", "step, s", "collectives, s"],
        [
            [str(row["world"]), row["options"], *(f"{row[name] / GIB:.1f}" for name in ("held", "peak", "floor")),
             *(f"{row[name] / 1e9:.2f}" for name in ("step", "collectives"))]
            for row in ranks
        ],
    )  # fmt: skip
    common.show(
        f"rank 0 of {CHOSEN} in a budget",
        ["budget, GiB", "policy", "plan", "bound"],
        [
            [f"{row['budget'] / GIB:.0f}", *(common.share(row[name]) for name in ("policy", "plan", "bound"))]
            for row in rows
            if row["part"] == "budgets"
        ],
    )
    common.write(settings.json, "at_scale", settings, rows)


if __name__ == "__main__":
    main()
