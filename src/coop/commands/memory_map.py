"""`coop memory-map`: the arena over time as a picture, one panel for each policy."""

from pathlib import Path

import click

from coop.commands import Work, options
from coop.commands.refusing import refusing
from coop.report.canvas import FORMATS, NoPictures, matplotlib
from coop.report.memory_map import Panel, draw_panels, writable
from coop.report.variants import Variant
from coop.simulate.checked import above_the_floor, player_of
from coop.sizes import parse_budget
from coop.trace.formats import read_any


@click.command("memory-map")
@click.argument("file")
@options.budget
@click.option(
    "--policy",
    "policies",
    default="coop",
    show_default=True,
    help="Several, as in coop,dtr, are drawn one above the other.",
)
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
@options.steps
@options.limit
def memory_map(file: str, size: str, policies: str, output: Path, by: str, steps: int, limit: float) -> Work:
    """Draw the arena over time while the step in FILE is played inside a budget.

    Address goes up, time to the right; the colour tells sources, dear and cheap results and free memory apart. A run that
    does not fit is drawn up to where it ended.
    """  # fmt: skip

    def work() -> None:
        with refusing(ValueError, NoPictures):
            if not writable(output):
                raise ValueError(
                    f"{output} is not a picture that can be written: it should end in .{', .'.join(FORMATS)}"
                )
            matplotlib()
            variants = [Variant.parse(text) for text in policies.split(",")]
            budget = parse_budget(size)
            player = player_of(read_any(file))
            panels = []
            for variant in variants:
                switches = dict(variant.switches)
                count = above_the_floor(player, budget, player.floor(variant.policy, **switches))
                run = player.play(count, variant.policy, steps=steps, limit=limit, events=True, **switches)
                panels.append(Panel(f"{variant.label}{' in' if run.status == 'ok' else ':'} {run}", run.events))
            for written in draw_panels(panels, count, output, by):
                print(f"written: {written}")

    return work
