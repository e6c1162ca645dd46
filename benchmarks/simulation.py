"""Makes docs/results.md: the eight networks of the paper under each policy, simulated; figures
asked for beside figures reached.

    coop compare --models all \\
        --policies coop,dte,dtr,coop-paper,dte+two-ended+partition,dtr+two-ended+partition \\
        --ratios 0.3:1.0:0.1 --neighbours 0.02 --ablation --lowest -o results/compare
    python benchmarks/simulation.py results/compare     # the JSON of the comparison -> docs/figures/simulation.json and pictures
    python benchmarks/simulator.py --json docs/figures/simulator.json
    python benchmarks/planners.py --json docs/figures/planners.json
    python benchmarks/simulation.py                     # docs/figures/{simul*,planners}.json -> docs/results.md

No figure in that page is written by hand.
"""

import argparse
import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import planning
from coop import models
from coop.report import page
from coop.report.points import parse_ratios
from coop.report.results import Results
from coop.report.sweep import Sweep
from coop.report.variants import Variant, ablation_of
from prose import wrapped

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = DOCS / "figures"
OUR_PLACEMENT = ("dte+two-ended+partition", "dtr+two-ended+partition")
POLICIES = ("coop", "dte", "dtr", "coop-paper", *OUR_PLACEMENT)
PICTURES = ("overhead", "fragmentation", "search", "ablation", "lowest")
JUDGED = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
THRASH = 1.0  # the overhead that a point counts with if it does not run


def collect(folder: Path) -> dict[str, Any]:
    """All that the page needs, out of a comparison."""
    traces = {path.stem: path for path in (folder / "traces" / "a100").glob("*.trace")}
    ablated = [variant.label for variant in ablation_of(Variant("coop"))]
    results = Results(
        Sweep({name: traces[name] for name in models.NAMES}, folder),
        POLICIES,
        parse_ratios("0.3:1.0:0.1"),
        0.02,
        ablated,
        True,
    )
    cells = [
        {
            "network": network,
            "policy": policy,
            "ratio": ratio,
            "ran": len(cell.ran),
            "of": len(cell.answers),
            "overhead": cell.overhead,
            "fragmentation": cell.mean("fragmentation"),
        }
        for network in results.networks
        for policy in POLICIES
        for ratio in results.ratios
        for cell in [results.cell(network, policy, ratio)]
    ]
    lowest = {network: {policy: results.lowest(network, policy) for policy in POLICIES} for network in results.networks}
    tables = {
        "Overhead against memory ratio": page.how_to_read(results) + "\n" + page.overhead(results),
        "coop against the others": page.against(results),
        "Fragmentation": page.fragmentation(results),
        "Search": page.search(results),
        "Ablation": page.ablation(results),
        "Lowest ratio reached": page.lowest(results),
    }
    for name in PICTURES:
        shutil.copy(folder / f"{name}.png", FIGURES / f"simulation-{name}.png")
    return {"benchmark": "simulation", "cells": cells, "lowest": lowest, "tables": tables}


def asked(data: dict[str, Any]) -> str:
    cells = {(c["network"], c["policy"], c["ratio"]): c for c in data["cells"]}
    networks = list(data["lowest"])

    def overhead(network: str, policy: str, ratio: float) -> float | None:
        cell = cells[network, policy, ratio]
        return cell["overhead"] if cell["ran"] == cell["of"] else None

    lines: list[list[str]] = []

    def add(what: str, limit: str, reached: str, good: bool) -> None:
        lines.append([what, limit, reached, "yes" if good else "no"])

    three = [overhead("bert-large", policy, 0.5) for policy in ("coop", "dte", "dtr")]
    add(
        "BERT Large (16) at 50 %: overhead of coop / DTE / DTR",
        "at most 8 % (paper: 11 / 29 / 41 %)",
        " / ".join(map(page.percent, three)),
        three[0] is not None and three[0] <= 0.08,
    )
    saved = 1 - data["lowest"]["inception-v3"]["coop"]
    add("Inception V3 (96): memory saved by coop", "at least 65 %", page.percent(saved), saved >= 0.65)
    gaps = []
    for network in networks:
        for ratio in JUDGED:
            others = [o for policy in ("dte", "dtr") if (o := overhead(network, policy, ratio)) is not None]
            mine = overhead(network, "coop", ratio)
            if others:
                gaps.append(((THRASH if mine is None else mine) - min(others), network, ratio))
    worst = max(gaps)
    add(
        "every network, 0.9 to 0.4: coop less the better of DTR and DTE",
        "never above 1 point",
        f"{page.points(worst[0])} ({worst[1]} at {worst[2]:g})",
        worst[0] <= 0.01,
    )
    for other, limit in (("dte", 0.08), ("dtr", 0.12)):
        both, counted = [], []
        for network in networks:
            for ratio in JUDGED:
                mine, theirs = overhead(network, "coop", ratio), overhead(network, other, ratio)
                if mine is None and theirs is None:
                    continue
                counted.append((THRASH if mine is None else mine) - (THRASH if theirs is None else theirs))
                if mine is not None and theirs is not None:
                    both.append(mine - theirs)
        add(
            f"mean over networks and ratios 0.9 to 0.4: coop against {other.upper()}",
            f"at least {100 * limit:.0f} points lower",
            f"{page.points(fmean(both))} where both run ({len(both)}); {page.points(fmean(counted))} if a point that does not "
            f"run counts as thrashing ({len(counted)})",
            fmean(both) <= -limit,
        )
    lower = [n for n, low in data["lowest"].items() if low["coop"] <= min(low["dte"], low["dtr"])]
    add(
        "lowest ratio reached: coop lower than or equal to DTR and DTE",
        "all 8 networks",
        f"{len(lower)} of {len(networks)}",
        len(lower) == len(networks),
    )
    everywhere = [c["fragmentation"] for c in data["cells"] if c["policy"] == "coop" and c["fragmentation"] is not None]
    high = max(c["fragmentation"] for c in data["cells"] if c["policy"] == "coop" and c["ratio"] >= 0.7 and c["ran"])
    add("fragmentation of coop, mean", "below 3 %", page.percent(fmean(everywhere), 2), fmean(everywhere) < 0.03)
    add("fragmentation of coop, largest at 0.7 and above", "below 5 %", page.percent(high), high < 0.05)
    return page.table(["what", "asked", "reached", ""], lines)


def simulator(rows: list[dict[str, Any]]) -> str:
    """The simulator against the clock and against what it simulates. CPU time, on the machine of
    benchmarks/simulator.py."""
    play, search = (next(row for row in rows if row["kind"] == kind) for kind in ("play", "search"))
    found = [
        [f"a step of BERT Large ({play['ops']:,} ops) at 50 %, played", "under 1 s", f"{play['seconds']:.2f} s"],
        [
            f"a search with {search['storages']:,} storages resident: median, 99th percentile",
            "under 100, under 1,000 microseconds",
            f"{1e6 * search['median']:.0f}, {1e6 * search['p99']:.0f} microseconds",
        ],
    ]
    good = [play["seconds"] < 1, search["median"] < 1e-4 and search["p99"] < 1e-3]
    live = [row for row in rows if row["kind"] == "live" and row["played"] is not None and "error" not in row]
    worst = max(live, key=lambda row: abs(row["played"] - row["trained"]))
    gap = worst["played"] - worst["trained"]
    found.append(
        [
            "share of recomputation, played less trained",
            "within 2 points",
            f"{page.points(gap)} ({worst['model']} at {worst['ratio']:g})",
        ]
    )
    good.append(abs(gap) <= 0.02)
    models = list(dict.fromkeys(row["model"] for row in rows if row["kind"] == "live"))
    ratios = list(dict.fromkeys(row["ratio"] for row in rows if row["kind"] == "live"))
    cells = {(row["model"], row["ratio"]): row for row in rows if row["kind"] == "live"}

    def both(model: str, ratio: float) -> str:
        row = cells[model, ratio]
        return f"{page.percent(row['played'])} / {page.percent(row.get('trained'))}"

    lines = [[model, *(both(model, ratio) for ratio in ratios)] for model in models]
    return "\n".join(
        [
            page.table(
                ["the simulator", "asked", "reached", ""],
                [[*line, "yes" if ok else "no"] for line, ok in zip(found, good, strict=True)],
            ),
            "Share of recomputation in the time of all ops, played from the recording of one step / trained for real, in "
            "the same budget (a share of the step's peak):\n",
            page.table(["network of benchmarks/workloads.py", *(f"{ratio:g}" for ratio in ratios)], lines),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", nargs="?", type=Path, help="the folder that `coop compare` wrote")
    given = parser.parse_args()
    file = FIGURES / "simulation.json"
    if given.comparison:
        file.write_text(json.dumps(collect(given.comparison), indent=1) + "\n")
    data = json.loads(file.read_text())
    parts = [
        "# The eight networks of the paper, simulated\n",
        "Made by `benchmarks/simulation.py` from the JSON of `coop compare`: one step of each network at the paper's size, its "
        "costs from the a100 device model, played on the engine that trains. The other policies are as published "
        "(`src/coop/policies.py`); with `+two-ended+partition` they have the placement of coop.\n",
        "## Asked and reached\n",
        asked(data),
        simulator(json.loads((FIGURES / "simulator.json").read_text())["rows"]),
    ]
    pictures = dict(
        zip(
            ("Overhead against memory ratio", "Fragmentation", "Search", "Ablation", "Lowest ratio reached"),
            PICTURES,
            strict=True,
        )
    )
    for title, table in data["tables"].items():
        parts.append(f"## {title}\n")
        if title in pictures:
            parts.append(f"![{title}](figures/simulation-{pictures[title]}.png)\n")
        parts.append(table)
    if planned := planning.load():
        more = "More of the planners, and how they were measured: [results-planners.md](results-planners.md).\n"
        parts += ["## Planned beforehand\n", more, planning.networks(planned)]
    (DOCS / "results.md").write_text(wrapped("\n".join(parts)))
    print("written: docs/results.md")


if __name__ == "__main__":
    main()
