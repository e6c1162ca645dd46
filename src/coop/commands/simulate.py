"""`coop simulate`: what a budget would cost a recorded step.

The exit code is 0 whenever the question has an answer, and "it does not fit" is one: `status` tells. A budget below the
floor is refused with exit code 2, because no policy could ever serve it.
"""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from coop.commands.refusal import Refusal, refusing
from coop.policies import POLICIES
from coop.report.variants import SWITCHES, Variant
from coop.simulate.player import THRASH, Player
from coop.sizes import format_bytes, parse_budget
from coop.trace.formats import read_any
from coop.trace.trace import Op, Source, Trace, TraceError

Work = Callable[[], None]
BUDGET_HELP = "Bytes (600MiB, 4GB), or a share of the step's own peak (50%, 0.5)."


def switches(command: Callable[..., Any]) -> Callable[..., Any]:
    """One pair of flags for each part of a policy that can be switched."""
    for name in reversed(SWITCHES):
        flag = name.replace("_", "-")
        command = click.option(f"--{flag}/--no-{flag}", name, default=None, help=SWITCHES[name])(command)
    return command


@click.command()
@click.argument("file")
@click.option("--budget", "size", required=True, metavar="SIZE", help=BUDGET_HELP)
@click.option("--policy", default="coop", show_default=True, metavar="NAME", help=f"{', '.join(POLICIES)}.")
@click.option("--steps", default=1, show_default=True, type=click.IntRange(1), help="Consecutive steps to play.")
@click.option(
    "--limit",
    default=THRASH,
    show_default=True,
    type=click.FloatRange(1.0, min_open=True),
    help="Overhead from which on a run counts as thrashing and is given up.",
)
@click.option("--ideal", is_flag=True, help="A byte counter without addresses, as DTR's own simulator counts.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
@switches
def simulate(
    file: str,
    size: str,
    policy: str,
    steps: int,
    limit: float,
    ideal: bool,
    as_json: bool,
    **switched: bool | None,
) -> Work:
    """Play the step recorded in FILE (a trace, or an operator log of DTR) inside a budget.

    The status is ok, out_of_memory or thrash; the exit code is 0 for all three. Wrong input, and a budget below what the
    sources and the largest op need, end with exit code 2.
    """
    chosen = {name: value for name, value in switched.items() if value is not None}
    if ideal and (chosen or steps != 1):
        raise click.UsageError("--ideal has no addresses, no switches and one step")

    def work() -> None:
        with refusing(ValueError):  # TraceError is one
            budget = parse_budget(size)
            variant = Variant(policy, tuple(chosen.items()))
            if not ideal:
                variant.options(1)  # refuses an unknown policy before a long file is read
            trace = read_any(file)
            figures = {"trace": trace.name or Path(file).name, "policy": variant.label, "steps": steps}
            play = _ideal if ideal else _on_the_engine
            figures |= play(trace, budget, variant, steps=steps, limit=limit)
        if as_json:
            print(json.dumps(figures, indent=2))
        else:
            _print(figures)

    return work


def player_of(trace: Trace) -> Player:
    """Refuses a trace that makes no sense to the engine, such as one that reads what nobody holds."""
    if not any(True for _ in trace.ops):
        raise TraceError("the trace has no ops: there is nothing to play")
    try:
        player = Player(trace)
    except (ValueError, IndexError) as error:
        raise TraceError(f"the trace cannot be played: {error}") from error
    if not player.peak:
        raise TraceError("the step of the trace needs no memory: every budget serves")
    return player


def above_the_floor(player: Player, budget: int | float) -> int:
    """The budget in bytes; refused if not even the largest op fits in beside the sources."""
    count = int(budget * player.peak) if isinstance(budget, float) else budget
    if count >= player.floor:
        return count
    setter = player.floor_setter
    number = player.trace.instructions.index(setter)
    what = f"op {setter.name!r}" if isinstance(setter, Op) else "a source" if isinstance(setter, Source) else "the step"
    raise Refusal(
        f"a budget of {_exactly(count)} is below the floor: {what} (instruction {number}) needs {_exactly(player.floor)}, its "
        f"own operands and everything that cannot be recomputed; the step's peak is {format_bytes(player.peak)}. "
        f"Tip: a share of {-(-1000 * player.floor // max(player.peak, 1)) / 1000:.1%} or more can serve."
    )


def _exactly(count: int) -> str:
    return f"{format_bytes(count)} ({count} bytes)"


def _on_the_engine(trace: Trace, budget: int | float, variant: Variant, *, steps: int, limit: float) -> dict[str, Any]:
    player = player_of(trace)
    result = player.play(
        above_the_floor(player, budget), variant.policy, steps=steps, limit=limit, **dict(variant.switches)
    )
    figures = result.to_json() | {"unlimited_peak": player.peak, "floor": player.floor}
    if result.failed is not None:
        failed = result.failed
        figures["failed"] = {
            "instruction": trace.instructions.index(failed),
            "op": failed.name if isinstance(failed, Op) else "source",
            "needed": result.needed,
        }
    return figures


def _ideal(trace: Trace, budget: int | float, variant: Variant, *, steps: int, limit: float) -> dict[str, Any]:
    try:
        module = importlib.import_module("coop.simulate.ideal")
    except ModuleNotFoundError:
        raise Refusal("this coop has no ideal simulator") from None
    result: dict[str, Any] = module.ideal(trace, budget, variant.policy, limit=limit).to_json()
    return result


def _print(figures: dict[str, Any]) -> None:
    table = Table(box=box.ROUNDED, title=f"{figures['trace']}, {figures['policy']}", show_header=False)
    forms: dict[str, Callable[[Any], str]] = {
        "status": lambda status: status.replace("_", " "),
        "overhead": lambda overhead: f"{overhead:.4f}",
        "budget": _exactly,
        "ratio": lambda ratio: f"{ratio:.1%} of the step's own peak",
        "unlimited_peak": _exactly,
        "floor": _exactly,
        "peak": _exactly,
        "evictions": lambda count: f"{count:,}",
        "rematerialisations": lambda count: f"{count:,}",
        "moves": lambda count: f"{count:,}",
        "moved_bytes": _exactly,
        "fragmentation": lambda share: f"{share:.1%}",
        "searches": lambda count: f"{count:,}",
        "search_seconds": lambda seconds: f"{seconds * 1e3:.3f} ms",
        "failed": lambda at: f"instruction {at['instruction']} ({at['op']}), for {_exactly(at['needed'])} in one piece",
    }
    for name, form in forms.items():
        if name in figures:
            table.add_row(name.replace("_", " "), form(figures[name]))
    Console().print(table)
