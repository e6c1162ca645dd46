"""The offline planners against what was asked of them.

    layered    random graphs in layers (coop/plan/random_graphs.py), auto. Asked: 100 nodes at 0.8 and 0.9 of the peak
               proven optimal in 10 s (moccasin is asked too, which proves less); 250 nodes at 0.9 at most 1 % more in
               60 s, at 0.8 at most 5 % in 200 s; 1,000 nodes in 600 s at 0.9 at most 2 %, at 0.8 at most 6 %
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

Networks are traced by shapes, with the costs of the a100 device model. A planner is in time if it ends within 5 % of
its limit. `--json` keeps what the file has of other parts.
"""

import argparse
import dataclasses
import functools
import gc
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch
import torch

from common import console, median, names, number, parser, progress, share, show, write
from processes import Failed, call

Row = dict[str, Any]
RATIOS = (0.7, 0.5, 0.4)
BASELINES = ("keep-all", "chen-sqrt", "chen-greedy", "treeverse", "treewidth")
POLICIES = ("dtr", "dte", "coop")
DEVICES = ("cortex-m4f", "raspberry-pi")
SHARES = (0.5, 0.25)  # of the way from the floor to the peak
KINDS: dict[str, dict[str, bool]] = {"integrated": {}, "remat": {"page": False}, "paging": {"rematerialise": False}}
SMALL = ("resnet18", "bert-base")
LIVE = ("gpt", "resnet")
COMPILED = ("perceptron", "convolutions", "transformer")
SOLVERS = ("coop", "dp", "greedy")
BUDGETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SLACK = 600.0  # seconds beside the planner's own: traces, models too large to give up at once


@dataclasses.dataclass(frozen=True)
class Job:
    """One measurement: `work` runs here and gives a row; `asked` of it, and whether that was reached."""

    what: str
    work: Callable[[], Row]
    asked: str = ""
    good: Callable[[Row], bool] | None = None
    reached: Callable[[Row], str] = lambda row: ""
    key: Row = dataclasses.field(default_factory=dict)
    """What the row has even if it fails."""


def _planned(plan: Any) -> Row:
    """What is worth knowing of a plan."""
    about = {key: value for key, value in plan.about.items() if isinstance(value, str | int | float)}
    return plan.to_json() | {"about": about, "runs_again": len(plan.sequence()) - len(plan.program)}


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
                    functools.partial(_call, _layered, 10 * given.scale, 100, 380, seed, ratio, planner),
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
                functools.partial(_call, _layered, limit * given.scale, nodes, edges, seed, ratio, "auto"),
                f"at most {100 * most:.0f} % in {limit} s",
                lambda row, most=most, limit=limit: row["duration_increase"] <= most and _in_time(row, limit),
                _increase,
            )


def _layered(limit: float, nodes: int, edges: int, seed: int, ratio: float, planner: str) -> Row:
    from coop.plan import solve
    from coop.plan.random_graphs import layered

    row = _planned(solve(layered(nodes, edges, seed), ratio, planner, time_limit=limit))
    proven = row["status"] == "optimal" or (planner == "moccasin" and "optimal" in row["about"])
    return row | {"nodes": nodes, "edges": edges, "seed": seed, "ratio": ratio, "limit": limit, "proven": proven}


def chain(given: argparse.Namespace) -> Iterator[Job]:
    yield Job(
        "chain of 101 nodes at 50 %: certified gap",
        functools.partial(_call, _chain, 10 * given.scale),
        "at most 1 % in 10 s",
        lambda row: row["gap"] <= 0.01 and _in_time(row, 10),
        _gap,
    )
    for what, wanted in (("program", 26), ("relaxation", 22)):
        yield Job(
            f"chain of 8 layers in 4 units: Checkmate's {what}",
            functools.partial(_call, _published, 60.0, what),
            str(wanted),
            lambda row, wanted=wanted: row["duration"] is not None and abs(row["duration"] - wanted) < 1e-3,
            lambda row: f"{number(row['duration'], 1)}, {row['seconds']:.1f} s",
        )


def _chain_of(layers: int) -> Any:
    """Forward, loss, backward: each backward node reads the gradient so far and what forward made at its layer."""
    from coop.plan import make_graph

    n = 2 * layers + 1
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(layers)]
    return make_graph([1] * n, [1] * n, edges)


def _chain(limit: float) -> Row:
    from coop.plan import solve

    return _planned(solve(_chain_of(50), 0.5, time_limit=limit)) | {"limit": limit}


def _published(limit: float, what: str) -> Row:
    from coop.plan import solve
    from coop.plan.checkmate import relaxed
    from coop.plan.search import Search

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
            functools.partial(_call, _network, 30 * given.scale, given.folder, "resnet50", ratio),
            "at most 0.4 % in 30 s" if ratio == 0.8 else "",
            lambda row: row["duration_increase"] <= 0.004 and _in_time(row, 30),
            _increase,
        )


def bert(given: argparse.Namespace) -> Iterator[Job]:
    yield Job(
        "BERT Large at 50 % in 300 s: increase (bound, certified gap); coop without a plan",
        functools.partial(_call, _network, 300 * given.scale, given.folder, "bert-large", 0.5),
        "less than coop",
        lambda row: row["duration_increase"] < row["coop"],
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
                    _call, _network, 60 * given.scale, given.folder, name, ratio, BASELINES, POLICIES, times=2
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
    """Increases of the duration, None where it does not run. `followed`: what the engine makes of auto's plan, in half a percent
    more memory, for what addresses and tiny storages take."""
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
    return row | _planned(plan) | {"followed": played(int(1.005 * budget), plan=plan)}


def poet(given: argparse.Namespace) -> Iterator[Job]:
    for name in SMALL:
        for device in DEVICES:
            for part in SHARES:
                for kind in KINDS:
                    yield Job(
                        f"{name}, {device}, {part} of the way, {kind}",
                        functools.partial(_call, _poet, 60 * given.scale, given.folder, name, device, part, kind),
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
    row |= _planned(plan)
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
        "plan": (row["budget"], file),
        "online": (row["budget"], None),
    }
    found = {way: call(_train, name, given.threads, given.steps, *how, limit=SLACK) for way, how in ways.items()}
    return row | {
        "same_bits": len({answer["digest"] for answer in found.values()}) == 1,
        "measured": found["plan"]["recomputation"],
        "online": found["online"]["recomputation"],
        "cpu": {way: answer["cpu"] for way, answer in found.items()},
        "lost": found["plan"]["lost"],
        "followed_steps": found["plan"]["followed_steps"],
        "replays": found["plan"]["replays"],
    }


def _plan_live(name: str, threads: int, limit: float, file: Path) -> Row:
    import coop
    from coop.plan import floor, graph_of, peak_of, solve, write

    torch.set_num_threads(threads)
    training = Training(name)
    training.step()
    graph = graph_of(coop.record(training.step))
    budget = max(peak_of(graph) // 2, floor(graph)[0])
    plan = solve(graph, budget, time_limit=limit)
    write(plan, file)
    row = _planned(plan) | {
        "network": name,
        "nodes": len(graph.nodes),
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
    """The first two steps do not count: there the optimizer makes its state, and the plan does not fit yet."""
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
        before = memory.stats()
        cpu = [_cpu(training.step) for _ in range(steps)]
        after = memory.stats()
        row: Row = {"lost": memory.why_lost() if after.plan_losses > before.plan_losses else ""}
    again = after.recompute_seconds - before.recompute_seconds
    row["recomputation"] = again / (again + after.op_seconds - before.op_seconds)
    row["followed_steps"] = after.planned_steps - before.planned_steps
    row["replays"] = (after.replays - before.replays) / steps
    return row | {"digest": training.digest(), "cpu": median(cpu)}


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
                functools.partial(_call, _compiled, 10 * given.scale, name, solver, given.threads),
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
    from coop.plan.compile_solver import compile_solver

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


def _call(function: Callable[..., Row], limit: float, *args: Any, times: int = 1) -> Row:
    """In a process of its own. `times`: how many planners it asks that take all of their time."""
    return call(function, limit, *args, limit=times * limit + SLACK)


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
