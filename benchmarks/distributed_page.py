"""Puts the figures of benchmarks/distributed.py and benchmarks/at_scale.py into
docs/distributed.md.

They stand between marks in that page. No figure there is written by hand.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coop.report.page import table

DOCS = Path(__file__).parents[1] / "docs"
GIB = 2**30
Row = dict[str, Any]


def gibibytes(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def seconds(value: float) -> str:
    return f"{value / 1e9:.2f} s"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def training(rows: list[Row]) -> str:
    """Of benchmarks/distributed.py."""
    found = {(row["ranks"], row["way"]): row for row in rows if row["way"] != "end"}
    ranks = max(number for number, _ in found)
    ends = [row["seconds"] for row in rows if row["way"] == "end"]
    beside = found[ranks, "half"]["cpu"] / found[1, "half"]["cpu"]
    return table(
        ["", "measured", "asked"],
        [
            [f"DDP on {ranks} ranks, nothing evicted: CPU time / plain DDP", f"{found[ranks, 'large']['cpu']:.2f}", "1.03"],
            [f"DDP on {ranks} ranks in half of the activations", f"{found[ranks, 'half']['cpu']:.2f}", ""],
            ["one process without DDP in half of the activations", f"{found[1, 'half']['cpu']:.2f}", ""],
            ["the first of these over the second", f"{beside:.2f}", "1.05"],
            ["a rank out of budget: seconds until all have ended", f"{max(ends):.1f}", "10"],
        ],
    ).strip("\n")  # fmt: skip


def at_scale(rows: list[Row]) -> str:
    """Of benchmarks/at_scale.py."""
    ranks = [row for row in rows if row["part"] == "ranks" and not row["options"]]
    keep = next(row for row in rows if row["part"] == "ranks" and row["options"])
    budgets = [row for row in rows if row["part"] == "budgets"]
    chosen = next(row for row in ranks if row["world"] == keep["world"])
    first = table(
        ["ranks", "parameters, gradients, moments", "peak", "floor", "time of a step", "of that, collectives"],
        [
            [str(row["world"]), gibibytes(row["held"]), gibibytes(row["peak"]), gibibytes(row["floor"]),
             seconds(row["step"]), seconds(row["collectives"])]
            for row in ranks
        ],
    )  # fmt: skip
    second = table(
        [
            "budget",
            "share of the peak",
            "more time, policy `coop`",
            "more time, `coop plan`",
            "no plan does with less than",
        ],
        [
            [
                gibibytes(row["budget"]),
                f"{row['ratio']:.0%}",
                *(percent(row[name]) for name in ("policy", "plan", "bound")),
            ]
            for row in budgets
        ],
    )
    text = [
        f"Each trace has {chosen['ops']:,} ops and was made within {max(row['seconds'] for row in ranks):.0f} seconds.",
        first,
        "What is sharded falls with the number of ranks, and soon activations are most of what is left.\n"
        f"That is what a budget helps against. Rank 0 of {chosen['world']}:",
        second,
        "With `--keep`, gathered parameters stay until the backward pass, and a rank's peak is\n"
        f"{gibibytes(keep['peak'])} and its floor {gibibytes(keep['floor'])}. Its collectives take "
        f"{seconds(keep['collectives'])} instead of {seconds(chosen['collectives'])}.",
    ]
    return "\n\n".join(part.strip("\n") for part in text)


def fill(name: str, section: Callable[[list[Row]], str]) -> None:
    """Writes the section between its marks, from the file of its name."""
    figures, page = DOCS / "figures" / f"{name}.json", DOCS / "distributed.md"
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text().partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page.name} has no place for {name}")
    page.write_text(f"{before}{begin}\n{section(json.loads(figures.read_text())['rows'])}\n{end}{after}")


def main() -> None:
    fill("distributed", training)
    fill("at-scale", at_scale)


if __name__ == "__main__":
    main()
