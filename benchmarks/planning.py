"""Makes docs/results-planners.md out of docs/figures/planners.json, which benchmarks/planners.py
writes; and the table of the eight networks, for docs/results.md (simulation.py).

    python benchmarks/planners.py --json docs/figures/planners.json
    python benchmarks/planning.py

No figure in these pages is written by hand.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from coop.report.page import percent, table
from prose import wrapped

DOCS = Path(__file__).parents[1] / "docs"
FILE = DOCS / "figures" / "planners.json"
COLUMNS = {
    "keep-all": "keep-all",
    "chen-sqrt": "chen-sqrt",
    "chen-greedy": "chen-greedy",
    "treeverse": "treeverse",
    "treewidth": "treewidth",
    "dtr": "DTR",
    "dte": "DTE",
    "coop": "coop",
    "duration_increase": "auto",
    "followed": "auto, followed in 0.5 % more",
    "bound": "bound",
}
TABLES = ("networks", "poet")
"""Parts of which nothing was asked but a table."""
VERDICT = {True: "yes", False: "no", None: ""}
Rows = list[dict[str, Any]]


def load() -> dict[str, Any] | None:
    """None: nothing was measured yet."""
    return json.loads(FILE.read_text()) if FILE.exists() else None


def part(data: dict[str, Any], name: str) -> Rows:
    return [row for row in data["rows"] if row["part"] == name]


def asked(data: dict[str, Any]) -> str:
    """Seeds of the same graph are one line."""
    lines = []
    judged = [row for row in data["rows"] if row["part"] not in TABLES and row["reached"]]
    order = list(dict.fromkeys((row["part"], row["what"], row["asked"]) for row in judged))
    judged.sort(key=lambda row: order.index((row["part"], row["what"], row["asked"])))
    for (_, what, limit), several in groupby(judged, key=lambda row: (row["part"], row["what"], row["asked"])):
        rows = list(several)
        verdict = VERDICT[all(row["good"] for row in rows)] if limit else ""
        lines.append([what, limit or "-", "; ".join(row["reached"].replace("|", "/") for row in rows), verdict])
    return table(["what", "asked", "reached", ""], lines)


def networks(data: dict[str, Any]) -> str:
    rows = part(data, "networks")
    lines = []
    for name, several in groupby(rows, key=lambda row: row["network"]):
        for number, row in enumerate(several):
            cells = [percent(row.get(key)) for key in COLUMNS] if "error" not in row else ["failed"] * len(COLUMNS)
            seconds = "-" if row.get("seconds") is None else f"{row['seconds']:.0f}"
            first = ["" if number else name, f"{row['ratio']:g}"]
            lines.append([*first, *cells, percent(row.get("gap"), 2), seconds])
    limit = max((row["limit"] for row in rows if "limit" in row), default=0)
    return (
        "What a step takes more than without a budget, at a share of its peak. Planners know the step beforehand and "
        "count bytes; DTR, DTE and coop decide while it runs, and place what they keep (simulated, in the same bytes). "
        "auto, followed: the engine carries out auto's plan, placement included. bound: no plan takes less, by a "
        "linear program. gap: no plan is faster than auto's by more than that. s: seconds that auto took, of "
        f"{limit:g}. -: does not fit, does not run, or was not found in time. What is left to win "
        "lies between the bound and coop.\n\n" + table(["network", "ratio", *COLUMNS.values(), "gap", "s"], lines)
    )


def poet(data: dict[str, Any]) -> str:
    rows = part(data, "poet")
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    lines = []
    for (name, device, way), several in groupby(rows, key=lambda row: (row["network"], row["device"], row["share"])):
        found = {row["kind"]: row for row in several}
        sized = next((row for row in found.values() if "step_peak" in row), None)
        base = next((row["joules_base"] for row in found.values() if row["joules"] is not None), None)

        def show(row: dict[str, Any] | None, base: float | None = base) -> str:
            if row is None or row["joules"] is None or base is None:
                return "failed" if row and "error" in row else "-"
            return f"{row['joules']:.2f} ({100 * (row['joules'] / base - 1):+.2f} %)"

        where = f"{way:g}"
        if sized:
            where += f" ({sized['budget'] / 2**20:.1f} of {sized['step_peak'] / 2**20:.1f} MiB)"
        lines.append(
            [
                f"{name}, {device}",
                where,
                "-" if base is None else f"{base:.2f}",
                *(show(found.get(kind)) for kind in kinds),
            ]
        )
    return (
        "Joules of one training step with one example; budgets are a share of the way from the floor to the peak. "
        "integrated: rematerialisation and paging; the others have one of them only. -: no plan was found.\n\n"
        + table(["", "budget", "without a budget", *kinds], lines)
    )


def live(data: dict[str, Any]) -> str:
    lines = []
    for row in part(data, "live"):
        if "error" in row:
            lines.append([row["what"], *["-"] * 9])
            continue
        cpu = row["cpu"]
        lines.append(
            [
                row["network"],
                f"{row['ratio']:.2f}",
                "yes" if row["same_bits"] else "no",
                *(percent(row[key]) for key in ("planned", "measured", "online")),
                f"{row['runs_again']} / {row['replays']:.0f}",
                *("-" if cpu[way] is None else f"{cpu[way]:.3f}" for way in ("eager", "plan", "online")),
            ]
        )
    columns = [
        "",
        "of the peak",
        "same bits",
        "recomputed: planned",
        "with the plan",
        "without",
        "ops run again: plan / live",
    ]
    return "Share of recomputation in the time of all ops, and CPU seconds for a step.\n\n" + table(
        [*columns, "eager, s", "with the plan, s", "without, s"], lines
    )


def compiled(data: dict[str, Any]) -> str:
    rows = [row for row in part(data, "compile") if "peaks" in row]
    if not rows:
        return ""
    lines = [
        [
            f"{row['network']} ({row['eager'] / 2**20:.2f} eager)",
            row["solver"],
            *(f"{peak / 2**20:.2f}" for peak in row["peaks"]),
            "yes" if row["monotone"] else "no",
        ]
        for row in rows
    ]
    return (
        "Peak of forward and backward for real, MiB, by `activation_memory_budget` (backend aot_eager). dp and greedy "
        "are torch's own solvers.\n\n"
        + table(["network", "solver", *(f"{budget:g}" for budget in rows[0]["budgets"]), "never down"], lines)
    )


def text(data: dict[str, Any]) -> str:
    machine = data["machine"]
    seeds = sorted({row["seed"] for row in data["rows"] if "seed" in row})
    scales = {row["part"]: row["scale"] for row in data["rows"]}
    short = ", ".join(f"{name} x{scale:g}" for name, scale in scales.items() if scale != 1)
    parts = [
        "# Offline planners: figures asked for and figures reached\n",
        "Made by `benchmarks/planning.py` from the JSON of `benchmarks/planners.py`, whose header says what is "
        f"measured. {machine['date']}, {machine['processor']}, {machine['cores']} cores, torch {machine['torch']}; "
        f"seeds {', '.join(map(str, seeds))}, in this order.\n",
    ]
    if short:
        parts.append(f"Time limits are not those asked for: {short}.\n")
    sections = {
        "Asked and reached": asked,
        "The eight networks": networks,
        "Energy": poet,
        "Live": live,
        "torch.compile": compiled,
    }
    for title, section in sections.items():
        parts.append(f"## {title}\n\n{section(data)}")
    return "\n".join(parts)


def main() -> None:
    data = load()
    if data is None:
        raise SystemExit(
            "docs/figures/planners.json is missing: python benchmarks/planners.py --json docs/figures/planners.json"
        )
    (DOCS / "results-planners.md").write_text(wrapped(text(data)))
    print("written: docs/results-planners.md")


if __name__ == "__main__":
    main()
