"""`coop plan`: the best plan that a planner finds for a recorded step in a budget.

While it runs, it prints the best plan so far, the bound and the gap between them on stderr. Ctrl-C
ends the search and keeps the best plan.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coop.commands import Work, options
from coop.commands.plan_set import plan_set
from coop.commands.refusing import refusing
from coop.plan import PLANNERS, Graph, MissingSolver, Plan, Progress, graph_of, peak_of, solve, write
from coop.plan.figures import figures
from coop.report.canvas import FORMATS, NoPictures, matplotlib
from coop.report.plan import draw
from coop.sizes import format_bytes
from coop.spread import ClusterError
from coop.trace.formats import read_any


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--budget",
    "sizes",
    required=True,
    multiple=True,
    metavar="SIZE",
    help=f"{options.BUDGET_HELP} Given more than once: a plan for each.",
)
@click.option("--planner", default="auto", show_default=True, metavar="NAME", help=f"{', '.join(PLANNERS)}.")
@click.option(
    "--time-limit",
    "seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.0, min_open=True),
    help="Seconds.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The plan as a file, for coop.budget(plan=...). Of several plans: the folder for them.",
)
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
@click.option("--plot", type=click.Path(path_type=Path), help=f"The picture of the plan: .{', .'.join(FORMATS)}.")
@options.on
@click.option("--paging", is_flag=True, help="moccasin: values may also be paged to memory beside the budget.")
@click.option("--device", help="poet: a device with energy and paging, by name or as a TOML file.")
@click.option("--slowdown", type=click.FloatRange(1.0), help="poet: the run time may grow by this factor.")
@click.option("--storage", metavar="SIZE", help="poet: bytes that the device can page to.")
def plan(
    files: tuple[str, ...],
    sizes: tuple[str, ...],
    planner: str,
    seconds: float,
    output: Path | None,
    as_json: bool,
    plot: Path | None,
    address: str | None,
    **given: Any,
) -> Work:
    """Plan the step recorded in FILE (a trace, an operator log of DTR, or an execution trace of
    PyTorch) for a budget. Several files, or several budgets, give a plan for each.

    Which ops are computed again, when, and what is freed: every plan is checked before it is told.
    The duration increase is that of the computation; the bound is what no plan can do without.
    Ctrl-C keeps the best plan so far.
    """
    own = {name: value for name, value in given.items() if value}
    belongs = {"paging": "moccasin", "device": "poet", "slowdown": "poet", "storage": "poet"}
    for name in own:
        if belongs[name] != planner:
            raise click.UsageError(f"--{name} is for the planner {belongs[name]}, not for {planner}")
    if planner not in PLANNERS:
        raise click.UsageError(f"there is no planner {planner!r}; the known ones are {', '.join(PLANNERS)}")

    several = len(files) * len(sizes) > 1
    if several and plot is not None:
        raise click.UsageError(f"--plot draws one plan, and {len(files) * len(sizes)} are asked for")
    if several or address is not None:

        def work_on_set() -> None:
            with refusing(ValueError, MissingSolver, ClusterError):
                settings = {"planner": planner, "time_limit": seconds, **own}
                plan_set([Path(file) for file in files], list(sizes), output, address, as_json, settings)

        return work_on_set
    (file,), (size,) = files, sizes

    def work() -> None:
        with refusing(ValueError, MissingSolver, NoPictures):
            if plot is not None:
                matplotlib()
                if plot.suffix.removeprefix(".") not in FORMATS:
                    raise ValueError(
                        f"{plot} is not a picture that can be written: it should end in .{', .'.join(FORMATS)}"
                    )
            for path in (output, plot):
                if path is not None and not path.resolve().parent.is_dir():
                    raise ValueError(f"{path} cannot be written: there is no folder {path.resolve().parent}")
            graph = graph_of(read_any(file))
            with _Reporting() as report:
                found = solve(graph, size, planner, time_limit=seconds, report=report, **own)
            if output is not None:
                write(found, output)
            if plot is not None:
                draw(found, graph, plot)
        if as_json:
            print(json.dumps(figures(found, graph), indent=2))
        else:
            _print(found, graph, Path(file).name)
            for path in (output, plot):
                if path is not None:
                    print(f"written: {path}")

    return work


class _Reporting:
    """One line on stderr that is overwritten; if stderr is no terminal, one line for each better
    plan."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.last: tuple[float | None, float, str] | None = None

    def __enter__(self) -> Callable[[Progress], None]:
        if self.live is not None:
            self.live.start()
        return self.tell

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def tell(self, progress: Progress) -> None:
        now = (progress.increase, progress.bound, progress.stage)
        increase = "no plan yet" if progress.increase is None else f"{progress.increase:+.3%}"
        gap = "-" if progress.gap is None else f"{progress.gap:.3%}"
        line = (
            f"{progress.seconds:6.1f} s  {progress.stage:<16} plan {increase}  bound {progress.bound:+.3%}  gap {gap}"
        )
        if self.live is not None:
            self.live.update(Text(f"{line}  (Ctrl-C keeps the best plan)"), refresh=True)
        elif now != self.last:
            print(line, file=sys.stderr, flush=True)
        self.last = now


def _print(plan: Plan, graph: Graph, name: str) -> None:
    table = Table(box=box.ROUNDED, title=f"{graph.name or name}, {plan.planner}", show_header=False)
    peak, told = peak_of(graph), figures(plan, graph)
    table.add_row("status", plan.status)
    table.add_row("duration increase", f"{plan.increase:.3%}")
    table.add_row("bound", f"{told['bound']:.3%}: no plan does with less")
    table.add_row("certified gap", f"{plan.gap:.3%}")
    table.add_row("peak", f"{format_bytes(plan.peak)} ({plan.peak} bytes)")
    table.add_row(
        "budget", f"{format_bytes(plan.budget)} ({plan.budget / peak:.1%} of the step's own {format_bytes(peak)})"
    )
    table.add_row("recomputed", f"{told['recomputed']:,} runs beside {told['nodes']:,}")
    if "paging" in plan.about:
        out, back = (format_bytes(plan.about[key]) for key in ("paged_out", "paged_in"))
        table.add_row("paged", f"{out} out, {back} in")
    for key in ("joules", "joules_base"):
        if key in plan.about:
            table.add_row(
                key.replace("_", " of the step by itself, ").replace(", base", ""), f"{plan.about[key]:.4g} J"
            )
    table.add_row("fragmentation", f"{told['fragmentation']:.2%}")
    table.add_row("time", f"{plan.seconds:.1f} s")
    if "note" in plan.about:
        table.add_row("note", plan.about["note"])
    Console().print(table)
