"""Puts the figures of docs/figures/at-scale.json, which benchmarks/at_scale.py writes, into docs/distributed.md.

They stand between two marks in that page. No figure there is written by hand.
"""

import json
from pathlib import Path
from typing import Any

from coop.report.page import table

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- at-scale: begin -->", "<!-- at-scale: end -->"
GIB = 2**30
Row = dict[str, Any]


def gibibytes(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def seconds(value: float) -> str:
    return f"{value / 1e9:.2f} s"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def section(rows: list[Row]) -> str:
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


def main() -> None:
    figures = DOCS / "figures" / "at-scale.json"
    page = DOCS / "distributed.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not figures.exists() or not rest:
        return
    made = section(json.loads(figures.read_text())["rows"])
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    main()
