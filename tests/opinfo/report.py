"""The results of a sweep: tables of counts, then every finding with the command that reproduces
it."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from opinfo.cases import Case
from opinfo.known import reason
from opinfo.verdicts import Verdict

STATUSES = ("same", "listed", "different", "broken", "crashed", "stuck")


def show(verdicts: Iterable[Verdict], console: Console) -> bool:
    """Whether all is well: nothing but equal bits and listed cases, and evictions among them."""
    everything = list(verdicts)
    console.print(_counts(everything))
    listed = sorted(
        {(v.case.rsplit("/", 2)[0], reason(Case.of(v.case)) or "") for v in everything if v.status == "listed"}
    )
    for name, why in listed:
        console.print(f"listed: {name}: {why}", highlight=False, markup=False)
    for leaf in sorted({": ".join(text.split(": ")[:2]) for verdict in everything for text in verdict.found}):
        console.print(f"leaf: {leaf}", highlight=False, markup=False)
    findings = [verdict for verdict in everything if not verdict.is_fine]
    for verdict in findings:
        console.print(
            f"\n{verdict.status}: {verdict.case}, {verdict.where}", style="red", highlight=False, markup=False
        )
        console.print(_shortened(verdict.what), highlight=False, markup=False)
    if findings:
        console.print("\nTo see one again: PYTHONPATH=tests python -m opinfo --case KEY", markup=False)
    evictions = sum(verdict.evictions for verdict in everything)
    if not evictions:
        console.print("nothing was evicted: this has shown nothing", style="red")
    return not findings and evictions > 0


def _counts(verdicts: list[Verdict]) -> Table:
    table = Table()
    for name in ("cases", "", "programs", "raise", "runs", "evictions", *STATUSES):
        table.add_column(name, justify="right" if name else "left")
    table.columns[0].justify = "left"
    groups = sorted({tuple(verdict.case.split("/")[::3]) for verdict in verdicts})
    for group in groups:
        _row(table, " ".join(group), [v for v in verdicts if tuple(v.case.split("/")[::3]) == group])
    table.add_section()
    _row(table, "all", verdicts)
    return table


def _row(table: Table, name: str, verdicts: list[Verdict]) -> None:
    sums = [sum(getattr(v, field) for v in verdicts) for field in ("programs", "raised", "runs", "evictions")]
    counts = [sum(v.status == status for v in verdicts) for status in STATUSES]
    table.add_row(name, *(f"{number:,}" for number in [len(verdicts), *sums, *counts]))


def _shortened(text: str, lines: int = 12, columns: int = 300) -> str:
    return "\n".join(f"  {line[:columns]}" for line in text.strip().splitlines()[:lines])
