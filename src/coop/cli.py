"""The command `coop`.

    coop run --budget 4GiB train.py --its --own --args
    coop run --budget 400MiB --swap 8GiB train.py
    coop run --budget 4GiB --events run.events train.py
    coop run --measure train.py
    coop trace bert-large -o bert.trace
    coop simulate step.trace --budget 50% --policy dtr
    coop compare --models all --policies coop,dte,dtr --ratios 0.3:1.0:0.1 -o results/
    coop plan step.trace --budget 80% --planner auto -o step.plan
    coop memory-map step.trace --budget 50% -o map.png
    coop memory-map run.events -o map.png

What is wrong with the command itself is told in one sentence, with exit code 2. Otherwise the exit
code is the script's.
"""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click
from rich import box
from rich.console import Console
from rich.table import Table

from coop._version import __version__
from coop.budget import budget, measure
from coop.commands import Work, refuse
from coop.commands.compare import compare
from coop.commands.memory_map import memory_map
from coop.commands.plan import plan as plan_command
from coop.commands.simulate import simulate
from coop.commands.trace import trace
from coop.events import Stats
from coop.policies import POLICIES
from coop.run import run_script
from coop.sizes import format_bytes
from coop.tiers import Disk


def main() -> None:
    """The work is done after click has returned: click has its own idea of Ctrl-C and of
    errors."""
    try:
        work: Work | int | None = commands.main(prog_name="coop", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        usage.show()
        raise SystemExit(2) from None
    except click.ClickException as error:
        refuse(error.format_message())
    if not callable(work):  # --help and --version have said all there is to say
        raise SystemExit(work or 0)
    work()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="coop %(version)s")
def commands() -> None:
    """PyTorch programs inside a hard memory budget, to the same bits."""


@commands.command(context_settings={"allow_interspersed_args": False})
@click.option("--budget", "size", metavar="SIZE", help="The limit: bytes, or a size such as 600MiB or 4GB.")
@click.option("--policy", default="coop", show_default=True, metavar="NAME", help=f"{', '.join(POLICIES)}.")
@click.option("--swap", metavar="SIZE", help="Tensors may leave the budget for so much other memory, or file.")
@click.option("--swap-folder", metavar="FOLDER", help="They leave for a file in this folder.")
@click.option("--plan", metavar="FILE", help="Follow a plan of `coop plan` while the script does what was planned.")
@click.option("--events", metavar="FILE", help="Write what happens in the arena: `coop memory-map FILE` draws it.")
@click.option("--measure", "measuring", is_flag=True, help="No limit: tell peak and floor, to choose a budget by.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    size: str | None,
    policy: str,
    swap: str | None,
    swap_folder: str | None,
    plan: str | None,
    events: str | None,
    measuring: bool,
    script: str,
    args: tuple[str, ...],
) -> Work:
    """Run SCRIPT with its own ARGS inside a budget, and report on stderr at the end."""
    if measuring == (size is not None):
        raise click.UsageError("say either --budget SIZE or --measure")
    given = {"--plan": plan, "--swap": swap, "--swap-folder": swap_folder, "--events": events}
    for option, value in given.items():
        if measuring and value is not None:
            raise click.UsageError(f"{option} is for a budget; --measure has none")
    try:
        source = Path(script).read_bytes()
    except OSError as error:
        raise click.UsageError(f"cannot read the script {script!r}: {error.strerror}") from error
    try:
        tier = Disk(swap_folder, swap) if swap_folder is not None else swap
        memory = measure() if size is None else budget(size, policy, swap=tier, plan=plan, events=events or False)
        sys.argv[0] = script  # which the events name
        memory.__enter__()  # until the process ends
    except OSError as error:
        what = f"write the events to {events!r}" if error.filename == events else f"read the plan {plan!r}"
        raise click.UsageError(f"cannot {what}: {error.strerror}" if error.strerror else str(error)) from error
    except MemoryError as error:
        raise click.UsageError(f"the system does not give {size or 'that much'} of address space") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    report = _report_to(sys.stderr, _measured if measuring else _limited, events)
    return lambda: run_script(script, source, list(args), memory, report)


commands.add_command(trace)
commands.add_command(simulate)
commands.add_command(compare)
commands.add_command(plan_command)
commands.add_command(memory_map)


def _report_to(
    stream: TextIO, rows: Callable[[Stats], dict[str, str]], events: str | None
) -> Callable[[Stats, str], None]:
    def report(stats: Stats, unwritten: str) -> None:
        table = Table(box=box.ROUNDED, title="coop", show_header=False)
        for name, value in rows(stats).items():
            table.add_row(name, value)
        if events is not None:
            table.add_row("events", f"{events}: {unwritten}" if unwritten else events)
        with contextlib.suppress(OSError, ValueError):  # the script may have closed it
            Console(file=stream).print(table)

    return report


def _limited(stats: Stats) -> dict[str, str]:
    return {
        "budget": format_bytes(stats.budget),
        "peak": f"{format_bytes(stats.peak)} ({stats.peak / stats.budget:.0%})",
        "evictions": f"{stats.evictions:,}",
        "rematerialisations": f"{stats.rematerialisations:,}",
        "recomputation": _time_and_share(stats.recompute_seconds, stats),
        "search": _time_and_share(stats.search_seconds, stats),
        "fragmentation": f"{stats.fragmentation:.1%}",
        **(_swapped(stats) if stats.swaps_out else {}),
        **({"planned": f"{stats.planned_steps:,} steps"} if stats.planned_ops else {}),
    }


def _swapped(stats: Stats) -> dict[str, str]:
    return {
        "swapped out, in": f"{format_bytes(stats.swapped_out)}, {format_bytes(stats.swapped_in)}",
        "transfers": _time_and_share(stats.transfer_seconds, stats),
        "hidden behind ops": f"{stats.hidden_share:.0%} of that",
        "there in time, late": f"{stats.prefetch_hits:,}, {stats.prefetch_misses:,}",
    }


def _measured(stats: Stats) -> dict[str, str]:
    return {
        "peak": f"{format_bytes(stats.peak)} ({stats.peak} bytes)",
        "floor": f"{format_bytes(stats.floor)} ({stats.floor} bytes)",
        "time in ops": f"{stats.op_seconds:.2f} s",
    }


def _time_and_share(seconds: float, stats: Stats) -> str:
    share = seconds / stats.op_seconds if stats.op_seconds else 0.0
    return f"{seconds:.2f} s ({share:.1%} of the ops' time)"
