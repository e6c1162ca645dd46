"""`coop compare`: policies over networks and memory ratios, as JSON, tables and pictures.

Finished points are kept: the same command, run again, plays what is missing and draws everything
anew.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from coop.commands import Work, options
from coop.commands.refusing import refusing
from coop.report.canvas import NoPictures, matplotlib
from coop.report.networks import trace_of, traces_of
from coop.report.page import page
from coop.report.plots import draw_all
from coop.report.points import Point, parse_ratios
from coop.report.results import Cell, Results
from coop.report.sweep import Sweep, SweepError
from coop.report.variants import Variant, ablation_of
from coop.spread import Cluster, ClusterError

INTERRUPTED = 130


@click.command()
@click.option("--models", default="all", show_default=True, help="Networks by name, or trace files; or all.")
@click.option("--policies", default="coop,dte,dtr", show_default=True, help="Also with parts switched: coop+no-window.")
@click.option(
    "--ratios",
    default="0.3:1.0:0.1",
    show_default=True,
    help="Budget / the step's own peak: a list, or first:last:step.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for all results.",
)
@click.option(
    "--traces", type=click.Path(path_type=Path), help="A folder with NAME.trace files, instead of coop's own networks."
)
@click.option("--device", default="a100", show_default=True, help="Whose costs coop's own networks are traced with.")
@click.option(
    "--neighbours",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 0.2),
    help="Judge each ratio by three, this far apart.",
)
@click.option("--ablation", is_flag=True, help="Also the first policy with each of its parts off in turn.")
@click.option("--lowest", is_flag=True, help="Also the lowest ratio that each policy can live with.")
@click.option(
    "--jobs", default=os.cpu_count() or 1, show_default="one for each core", type=click.IntRange(1), help="Processes."
)
@options.on
@options.steps
@options.limit
@click.option("--pictures/--no-pictures", default=True, help="Without them, matplotlib is not needed.")
def compare(
    models: str,
    policies: str,
    ratios: str,
    output: Path,
    traces: Path | None,
    device: str,
    neighbours: float,
    ablation: bool,
    lowest: bool,
    jobs: int,
    address: str | None,
    steps: int,
    limit: float,
    pictures: bool,
) -> Work:
    """Play networks under several policies at several memory ratios; write JSON, tables and
    pictures.

    Writes OUTPUT/index.md, the pictures beside it, and one JSON file for each point. What is
    finished is not played again: an interrupted comparison goes on where it stopped.
    """

    def work() -> None:
        with refusing(ValueError, NoPictures, SweepError, ClusterError):
            if pictures:
                matplotlib()  # better told now than after an hour
            variants = [Variant.parse(text) for text in policies.split(",")]
            wanted = parse_ratios(ratios)
            found = _traces(models, traces, output / "traces" / Path(device).stem, device)
            results = Results(
                Sweep(found, output, steps, limit),
                list(dict.fromkeys(variant.label for variant in variants)),
                wanted,
                neighbours,
                [variant.label for variant in ablation_of(variants[0])] if ablation else [],
                lowest,
            )
            with contextlib.nullcontext() if address is None else Cluster(address) as cluster:
                _run(results, jobs, cluster)
            drawn = draw_all(results, output) if pictures else {}
            settings = f"{steps} step{'s' if steps > 1 else ''}; an overhead of {limit - 1:.0%} counts as thrashing."
            (output / "index.md").write_text(page(results, drawn, settings))
        _print(results)
        print(f"written: {output / 'index.md'}")

    return work


def _traces(models: str, folder: Path | None, made: Path, device: str) -> dict[str, Path]:
    with Console(stderr=True).status("reading traces") as status:
        try:
            return traces_of(models, folder, lambda name: trace_of(name, made, device, status.update))
        except KeyboardInterrupt:
            status.stop()
            _interrupted("while networks were traced; those that are finished are kept")


def _run(results: Results, jobs: int, cluster: Cluster | None) -> None:
    wanted = set(results.wanted())
    missing = len(results.sweep.missing(wanted))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("comparing", total=missing)

        def tick(point: Point) -> None:
            progress.update(bar, advance=1, description=str(point))

        try:
            results.sweep.run(wanted, jobs, tick, cluster)
        except KeyboardInterrupt:
            progress.stop()
            done = len(wanted) - len(results.sweep.missing(wanted))
            _interrupted(f"with {done} of {len(wanted)} points done; the same command goes on from there")


def _interrupted(when: str) -> NoReturn:
    print(f"coop: interrupted {when}", file=sys.stderr)
    raise SystemExit(INTERRUPTED) from None


def _print(results: Results) -> None:
    def show(cell: Cell) -> str:
        if cell.overhead is None:
            return "-"
        return f"{100 * cell.overhead:.1f}" + ("" if cell.complete else "*")

    shown = Table(box=box.SIMPLE_HEAD, title="overhead in %, by memory ratio", pad_edge=False)
    shown.add_column("network", no_wrap=True)
    shown.add_column("policy", no_wrap=True)
    for ratio in results.ratios:
        shown.add_column(f"{ratio:g}", justify="right", no_wrap=True)
    for network in results.networks:
        for variant in results.variants:
            name = network if variant == results.variants[0] else ""
            shown.add_row(name, variant, *map(show, results.cells(network, variant)))
    shown.caption = "-: does not run. *: not at all neighbouring ratios." if results.distance else "-: does not run."
    Console().print(shown)
