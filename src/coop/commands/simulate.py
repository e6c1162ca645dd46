"""`coop simulate`: what a budget would cost a recorded step.

The exit code is 0 whenever the question has an answer, and "it does not fit" is one: `status`
tells. A budget below the floor is refused with exit code 2, because no policy could ever serve it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from coop.commands import Work, options
from coop.commands.refusing import refusing
from coop.event_file import EventWriter, rows_of
from coop.plan.model.file import read as read_plan
from coop.plan.model.plan import Plan
from coop.policies import POLICIES, options_for
from coop.report.variants import SWITCHES, Variant
from coop.simulate import ideal as ideal_simulator
from coop.simulate.checked import above_the_floor, exactly, player_of
from coop.simulate.player import speeds_of
from coop.sizes import parse_budget, parse_bytes
from coop.trace.formats import read_any
from coop.trace.trace import Op, Trace


def switches(command: Callable[..., Any]) -> Callable[..., Any]:
    """A pair of flags for each part of a policy that can be switched."""
    for name in reversed(SWITCHES):
        flag = name.replace("_", "-")
        command = click.option(f"--{flag}/--no-{flag}", name, default=None, help=SWITCHES[name])(command)
    return command


@click.command()
@click.argument("file")
@options.budget
@click.option("--policy", default="coop", show_default=True, metavar="NAME", help=f"{', '.join(POLICIES)}.")
@options.steps
@options.limit
@click.option(
    "--swap-bandwidth",
    metavar="IN,OUT",
    help="Storages may leave with their bytes: so many a second come in, and so many go out (12GB,12GB).",
)
@click.option("--plan", "plan_file", metavar="FILE", help="Follow a plan of `coop plan`; the policy does the rest.")
@click.option("--events", "events_file", metavar="FILE", help="Write the events: `coop memory-map FILE` draws them.")
@click.option("--ideal", is_flag=True, help="A byte counter without addresses, as DTR's own simulator counts.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
@switches
def simulate(
    file: str,
    size: str,
    policy: str,
    steps: int,
    limit: float,
    swap_bandwidth: str | None,
    plan_file: str | None,
    events_file: str | None,
    ideal: bool,
    as_json: bool,
    **switched: bool | None,
) -> Work:
    """Play the step recorded in FILE (a trace, an operator log of DTR, or an execution trace of
    PyTorch) inside a budget.

    The status is ok, out_of_memory or thrash; the exit code is 0 for all three. Wrong input, and a
    budget below what the sources and the largest op need, end with exit code 2.
    """
    chosen = {name: value for name, value in switched.items() if value is not None}
    if ideal and (chosen or steps != 1 or plan_file or swap_bandwidth or events_file):
        raise click.UsageError(
            "--ideal has no addresses, no events, no switches, no plan, nowhere to swap to and one step"
        )

    def work() -> None:
        with refusing(ValueError):  # TraceError is one
            budget = parse_budget(size)
            variant = Variant(policy, tuple(chosen.items()))
            if not ideal:
                variant.options(1)  # refuses an unknown policy before a long file is read
            trace = read_any(file)
            figures = {"trace": trace.name or Path(file).name, "policy": variant.label, "steps": steps}
            if ideal:
                figures |= _ideal(trace, budget, variant, limit=limit)
            else:
                plan = None if plan_file is None else read_plan(plan_file)
                swap = {} if swap_bandwidth is None else _swapping(swap_bandwidth)
                figures |= _on_the_engine(
                    trace, budget, variant, swap, steps=steps, limit=limit, plan=plan, events_file=events_file
                )
        if as_json:
            print(json.dumps(figures, indent=2))
        else:
            _print(figures)

    return work


_SWAPPED = ("swapped_out", "swapped_in", "transfer_seconds", "hidden_seconds", "prefetch_hits", "prefetch_misses")


def _swapping(bandwidth: str) -> dict[str, Any]:
    """The switches for swapping."""
    rates = bandwidth.split(",")
    if len(rates) != 2:
        raise ValueError(f"{bandwidth!r} is not two bandwidths, in and out, such as '12GB,12GB'")
    into, out = (parse_bytes(rate, "a bandwidth") for rate in rates)
    return {"swap": True, "swap_in": float(into), "swap_out": float(out)}


def _on_the_engine(
    trace: Trace,
    budget: int | float,
    variant: Variant,
    swap: dict[str, Any],
    *,
    steps: int,
    limit: float,
    plan: Plan | None,
    events_file: str | None,
) -> dict[str, Any]:
    player = player_of(trace)
    switches = dict(variant.switches) | swap
    floor = player.floor(variant.policy, **switches)
    count = above_the_floor(player, budget, floor)
    watched = events_file is not None
    result = player.play(count, variant.policy, steps=steps, limit=limit, plan=plan, events=watched, **switches)
    if events_file is not None:
        device = {"alignment": player.alignment, **speeds_of(trace)}
        options = options_for(variant.policy, result.budget, 0, device | switches)
        with EventWriter(events_file, options, variant.label, trace.name) as writer:
            writer.write(rows_of(result.events))
    figures = result.to_json() | {"unlimited_peak": player.peak, "floor": floor.bytes}
    if switches.get("swap"):
        figures |= {name: getattr(result.stats, name) for name in _SWAPPED}
    if plan is not None:
        figures |= {"planner": plan.planner, "planned_steps": result.stats.planned_steps}
    if result.failed is not None:
        failed = trace.instructions[result.failed]
        figures["failed"] = {
            "instruction": result.failed,
            "op": failed.name if isinstance(failed, Op) else "source",
            "needed": result.needed,
        }
    return figures


def _ideal(trace: Trace, budget: int | float, variant: Variant, *, limit: float) -> dict[str, Any]:
    result = ideal_simulator(trace, budget, variant.policy, limit=limit)
    return {
        "status": result.status,
        "overhead": result.overhead,
        "budget": result.budget,
        "ratio": result.budget / result.baseline_peak if result.baseline_peak else 1.0,
        "peak": result.peak,
        "evictions": result.evictions,
        "rematerialisations": result.rematerialisations,
        "moves": 0,  # without addresses nothing is moved or fragmented
        "fragmentation": 0.0,
        "searches": 0,
        "search_seconds": 0.0,
        "unlimited_peak": result.baseline_peak,
    }


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _print(figures: dict[str, Any]) -> None:
    table = Table(box=box.ROUNDED, title=f"{figures['trace']}, {figures['policy']}", show_header=False)
    forms: dict[str, Callable[[Any], str]] = {
        "status": lambda status: status.replace("_", " "),
        "overhead": lambda overhead: "-" if overhead is None else f"{overhead:.4f}",
        "budget": exactly,
        "ratio": lambda ratio: f"{ratio:.1%} of the step's own peak",
        "unlimited_peak": exactly,
        "floor": exactly,
        "peak": exactly,
        "evictions": lambda count: f"{count:,}",
        "rematerialisations": lambda count: f"{count:,}",
        "moves": lambda count: f"{count:,}",
        "swapped_out": exactly,
        "swapped_in": exactly,
        "transfer_seconds": _milliseconds,
        "hidden_seconds": _milliseconds,
        "prefetch_hits": lambda count: f"{count:,}",
        "prefetch_misses": lambda count: f"{count:,}",
        "moved_bytes": exactly,
        "fragmentation": lambda share: f"{share:.1%}",
        "searches": lambda count: f"{count:,}",
        "planner": str,
        "planned_steps": str,
        "search_seconds": _milliseconds,
        "failed": lambda at: f"instruction {at['instruction']} ({at['op']}), for {exactly(at['needed'])} in one piece",
    }
    for name, form in forms.items():
        if name in figures:
            table.add_row(name.replace("_", " "), form(figures[name]))
    Console().print(table)
