"""`python -m opinfo`: runs the sweep, or a part of it, and continues where it was stopped."""

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from opinfo.cases import Case
from opinfo.catalog import all_cases
from opinfo.report import show
from opinfo.state import State
from opinfo.verdicts import Verdict, examine
from opinfo.workers import run_all


@click.command()
@click.option("--state", type=click.Path(path_type=Path), help="what is done is written here, and not done again")
@click.option("--case", "keys", multiple=True, help="only these, by key or by a part of it")
@click.option("--share", default=1, help="only one case in so many")
@click.option("--programs", "limit", default=0, help="only so many programs of each case")
@click.option("--jobs", default=max(1, (os.cpu_count() or 2) // 2), help="processes, of two threads each")
@click.option("--timeout", default=120.0, help="seconds without a word after which a case is stuck")
def main(state: Path | None, keys: tuple[str, ...], share: int, limit: int, jobs: int, timeout: float) -> None:
    """Runs PyTorch's own test inputs plainly and in budgets, and compares. The status is 0 if all
    is well."""
    cases = [case for case in all_cases() if not keys or any(key in case.key for key in keys)]
    cases = [case for case in cases if _number(case) % share == 0]
    if not cases:
        raise click.UsageError("no case has such a key")
    done = State(state, limit)
    known = {verdict.case: verdict for verdict in done.verdicts()}
    verdicts = {case.key: known[case.key] for case in cases if case.key in known and known[case.key].is_fine}
    # Neighbours are alike in length: in a fixed random order the bar tells the truth.
    left = sorted((case for case in cases if case.key not in verdicts), key=_number)
    console = Console(width=None if os.isatty(1) else 160)
    try:
        _run(run_all(left, jobs, timeout, partial(examine, limit=limit)), len(left), verdicts, done, console)
    except KeyboardInterrupt:
        console.print(f"stopped; {len(verdicts)} of {len(cases)} cases are done")
    raise SystemExit(0 if show(verdicts.values(), console) and len(verdicts) == len(cases) else 1)


def _run(found: Iterator[Verdict], count: int, verdicts: dict[str, Verdict], done: State, console: Console) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[found]} findings"))
    # No thread of its own: a fork would copy its locks.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=count, found=0)
        findings = 0
        for verdict in found:
            verdicts[verdict.case] = verdict
            done.add(verdict)
            findings += not verdict.is_fine
            progress.update(bar, advance=1, found=findings, refresh=console.is_terminal)


def _number(case: Case) -> int:
    return int.from_bytes(hashlib.sha256(case.key.encode()).digest()[:8], "little")


if __name__ == "__main__":
    main()
