"""`python -m opinfo`: runs the sweep, or a part of it, and goes on where it was stopped."""

import hashlib
import os
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from opinfo.cases import Case
from opinfo.catalog import all_cases
from opinfo.report import show
from opinfo.state import read, write
from opinfo.verdicts import Verdict
from opinfo.workers import run_all


@click.command()
@click.option("--state", type=click.Path(path_type=Path), help="what is done is written here, and not done again")
@click.option("--case", "keys", multiple=True, help="only these, by key or by a part of it")
@click.option("--share", default=1, help="only one case in so many")
@click.option("--jobs", default=max(1, (os.cpu_count() or 2) // 2), help="processes, of two threads each")
@click.option("--timeout", default=120.0, help="seconds without a word after which a case is stuck")
def main(state: Path | None, keys: tuple[str, ...], share: int, jobs: int, timeout: float) -> None:
    """Runs PyTorch's own test inputs plainly and in budgets, and compares. The status is 0 if all is well."""
    cases = [case for case in all_cases() if not keys or any(key in case.key for key in keys)]
    cases = [case for case in cases if _number(case) % share == 0]
    if not cases:
        raise click.UsageError("no case has such a key")
    known = {verdict.case: verdict for verdict in read(state)}
    verdicts = {case.key: known[case.key] for case in cases if case.key in known and known[case.key].is_fine}
    # Neighbours are alike in length: in a fixed random order the bar tells the truth.
    left = sorted((case for case in cases if case.key not in verdicts), key=_number)
    console = Console(width=None if os.isatty(1) else 160)
    try:
        _run(left, verdicts, state, jobs, timeout, console)
    except KeyboardInterrupt:
        console.print(f"stopped; {len(verdicts)} of {len(cases)} cases are done")
    raise SystemExit(0 if show(verdicts.values(), console) and len(verdicts) == len(cases) else 1)


def _run(
    left: list[Case], verdicts: dict[str, Verdict], state: Path | None, jobs: int, timeout: float, console: Console
) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[found]} findings"))
    # No thread of its own: a fork would copy its locks.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(left), found=0)
        found = 0
        for verdict in run_all(left, jobs, timeout):
            verdicts[verdict.case] = verdict
            write(state, verdict)
            found += not verdict.is_fine
            progress.update(bar, advance=1, found=found, refresh=console.is_terminal)


def _number(case: Case) -> int:
    return int.from_bytes(hashlib.sha256(case.key.encode()).digest()[:8], "little")


if __name__ == "__main__":
    main()
