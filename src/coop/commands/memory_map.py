"""`coop memory-map`: the arena over time as a picture, of a recorded step or of a run's events.

coop memory-map step.trace --budget 50% --policy coop,dtr -o map.png
coop memory-map run.events --from 3600 --to 3602 -o map.png
"""

import math
import sys
from pathlib import Path

import click

from coop.commands import Work, options
from coop.commands.refusing import refusing
from coop.event_file import EventFile, EventFileError, is_event_file
from coop.report.canvas import FORMATS, NoPictures, matplotlib
from coop.report.memory_map import draw_timelines, writable
from coop.report.rebuild import rebuild
from coop.report.timeline import Timeline
from coop.report.variants import Variant
from coop.simulate.checked import above_the_floor, player_of
from coop.sizes import format_bytes, parse_budget
from coop.trace.formats import read_any

Runs = tuple[int, list[str], list[Timeline]]
"""The budget, the titles, and the timelines."""


@click.command("memory-map")
@click.argument("file")
@click.option("--budget", "size", metavar="SIZE", help=f"Of a trace: {options.BUDGET_HELP}")
@click.option("--policy", "policies", help="Of a trace. Several, as in coop,dtr, are drawn one above the other. [coop]")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help=f"The picture: .{', .'.join(FORMATS)}; without an ending, PNG and SVG.",
)
@click.option(
    "--by",
    default="time",
    show_default=True,
    type=click.Choice(["time", "events"]),
    help="Time to the right, or each change of the arena.",
)
@click.option("--from", "since", type=click.FloatRange(0.0), metavar="SECONDS", help="Draw only what comes after.")
@click.option("--to", "until", type=click.FloatRange(0.0), metavar="SECONDS", help="Draw only what comes before.")
@click.option("--steps", type=click.IntRange(1), help="Of a trace: consecutive steps to play. [1]")
@options.limit
def memory_map(
    file: str,
    size: str | None,
    policies: str | None,
    output: Path,
    by: str,
    since: float | None,
    until: float | None,
    steps: int | None,
    limit: float,
) -> Work:
    """Draw the arena over time: of the step in FILE (a trace) played inside a budget, or of the
    run whose events are in FILE (an event file of `coop run --events` or `coop simulate
    --events`).

    Address goes up, time to the right; the colour tells sources, expensive and cheap results,
    transfers and free memory apart. A run that does not fit is drawn up to where it ended.
    """  # fmt: skip

    def work() -> None:
        with refusing(ValueError, NoPictures):
            if not writable(output):
                raise ValueError(
                    f"{output} is not a picture that can be written: it should end in .{', .'.join(FORMATS)}"
                )
            matplotlib()
            variants = [Variant.parse(text) for text in (policies or "coop").split(",")]
            part = (by, since or 0.0, math.inf if until is None else until)
            if is_event_file(file):
                for option, value in {"--budget": size, "--policy": policies, "--steps": steps}.items():
                    if value is not None:
                        raise ValueError(f"{option} is for a trace; {file} holds the events of a run, as it was")
                budget, titles, runs = _recorded(file, part)
            elif size is None:
                raise ValueError(f"--budget is missing: {file} is not an event file, and a trace is played in a budget")
            else:
                budget, titles, runs = _played(file, size, variants, steps or 1, limit, part)
            for written in draw_timelines(titles, runs, budget, output, by):
                print(f"written: {written}")

    return work


def _played(
    file: str, size: str, variants: list[Variant], steps: int, limit: float, part: tuple[str, float, float]
) -> Runs:
    budget = parse_budget(size)
    player = player_of(read_any(file))
    titles, runs, count = [], [], 0
    for variant in variants:
        switches = dict(variant.switches)
        count = above_the_floor(player, budget, player.floor(variant.policy, **switches))
        run = player.play(count, variant.policy, steps=steps, limit=limit, events=True, **switches)
        titles.append(f"{variant.label}{' in' if run.status == 'ok' else ':'} {run}")
        runs.append(rebuild(run.events, *part))
    return count, titles, runs


def _recorded(file: str, part: tuple[str, float, float]) -> Runs:
    events = EventFile(file)
    try:
        run = rebuild(events, *part)
    except EventFileError:
        raise
    except ValueError as error:
        raise EventFileError(f"{file}: {error}") from None
    if events.whole is False:
        print(f"coop: {file} has no end: the program was killed. It is drawn up to there.", file=sys.stderr)
    return events.budget, [_title(events, run)], [run]


def _title(events: EventFile, run: Timeline) -> str:
    """The title that a simulation would have, as far as the events tell."""
    parts = [f"{run.count('evict') + run.count('leave'):,} evicted", f"{run.count('restore'):,} recomputed"]
    if moved := run.count("move"):
        parts.append(f"{moved:,} moved")
    if run.transfers:
        out, back = (format_bytes(run.transferred(direction)) for direction in ("out", "in"))
        parts.append(f"{out} written out, {back} read back")
    program = f"{events.program}, " if events.program else ""
    return f"{program}{events.policy} in {format_bytes(events.budget)}: {', '.join(parts)}"
