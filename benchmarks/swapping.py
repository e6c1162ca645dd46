"""Makes docs/results-swap.md out of docs/figures/swap*.json, which benchmarks/swap.py writes.

    python benchmarks/swap.py --json docs/figures/swap.json
    python benchmarks/swapping.py

No figure in that page is written by hand.
"""

import json
from pathlib import Path
from typing import Any

from coop.report.page import table
from prose import wrapped

DOCS = Path(__file__).parents[1] / "docs"
MODELS = {"bert6": "BERT, 6 layers, 16 x 128", "resnet50": "ResNet-50"}
Row = dict[str, Any]

HEADER = """# Results: swapping beside recomputing

Made by `benchmarks/swapping.py` from the JSON of `benchmarks/swap.py`, whose header says what is measured. {machines}.
"""


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def verdict(good: bool) -> str:
    return "yes" if good else "no"


class Page:
    def __init__(self, files: list[Path]) -> None:
        contents = [json.loads(file.read_text()) for file in files]
        self.rows: list[Row] = [row for content in contents for row in content["rows"]]
        machines = {
            f"{c['machine']['date']}, {c['machine']['processor']}, torch {c['machine']['torch']}" for c in contents
        }
        self.machines = "; ".join(sorted(machines))

    def part(self, name: str, **match: Any) -> list[Row]:
        rows = [row for row in self.rows if row["part"] == name]
        return [row for row in rows if all(row.get(key) == value for key, value in match.items())]

    def live(self, model: str, method: str) -> Row:
        return next(iter(self.part("live", model=model, method=method)), {})

    def ratios(self, model: str) -> list[str]:
        rows = self.part("live", model=model)
        return [row["method"].split("@")[1] for row in rows if row["method"].startswith("coop+swap@0")]

    # --- figures asked for ------------------------------------------------------------------------------------------------

    def asked(self) -> str:
        lines: list[list[str]] = []

        def add(what: str, asked: str, reached: str, good: bool) -> None:
            lines.append([what, asked, reached, verdict(good)])

        ran = [
            row
            for row in self.part("live", model="bert6")
            if row["method"].startswith("coop+swap@0") and row.get("cpu")
        ]
        if ran:
            least = min(ran, key=lambda row: row["ratio"])
            same = "equal bits" if least["bits"] else "other bits"
            add("BERT: smallest share of eager's peak tried that trains", "0.35", f"{least['ratio']:.2f}, {same}",
                least["ratio"] <= 0.351 and least["bits"])  # fmt: skip
        half = self.live("bert6", "coop+swap@0.5")
        if half.get("cpu"):
            add(
                "BERT at 0.5: time / eager, CPU and wall",
                "1.25",
                f"{half['cpu']:.2f}, {half['wall']:.2f}",
                half["cpu"] <= 1.25,
            )
        for model in MODELS:
            row = self.live(model, "coop+swap@0.5")
            if row.get("hidden") is not None:
                add(
                    f"{MODELS[model]} at 0.5: share of transfer time hidden",
                    "0.70",
                    number(row["hidden"]),
                    row["hidden"] >= 0.7,
                )
        for model in MODELS:
            for ratio in self.ratios(model):
                both = self.live(model, f"coop+swap@{ratio}")
                others = {name: self.live(model, f"{name}@{ratio}").get("cpu") for name in ("delta+swap", "coop")}
                best = min((time for time in others.values() if time), default=None)
                if both.get("cpu") and best:
                    shown = ", ".join(f"{name} {number(time)}" for name, time in others.items())
                    add(f"{MODELS[model]} at {ratio}: coop+swap / the best of {shown}", "1.03",
                        f"{both['cpu'] / best:.2f}", both["cpu"] <= 1.03 * best)  # fmt: skip
        for way, rival in (("coop+swap@save_on_cpu", "save_on_cpu"), ("coop+disk@save_on_disk", "save_on_disk")):
            for model in MODELS:
                ours, theirs = self.live(model, way).get("cpu"), self.live(model, rival).get("cpu")
                if ours and theirs:
                    add(
                        f"{MODELS[model]}: time / {rival}'s, in its memory",
                        "below 1",
                        f"{ours / theirs:.2f}",
                        ours < theirs,
                    )
        for row in self.part("batches"):
            add(f"simulated, {row['network']}, {row['policy']}+swap: largest batch / alone", number(row["asked"]),
                f"{row['times']:.2f}, at {row['overhead']:.2f} of the time", row["times"] >= row["asked"])  # fmt: skip
        for policy in ("delta+swap", "coop+swap"):
            saved = [row["saved"] for row in self.part("networks", policy=policy)]
            if saved:
                shown = f"{min(saved):.0%} to {max(saved):.0%}"
                add(
                    f"simulated, {len(saved)} networks: memory saved by {policy}",
                    "40 to 70 %",
                    shown,
                    min(saved) >= 0.4,
                )
        return table(["what", "asked", "reached", ""], lines)

    # --- tables -----------------------------------------------------------------------------------------------------------

    def ways(self, model: str) -> str:
        lines = []
        for row in self.part("live", model=model):
            stats = row.get("stats") or {}
            lines.append(
                [
                    row["method"],
                    number(row["ratio"]),
                    number(row.get("cpu")),
                    number(row.get("wall")),
                    number(row.get("hidden")) if stats.get("swaps_out") else "-",
                    f"{stats['prefetch_hits']} / {stats['prefetch_misses']}" if stats.get("swaps_in") else "-",
                    number(row.get("recomputation"), ".1%"),
                    row["error"] or ("same" if row["bits"] else "differ"),
                ]
            )
        columns = [
            "way",
            "memory / eager",
            "CPU / eager",
            "wall / eager",
            "hidden",
            "in time / late",
            "recomputed",
            "bits",
        ]
        return table(columns, lines)

    def networks(self) -> str:
        policies = list(dict.fromkeys(row["policy"] for row in self.part("networks")))
        lines = []
        for name in dict.fromkeys(row["network"] for row in self.part("networks")):
            cells = [self.part("networks", network=name, policy=policy)[0] for policy in policies]
            lines.append([name, *(f"{cell['lowest']:.0%} ({number(cell['overhead'])})" for cell in cells)])
        return table(["network", *policies], lines)

    def __str__(self) -> str:
        parts = [HEADER.format(machines=self.machines), "## The figures asked for\n\n" + self.asked()]
        parts += [
            f"## {title}, Adam\n\n{self.ways(model)}"
            for model, title in MODELS.items()
            if self.part("live", model=model)
        ]
        if self.part("networks"):
            parts.append(
                "## The lowest budgets, simulated\n\nShare of the step's own peak, in steps of 10 %, at which a step that is known takes less than "
                "twice its time; in brackets its time there.\n\n" + self.networks()
            )
        return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main() -> None:
    if files := sorted((DOCS / "figures").glob("swap*.json")):
        (DOCS / "results-swap.md").write_text(wrapped(str(Page(files))))


if __name__ == "__main__":
    main()
