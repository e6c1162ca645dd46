"""The command `coop`.

    coop run --budget 4GiB train.py --its --own --args
    coop run --budget 400MiB --swap 8GiB train.py
    coop run --budget 4GiB --events run.events train.py
    coop run --measure train.py
    torchrun --nproc-per-node 2 -m coop run --budget 8GiB/node train.py
    coop trace bert-large -o bert.trace
    coop simulate step.trace --budget 50% --policy dtr
    coop compare --models all --policies coop,dte,dtr --ratios 0.3:1.0:0.1 -o results/
    coop plan step.trace --budget 80% --planner auto -o step.plan
    coop memory-map step.trace --budget 50% -o map.png
    coop memory-map run.events -o map.png

What is wrong with the command itself is told in one sentence, with exit code 2. Otherwise the exit
code is the script's.
"""

import sys
from pathlib import Path

import click

from coop._version import __version__
from coop.budget import budget, measure
from coop.commands import Work, refuse
from coop.commands.closing import LIMITED, MEASURED, ClosingReport
from coop.commands.compare import compare
from coop.commands.memory_map import memory_map
from coop.commands.plan import plan as plan_command
from coop.commands.simulate import simulate
from coop.commands.trace import trace
from coop.distributed.budgets import budget_of
from coop.distributed.gathering import Gathering
from coop.distributed.place import Place, place_in_environment
from coop.distributed.termination import say_when_terminated
from coop.policies import POLICIES
from coop.run import run_script
from coop.tiers import Disk


class _OfThisRank(click.UsageError):
    """Other ranks may not have it."""


def main() -> None:
    """The work is done after click has returned: click has its own idea of Ctrl-C and of
    errors."""
    try:
        work: Work | int | None = commands.main(prog_name="coop", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        usage.show()
        raise SystemExit(2) from None
    except click.ClickException as error:
        refuse(error.format_message(), isinstance(error, _OfThisRank))
    if not callable(work):  # --help and --version have said all there is to say
        raise SystemExit(work or 0)
    work()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="coop %(version)s")
def commands() -> None:
    """PyTorch programs inside a hard memory budget, to the same bits."""


@commands.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--budget",
    "size",
    metavar="SIZE",
    help="The limit: bytes, or a size such as 600MiB or 4GB. Under torchrun, for each rank; 8GiB/node is divided by the ranks of the machine, and 4GiB,2GiB are rank 0's and rank 1's.",
)
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
    """Run SCRIPT with its own ARGS inside a budget, and report on stderr at the end.

    Under torchrun, each rank has a budget of its own, and files are one for each rank: FILE.events
    is FILE.rank0.events on rank 0, and so is a plan where that file exists. Rank 0 reports for all.
    """
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
        place = place_in_environment()
        count = None if size is None else budget_of(size, place)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    alike = "," not in (size or "") and not (plan or events or swap_folder)

    def wrong(sentence: str) -> click.UsageError:
        """All ranks of a machine say the same, or each says its own."""
        return click.UsageError(sentence) if alike or place is None else _OfThisRank(f"{place}: {sentence}")

    if place is not None:
        plan, events = _plan_of(place, plan), None if events is None else place.name_for(events)
    try:
        tier = Disk(swap_folder, swap) if swap_folder is not None else swap
        memory = measure() if count is None else budget(count, policy, swap=tier, plan=plan, events=events or False)
        sys.argv[0] = script  # which the events name
        memory.__enter__()  # until the process ends
    except OSError as error:
        what = f"write the events to {events!r}" if error.filename == events else f"read the plan {plan!r}"
        raise wrong(f"cannot {what}: {error.strerror}" if error.strerror else str(error)) from error
    except MemoryError as error:
        raise wrong(f"the system does not give {size or 'that much'} of address space") from error
    except ValueError as error:
        raise wrong(str(error)) from error
    gathering = None if place is None else Gathering(place)
    report = ClosingReport(memory, MEASURED if measuring else LIMITED, sys.stderr, gathering, events)
    if place is not None:
        say_when_terminated(lambda: report.tell(failed=True))
    return lambda: run_script(script, source, list(args), report.tell)


commands.add_command(trace)
commands.add_command(simulate)
commands.add_command(compare)
commands.add_command(plan_command)
commands.add_command(memory_map)


def _plan_of(place: Place, plan: str | None) -> str | None:
    """step.rank0.plan on rank 0, if there is one; otherwise step.plan."""
    if plan is None:
        return None
    own = place.name_for(plan)
    return own if Path(own).exists() else plan
