"""The offline planners against what was asked of them.

    layered    random graphs in layers (coop/plan/model/random_graphs.py), auto. Asked: 100 nodes at 0.8 and 0.9 of the peak
               proven optimal in 10 s (moccasin is asked too, which proves less); 250 nodes at 0.9
               at most 1 % more in 60 s, at 0.8 at most 5 % in 200 s; 1,000 nodes in 600 s at 0.9 at
               most 2 %, at 0.8 at most 6 %
    chain      101 nodes of cost and size 1 at 50 %: a certified gap of at most 1 % in 10 s; Checkmate's chain of 8
               layers in 4 units of memory: 26 by its program, 22 by the relaxation
    resnet50   ResNet-50 at 80 % in 30 s: at most 0.4 % more
    bert       BERT Large at 50 % in 300 s: less than coop costs without a plan, with a certified gap
    networks   the eight networks of the paper at 0.7, 0.5 and 0.4: planners, policies, the bound
    poet       joules on small devices, at shares of the way from the floor to the peak: rematerialisation and paging,
               or one of them
    live       a GPT and a ResNet trained at half of their peak with a plan: the same bits; the share of recomputation
               in the time of all ops within 2 points of the plan's
    compile    torch.compile with coop's solver and with torch's own: the peak of forward and backward never goes up
               when the budget goes down

Networks are traced by shapes, with the costs of the a100 device model. A planner is in time if it
ends within 5 % of its limit. `--json` keeps what the file has of other parts.
"""

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch

from common import console, names, number, parser, progress, share, show, write
from plan_job import Job, Row, about_plan, call_for
from planned_runs import compile, live
from processes import Failed

RATIOS = (0.7, 0.5, 0.4)
BASELINES = ("keep-all", "chen-sqrt", "chen-greedy", "treeverse", "treewidth")
POLICIES = ("dtr", "dte", "coop")
DEVICES = ("cortex-m4f", "raspberry-pi")
SHARES = (0.5, 0.25)  # of the way from the floor to the peak
KINDS: dict[str, dict[str, bool]] = {"integrated": {}, "remat": {"page": False}, "paging": {"rematerialise": False}}
SMALL = ("resnet18", "bert-base")


def _increase(row: Row) -> str:
    return f"{share2(row['duration_increase'])} (bound {share2(row['bound'])}), {row['seconds']:.0f} s"


def _gap(row: Row) -> str:
    return f"{share2(row['gap'])} at {share2(row['duration_increase'])} more, {row['seconds']:.1f} s"


def _in_time(row: Row, limit: float) -> bool:
    return row["seconds"] <= 1.05 * limit


def share2(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


# --- made graphs -----------------------------------------------------------------------------------------------------


def layered(given: argparse.Namespace) -> Iterator[Job]:
    for seed in given.seeds:
        for ratio in (0.9, 0.8):
            for planner in ("auto", "moccasin"):
                yield Job(
                    f"100 nodes at {ratio}, {planner}",
                    functools.partial(call_for, _layered, 10 * given.scale, 100, 380, seed, ratio, planner),
                    "optimal in 10 s" if planner == "auto" else "optimal in its model in 10 s",
                    lambda row: row["proven"] and _in_time(row, 10),
                    lambda row: f"{'proven' if row['proven'] else 'not proven'}, {_increase(row)}",
                )
        for nodes, edges, ratio, limit, most in (
            (250, 944, 0.9, 60, 0.01),
            (250, 944, 0.8, 200, 0.05),
            (1000, 5900, 0.9, 600, 0.02),
            (1000, 5900, 0.8, 600, 0.06),
        ):
            yield Job(
                f"{nodes:,} nodes at {ratio}",
                functools.partial(call_for, _layered, limit * given.scale, nodes, edges, seed, ratio, "auto"),
                f"at most {100 * most:.0f} % in {limit} s",
                lambda row, most=most, limit=limit: row["duration_increase"] <= most and _in_time(row, limit),
                _increase,
            )


def _layered(limit: float, nodes: int, edges: int, seed: int, ratio: float, planner: str) -> Row:
    from coop.plan import solve
    from coop.plan.model.random_graphs import layered

    row = about_plan(solve(layered(nodes, edges, seed), ratio, planner, time_limit=limit))
    proven = row["status"] == "optimal" or (planner == "moccasin" and "optimal" in row["about"])
    return row | {"nodes": nodes, "edges": edges, "seed": seed, "ratio": ratio, "limit": limit, "proven": proven}


def chain(given: argparse.Namespace) -> Iterator[Job]:
    yield Job(
        "chain of 101 nodes at 50 %: certified gap",
        functools.partial(call_for, _chain, 10 * given.scale),
        "at most 1 % in 10 s",
        lambda row: row["gap"] <= 0.01 and _in_time(row, 10),
        _gap,
    )
    for what, wanted in (("program", 26), ("relaxation", 22)):
        yield Job(
            f"chain of 8 layers in 4 units: Checkmate's {what}",
            functools.partial(call_for, _published, 60.0, what),
            str(wanted),
            lambda row, wanted=wanted: row["duration"] is not None and abs(row["duration"] - wanted) < 1e-3,
            lambda row: f"{number(row['duration'], 1)}, {row['seconds']:.1f} s",
        )


def _chain_of(layers: int) -> Any:
    """Forward, loss, backward: each backward node reads the gradient so far and what forward made
    at its layer."""
    from coop.plan import make_graph

    n = 2 * layers + 1
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(layers)]
    return make_graph([1] * n, [1] * n, edges)


def _chain(limit: float) -> Row:
    from coop.plan import solve

    return about_plan(solve(_chain_of(50), 0.5, time_limit=limit)) | {"limit": limit}


def _published(limit: float, what: str) -> Row:
    from coop.plan import solve
    from coop.plan.exact.checkmate import relaxed
    from coop.plan.search.search import Search

    start = time.monotonic()
    if what == "program":
        found: float | None = solve(_chain_of(8), 4, "checkmate", time_limit=limit).duration
    else:
        found = relaxed(Search(_chain_of(8), 4), seconds=limit)
    return {"duration": found, "seconds": time.monotonic() - start, "limit": limit}


# --- traces ----------------------------------------------------------------------------------------------------------


def resnet50(given: argparse.Namespace) -> Iterator[Job]:
    for ratio in (0.8, 0.9):
        yield Job(
            f"ResNet-50 at {100 * ratio:.0f} %: increase (bound)",
            functools.partial(call_for, _network, 30 * given.scale, given.folder, "resnet50", ratio),
            "at most 0.4 % in 30 s" if ratio == 0.8 else "",
            lambda row: row["duration_increase"] <= 0.004 and _in_time(row, 30),
            _increase,
        )


def bert(given: argparse.Namespace) -> Iterator[Job]:
    yield Job(
        "BERT Large at 50 % in 300 s: increase (bound, certified gap); coop without a plan",
        functools.partial(call_for, _network, 300 * given.scale, given.folder, "bert-large", 0.5),
        "less than coop",
        lambda row: row["coop"] is None or row["duration_increase"] < row["coop"],
        reached=lambda row: (
            f"{share2(row['duration_increase'])} ({share2(row['bound'])}, {share2(row['gap'])}); {share2(row['coop'])}"
        ),
    )


def networks(given: argparse.Namespace) -> Iterator[Job]:
    from coop import models

    for name in models.NAMES:
        for ratio in RATIOS:
            yield Job(
                f"{name} at {ratio}",
                functools.partial(
                    call_for, _network, 60 * given.scale, given.folder, name, ratio, BASELINES, POLICIES, times=2
                ),
                key={"network": name, "ratio": ratio},
            )


def _network(
    limit: float,
    folder: Path,
    name: str,
    ratio: float,
    baselines: tuple[str, ...] = (),
    policies: tuple[str, ...] = ("coop",),
) -> Row:
    """Increases of the duration, None where it does not run. `followed`: the result when the engine
    follows auto's plan, in half a percent more memory for addresses and tiny storages."""
    from coop.plan import PlanError, floor, graph_of, peak_of, solve
    from coop.simulate import Player

    trace = _trace(folder, name, "a100")
    graph, player = graph_of(trace), Player(trace)
    peak = peak_of(graph)
    budget = int(ratio * peak)
    row: Row = {
        "network": name,
        "ratio": ratio,
        "budget": budget,
        "step_peak": peak,
        "nodes": len(graph.nodes),
        "limit": limit,
    }
    row["floor"] = floor(graph)[0] / peak

    def played(room: int = budget, **options: Any) -> float | None:
        overhead = player.play(room, **options).overhead
        return None if overhead is None else overhead - 1

    row |= {policy: played(policy=policy) for policy in policies}
    for planner in baselines:
        try:
            plan = solve(graph, budget, planner, time_limit=limit)
        except PlanError:
            plan = None
        row[planner] = plan.increase if plan is not None and plan.planner == planner else None
    try:
        plan = solve(graph, budget, "auto", time_limit=limit)
    except PlanError as error:
        return row | {"no_plan": str(error)}
    return row | about_plan(plan) | {"followed": played(int(1.005 * budget), plan=plan)}


def poet(given: argparse.Namespace) -> Iterator[Job]:
    for name in SMALL:
        for device in DEVICES:
            for part in SHARES:
                for kind in KINDS:
                    yield Job(
                        f"{name}, {device}, {part} of the way, {kind}",
                        functools.partial(call_for, _poet, 60 * given.scale, given.folder, name, device, part, kind),
                        key={"network": name, "device": device, "share": part, "kind": kind, "joules": None},
                    )


def _poet(limit: float, folder: Path, name: str, device: str, part: float, kind: str) -> Row:
    from coop.plan import floor, graph_of, peak_of, solve

    graph = graph_of(_trace(folder, name, device))
    peak, least = peak_of(graph), floor(graph, paging=True)[0]
    budget = least + int(part * (peak - least))
    row: Row = {"network": name, "device": device, "share": part, "kind": kind, "limit": limit}
    row |= {"budget": budget, "step_peak": peak, "joules": None}
    try:
        plan = solve(graph, budget, "poet", time_limit=limit, **KINDS[kind])
    except ValueError as error:
        return row | {"no_plan": str(error)}
    row |= about_plan(plan)
    return row | ({key: plan.about[key] for key in ("joules", "joules_base")} if plan.planner == "poet" else {})


def _trace(folder: Path, name: str, device: str) -> Any:
    """Made once."""
    from coop import models
    from coop.trace import read, write
    from coop.trace.device import load
    from coop.trace.shapes import shape_trace

    path = folder / f"{name}-{device}.trace"
    if not path.exists():
        write(shape_trace(models.get(name), None, load(device)), path)
    return read(path)


# --- all of it -------------------------------------------------------------------------------------------------------


PARTS = {
    "layered": layered,
    "chain": chain,
    "resnet50": resnet50,
    "bert": bert,
    "networks": networks,
    "poet": poet,
    "live": live,
    "compile": compile,
}


def measure(part: str, given: argparse.Namespace) -> list[Row]:
    jobs = list(PARTS[part](given))
    rows = []
    with progress() as bar:
        task = bar.add_task("", total=len(jobs))
        for job in jobs:
            bar.update(task, description=f"{part}: {job.what}", refresh=True)
            row: Row = {"part": part, "what": job.what, "asked": job.asked, "scale": given.scale} | job.key
            row |= {"reached": "", "good": False if job.asked else None}
            try:
                row |= job.work()
                if "no_plan" in row:
                    row["reached"] = row["no_plan"]
                else:
                    row |= {"reached": job.reached(row), "good": job.good(row) if job.good and job.asked else None}
            except Failed as failure:
                row |= {"error": str(failure), "reached": str(failure)}
            rows.append(row)
            bar.advance(task)
    return rows


def table(part: str, rows: list[Row]) -> None:
    if part == "networks":
        columns = (*BASELINES, *POLICIES, "duration_increase", "followed", "bound", "gap")
        lines = [
            [row["what"], *(share(row.get(key)) for key in columns), number(row.get("seconds"), 0)] for row in rows
        ]
        show(part, ["", *(*columns[:-4], "auto", "followed"), "bound", "gap", "s"], lines)
    elif part == "poet":
        lines = [[row["what"], *(number(row.get(key), 3) for key in ("joules_base", "joules"))] for row in rows]
        show(part, ["", "joules without a budget", "joules"], lines)
    else:
        verdict = {True: "yes", False: "no", None: ""}
        lines = [[row["what"], row["asked"], row["reached"][:100], verdict[row["good"]]] for row in rows]
        show(part, ["", "asked", "reached", ""], lines)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--only", **names(PARTS))
    made.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2], metavar="A,B,..."
    )
    made.add_argument("--scale", type=float, default=1.0, help="of all time limits, to try things out (1)")
    made.add_argument("--steps", type=int, default=8, help="that live training is timed for (8)")
    given = made.parse_args()
    console.print(f"seeds {', '.join(map(str, given.seeds))}")
    rows = json.loads(given.json.read_text())["rows"] if given.json and given.json.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        for part in given.only:
            found = measure(part, argparse.Namespace(**vars(given), folder=Path(folder)))
            table(part, found)
            rows = sorted(
                [row for row in rows if row["part"] != part] + found, key=lambda row: list(PARTS).index(row["part"])
            )
            write(given.json, "planners", given, rows)


if __name__ == "__main__":
    main()
