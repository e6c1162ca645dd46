"""Time against memory: training a model in less activation memory, by coop and by PyTorch's own
means.

Measured, interleaved in one run, on BERT, GPT-2, ResNet-50, Swin-T and an unrolled BiLSTM, with
Adam plain and fused:

    eager               plain PyTorch, what all ratios refer to
    POLICY@RATIO        coop with a budget of the persistent bytes (parameters, buffers, optimizer state, inputs) and this share of
                        eager's activations; @2: nothing needs to leave; @checkpoint: the share that
                        `checkpoint` reaches
    checkpoint          torch.utils.checkpoint around each layer (of the BiLSTM: each segment of time)
    selective           the same, but results of matmuls, convolutions and attention are kept
    accumulate          gradient accumulation over two halves of the batch
    compile             torch.compile with activation_memory_budget 0.5; left out unless asked for: it compiles for minutes

Each way is a process of its own that warms up and then waits for its turns: in each round, each way
trains some steps. A time is the median over rounds of (seconds for a step / eager's in the same
round), of CPU and of wall time.

Memory is measured apart from time. Activations are live bytes that are not persistent and not
gradients. Plain ways: a step under PyTorch's profiler, whose reports of allocations include
kernels' scratch. Coop: the scope's peak minus the persistent bytes; if the peak fell in backward,
gradients are counted as activations, to coop's disadvantage. If a budget is too small to run, it is
raised by steps of 4 % and the row says so: gradients replace activations in backward, so no budget
below persistent bytes and gradients can be enough.

Bits: losses, gradients, parameters, buffers, optimizer state and random state after all steps are
compared with eager's.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from common import add_models, console, median, names, number, parser, progress, share, show, write
from job import Profile, Way
from processes import Failed, Outcome, Trainer, profile_of, take_turns
from workloads import TITLES

PLAIN = ("eager", "checkpoint", "selective", "accumulate", "compile")
RATIOS = ("2", "0.7", "0.5", "0.35", "checkpoint")
POLICIES = ("coop", "coop-paper", "dtr", "dtr-eq", "dte", "lru")
COOP = tuple(f"{policy}@{ratio}" for policy in POLICIES for ratio in RATIOS)
METHODS = (*PLAIN, *COOP)
DEFAULT = (*PLAIN[:-1], *COOP[: len(RATIOS)], *(f"{policy}@0.5" for policy in POLICIES[1:]))
OPTIMIZERS = ("adam", "fused")
WARM_UP = 3
RAISE = 1.04


@dataclasses.dataclass
class Row:
    """One way on one model with one optimizer: what goes into a line of the table."""

    model: str
    optimizer: str
    method: str
    cpu: float | None = None  # ratios to eager
    wall: float | None = None
    activations: float | None = None
    total: float | None = None
    asked: float | None = None  # coop: the share of activations that the budget is made of
    raised: float = 1.0  # coop: the budget that ran / the budget asked for
    recomputation: float | None = None  # shares of step time
    search: float | None = None
    moves: float | None = None
    fragmentation: float | None = None
    evictions: int | None = None
    bits: list[str] | None = None  # what differs; empty: nothing
    error: str = ""
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # for each step, round by round
    bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    compile_seconds: float | None = None


class Contest:
    """All ways of training one model with one optimizer."""

    def __init__(self, model: str, optimizer: str, methods: list[str], settings: argparse.Namespace) -> None:
        self.settings = settings
        self.base = Way(model, optimizer, small=settings.scale == "small", threads=settings.threads)
        self.rows = {name: Row(model, optimizer, name) for name in methods}
        self.profiles: dict[str, Profile] = {}
        self.trainers: dict[str, Trainer] = {}

    def run(self, tick: Any) -> list[Row]:
        try:
            self._measure(tick)
            for name in self.rows:
                tick(f"{name}: warm-up")
                self._start(name)
            rounds, failed = take_turns(self.trainers, self.settings.rounds, self.settings.steps, tick)
            for name, failure in failed.items():
                self.rows[name].error = str(failure)
            self._times(rounds)
            self._finish()
        finally:
            for trainer in self.trainers.values():
                trainer.end()
        return list(self.rows.values())

    def _measure(self, tick: Any) -> None:
        wanted = [name for name in PLAIN if name in self.rows]
        if "checkpoint" not in wanted and any(name.endswith("@checkpoint") for name in self.rows):
            wanted.append("checkpoint")
        for name in wanted:
            tick(f"{name}: memory")
            try:
                self.profiles[name] = profile_of(
                    dataclasses.replace(self.base, name=name), limit=20 * self.settings.limit
                )
            except Failed as failure:
                if name == "eager":
                    raise
                if name in self.rows:
                    self.rows[name].error = str(failure)
        eager = self.profiles["eager"]
        for name, profile in self.profiles.items():
            if row := self.rows.get(name):
                row.activations, row.total = profile.activations / eager.activations, profile.total / eager.total
                row.bytes = {
                    "persistent": profile.persistent,
                    "activations": profile.activations,
                    "total": profile.total,
                    "gradients": profile.gradients,
                }

    def _start(self, name: str) -> None:
        row = self.rows[name]
        if row.error:
            return
        try:
            if name in PLAIN:
                self.trainers[name] = self._trainer(dataclasses.replace(self.base, name=name))
                if name == "compile":
                    row.compile_seconds = self.trainers[name].warm_up.wall * WARM_UP
            else:
                self._start_coop(row)
        except Failed as failure:
            row.error = str(failure)

    def _start_coop(self, row: Row) -> None:
        policy, ratio = row.method.split("@")
        eager = self.profiles["eager"]
        if ratio == "checkpoint" and "checkpoint" not in self.profiles:
            raise Failed("no ratio", "checkpoint itself does not run")
        row.asked = (
            self.profiles["checkpoint"].activations / eager.activations if ratio == "checkpoint" else float(ratio)
        )
        asked = budget = eager.budget(row.asked)
        while True:
            try:
                way = dataclasses.replace(self.base, name=row.method, policy=policy, budget=budget)
                self.trainers[row.method] = self._trainer(way)
                break
            except Failed as failure:
                budget = int(budget * RAISE)
                if failure.kind != "OutOfBudget" or budget > 1.2 * eager.total:
                    raise
        row.raised = budget / asked
        row.bytes = {"budget": budget, "persistent": eager.persistent}

    def _trainer(self, way: Way) -> Trainer:
        return Trainer(way, WARM_UP, self.settings.limit)

    def _times(self, rounds: list[dict[str, Any]]) -> None:
        for name, row in self.rows.items():
            both = [(clocks[name], clocks["eager"]) for clocks in rounds if name in clocks and "eager" in clocks]
            row.cpu = median(mine.cpu / eager.cpu for mine, eager in both)
            row.wall = median(mine.wall / eager.wall for mine, eager in both)
            row.seconds = {"wall": [mine.wall for mine, _ in both], "cpu": [mine.cpu for mine, _ in both]}

    def _finish(self) -> None:
        outcomes: dict[str, Outcome] = {}
        for name, trainer in self.trainers.items():
            try:
                outcomes[name] = trainer.finish()
            except Failed as failure:
                self.rows[name].error = str(failure)
        expected = outcomes["eager"].digests
        for name, outcome in outcomes.items():
            row = self.rows[name]
            row.bits = [part for part, digest in outcome.digests.items() if digest != expected[part]]
            if outcome.stats:
                self._coop(row, outcome.stats)

    def _coop(self, row: Row, stats: dict[str, Any]) -> None:
        eager = self.profiles["eager"]
        time = sum(row.seconds["wall"]) * self.settings.steps
        row.activations = (stats["peak"] - eager.persistent) / eager.activations
        row.total = stats["peak"] / eager.total
        row.recomputation, row.search = stats["recompute_seconds"] / time, stats["search_seconds"] / time
        row.moves = stats["move_seconds"] / time
        row.fragmentation, row.evictions = stats["fragmentation"], stats["evictions"]
        row.bytes |= {"total": stats["peak"], "activations": stats["peak"] - eager.persistent}


def print_rows(title: str, rows: list[Row]) -> None:
    columns = [
        "method",
        "CPU",
        "wall",
        "activations",
        "total",
        "recomputed",
        "search",
        "fragmentation",
        "evictions",
        "same bits",
    ]
    lines = []
    for row in rows:
        asked = f" ({row.asked:.2f})" if row.asked is not None and row.method.endswith("checkpoint") else ""
        if row.error:
            lines.append([row.method + asked, *["-"] * (len(columns) - 2), row.error[:60]])
            continue
        bits = "yes" if not row.bits else "no: " + ", ".join(row.bits)
        notes = f"; budget x{row.raised:.2f}" if row.raised > 1 else ""
        notes += f"; compiled in {row.compile_seconds:.0f} s" if row.compile_seconds else ""
        lines.append(
            [row.method + asked, number(row.cpu, 3), number(row.wall, 3), number(row.activations), number(row.total),
             share(row.recomputation), share(row.search), share(row.fragmentation),
             "-" if row.evictions is None else str(row.evictions), bits + notes]
        )  # fmt: skip
    show(title, columns, lines)


def plot(path: Path, rows: list[Row]) -> None:
    """Time against achieved activation memory, a panel for each model and optimizer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row.model for row in rows))
    optimizers = list(dict.fromkeys(row.optimizer for row in rows))
    figure, panels = pyplot.subplots(
        len(optimizers),
        len(models),
        figsize=(4 * len(models), 3.6 * len(optimizers)),
        squeeze=False,
        layout="constrained",
    )
    kinds = [name for name in (*PLAIN, *POLICIES) if any(row.method.split("@")[0] == name for row in rows)]
    look = {
        name: {"color": f"C{i % 10}", "marker": "o" if name in POLICIES else "^sDvP"[PLAIN.index(name)], "label": name}
        for i, name in enumerate(kinds)
    }
    for line, optimizer in zip(panels, optimizers, strict=True):
        for panel, model in zip(line, models, strict=True):
            for kind in kinds:
                points = sorted(
                    (row.activations, row.wall)
                    for row in rows
                    if (row.model, row.optimizer, row.method.split("@")[0]) == (model, optimizer, kind)
                    and row.activations is not None and row.wall is not None
                )  # fmt: skip
                if points:
                    panel.plot(*zip(*points, strict=True), linestyle="-" if kind == "coop" else "", **look[kind])
            panel.axhline(1, color="grey", linewidth=0.5)
            panel.set_title(f"{TITLES[model]}, {'Adam' if optimizer == 'adam' else 'fused Adam'}", fontsize=10)
            panel.set_xlabel("peak of activations / eager")
            panel.set_ylabel("time of a step / eager")
    handles = {
        label: handle for panel in panels.flat for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def methods_for(optimizer: str, settings: argparse.Namespace) -> list[str]:
    """Other policies differ from coop in what they evict, not in how they treat the optimizer: by
    default they run with one optimizer."""
    if settings.methods is not None:
        return ["eager", *(name for name in settings.methods if name != "eager")]
    return [name for name in DEFAULT if optimizer == "adam" or name in PLAIN or name.startswith("coop@")]


def main() -> None:
    made = parser(__doc__)
    add_models(made)
    made.add_argument("--optimizers", **names(OPTIMIZERS))
    made.add_argument("--methods", **(names(METHODS) | {"default": None}))
    made.add_argument("--rounds", type=int, default=5, help="turns of each method (5)")
    made.add_argument("--steps", type=int, default=1, help="of training in each turn (1)")
    made.add_argument("--limit", type=float, default=60.0, help="seconds that a turn may take (60)")
    made.add_argument("--plot", type=Path, metavar="FILE.png", help="draw time against memory here")
    settings = made.parse_args()

    rows: list[Row] = []
    contests = [
        Contest(model, optimizer, methods_for(optimizer, settings), settings)
        for model in settings.models
        for optimizer in settings.optimizers
    ]
    with progress() as bar:
        task = bar.add_task("", total=len(contests))
        for contest in contests:
            title = f"{TITLES[contest.base.model]}, {'Adam' if contest.base.optimizer == 'adam' else 'fused Adam'}"

            def tick(what: str, title: str = title) -> None:
                bar.update(task, description=f"{title}: {what}", refresh=True)

            done = contest.run(tick)
            bar.advance(task)
            rows += done
            eager = contest.rows["eager"]
            size = f"{eager.bytes['persistent'] / 2**20:.0f} MiB persistent, {eager.bytes['activations'] / 2**20:.0f} MiB activations"
            print_rows(f"{title}: a step takes {median(eager.seconds['wall']):.3f} s, {size}; ratios to eager", done)
            write(settings.json, "training", settings, [dataclasses.asdict(row) for row in rows])
    if settings.plot:
        plot(settings.plot, rows)
        console.print(f"drawn: {settings.plot}")


if __name__ == "__main__":
    main()
