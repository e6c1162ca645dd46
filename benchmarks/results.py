"""Makes docs/results-training.md out of the JSON that the other benchmarks write: the figures asked
for beside the figures reached.

    python benchmarks/results.py docs/figures/*.json

No figure in that page is written by hand.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coop.report.page import table
from prose import wrapped

TITLES = {"bert": "BERT", "gpt2": "GPT-2", "resnet50": "ResNet-50", "swin-t": "Swin-T", "bilstm": "BiLSTM"}
ADAM = {"adam": "Adam", "fused": "fused Adam"}
HALF = {"bert": 1.10, "gpt2": 1.10, "swin-t": 1.10, "resnet50": 1.15}  # time / eager asked at half of the activations
Rows = list[dict[str, Any]]


def show(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def where(row: dict[str, Any]) -> str:
    return f"{TITLES[row['model']]}, {ADAM[row['optimizer']]}"


def _has(rows: Rows, row: dict[str, Any]) -> bool:
    key = ("model", "optimizer", "method")
    return any(all(other.get(k) == row.get(k) for k in key) for other in rows)


class Page:
    """The measurements by benchmark, and what is made of them."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.data = {}
        for file in files:
            content = json.loads(file.read_text())
            if content["benchmark"] in ("simulation", "simulator", "planners", "swap"):  # a page of its own
                continue
            before = self.data.setdefault(content["benchmark"], content | {"rows": []})["rows"]
            # Each run of the benchmark has its own eager row, to which its ratios refer; the page
            # shows one.
            before += [row for row in content["rows"] if row.get("method") != "eager" or not _has(before, row)]

    def rows(self, benchmark: str, **match: Any) -> Rows:
        rows = self.data.get(benchmark, {}).get("rows", [])
        return [row for row in rows if all(row.get(key) == value for key, value in match.items())]

    # --- figures asked for ------------------------------------------------------------------------------------------------

    def asked(self) -> str:
        lines: list[list[str]] = []

        def add(
            what: str, rows: Rows, figure: Callable[[dict[str, Any]], float | None], limit: Any, form: str = ".2f"
        ) -> None:
            for row in rows:
                value = None if row.get("error") else figure(row)
                asked = limit(row) if callable(limit) else limit
                if asked is None:
                    continue
                raised = row.get("raised", 1) > 1  # more memory than the figure is asked for at
                good = "yes" if value is not None and value <= asked and not raised else "no"
                reached = "does not run: " + row.get("error", "")[:70] if value is None else show(value, form)
                reached += (
                    f", but at {row['activations']:.2f} of the activations" if raised and value is not None else ""
                )
                lines.append(
                    [what, where(row) if "model" in row else row.get("name", ""), show(asked, form), reached, good]
                )

        equal = [row for row in self.rows("training") if "@" in row["method"] and not row["error"]]
        same = sum(not row["bits"] for row in equal)
        lines.append(
            [
                "runs of coop with the same bits as eager",
                "all",
                str(len(equal)),
                str(same),
                "yes" if same == len(equal) else "no",
            ]
        )
        add(
            "nothing evicted: CPU time / eager",
            self.rows("overhead", what="model", name="coop@2"),
            lambda r: r["cpu"],
            1.02,
            ".3f",
        )
        add(
            "64-element adds, managed / plain",
            self.rows("overhead", what="stream", name="dropped"),
            lambda r: r["ratio"],
            1.5,
        )
        at_checkpoint = []
        for row in self.rows("training", method="coop@checkpoint"):
            others = self.rows("training", method="checkpoint", model=row["model"], optimizer=row["optimizer"])
            against = row["cpu"] / others[0]["cpu"] if row["cpu"] and others and others[0]["cpu"] else None
            at_checkpoint.append(row | {"against": against})
        add(
            "at the memory of per-layer checkpoint: CPU time of coop / checkpoint",
            at_checkpoint,
            lambda r: r["against"],
            1.0,
            ".3f",
        )
        half = self.rows("training", method="coop@0.5")
        add(
            "at half of the activations: CPU time / eager",
            half,
            lambda r: r["cpu"],
            lambda r: HALF.get(r["model"]),
            ".3f",
        )
        add("at half: search / step time", half, lambda r: r["search"], 0.01, ".1%")
        add("at half: fragmentation", half, lambda r: r["fragmentation"], 0.03, ".1%")
        add(
            "lowest budget / (sources + largest op)",
            self.rows("floor", what="floor", policy="coop"),
            lambda r: r["ratio"],
            1.10,
        )
        resident = self.rows("floor", what="resident")
        add("resident memory above arena + constant, MiB", resident, lambda r: r["growth"] / 2**20, 0.0, ".1f")
        for row in self.rows("scaling"):
            if growth := row.get("growth"):
                good = "yes" if growth["whole"] <= growth["allowed"] else "no"
                name = f"{growth['kind']} ({growth['policy']})"
                lines.append(["growth exponent", name, show(growth["allowed"]), show(growth["whole"]), good])
        return table(["what", "where", "asked", "reached", ""], lines)

    # --- everything ---------------------------------------------------------------------------------------------------------

    def training(self) -> str:
        rows, out = self.rows("training"), []
        for model, optimizer in dict.fromkeys((row["model"], row["optimizer"]) for row in rows):
            chosen = [row for row in rows if (row["model"], row["optimizer"]) == (model, optimizer)]
            eager = next(row for row in chosen if row["method"] == "eager")
            seconds = sorted(eager["seconds"]["wall"])[len(eager["seconds"]["wall"]) // 2]
            out.append(f"\n### {where(eager)}\n")
            out.append(
                f"Eager: {seconds:.3f} s for a step, {eager['bytes']['persistent'] / 2**20:.0f} MiB persistent, "
                f"{eager['bytes']['activations'] / 2**20:.0f} MiB of activations.\n"
            )
            columns = [
                "method",
                "CPU",
                "wall",
                "activations",
                "total",
                "recomputed",
                "search",
                "fragmentation",
                "same bits",
            ]
            out.append(table(columns, [self._training_line(row) for row in chosen]))
        return "\n".join(out)

    def _training_line(self, row: dict[str, Any]) -> list[str]:
        name = row["method"] + (
            f" ({row['asked']:.2f})" if row["method"].endswith("@checkpoint") and row["asked"] else ""
        )
        if row["error"]:
            return [name, *["-"] * 7, row["error"][:90].replace("|", "/")]
        bits = "yes" if not row["bits"] else "no: " + ", ".join(row["bits"])
        bits += f"; budget raised x{row['raised']:.2f}" if row["raised"] > 1 else ""
        bits += f"; compiled in {row['compile_seconds']:.0f} s" if row["compile_seconds"] else ""
        return [
            name, show(row["cpu"]), show(row["wall"]), show(row["activations"]), show(row["total"]),
            show(row["recomputation"], ".1%"), show(row["search"], ".1%"), show(row["fragmentation"], ".1%"), bits,
        ]  # fmt: skip

    def overhead(self) -> str:
        adds = [
            [row["name"], show(row["ratio"]), show(row["plain"] * 1e9, ".0f"), show(row["managed"] * 1e9, ".0f")]
            for row in self.rows("overhead", what="stream")
        ]
        models = [
            [
                where(row),
                row["name"],
                show(row["cpu"], ".3f"),
                show(row["wall"], ".3f"),
                show(row["ops"], ".0f"),
                show(row["search"], ".1%"),
            ]
            for row in self.rows("overhead", what="model")
            if "error" not in row
        ]
        return (
            table(["64-element adds", "managed / plain", "plain ns", "managed ns"], adds)
            + "\n"
            + table(["nothing evicted", "scope", "CPU / eager", "wall / eager", "ops a step", "search"], models)
        )

    def floor(self) -> str:
        lowest = [
            [
                where(row),
                row["policy"],
                show(row["ratio"]),
                show(row["floor"] / 2**20),
                show(row["lowest"] / 2**20),
                show(row["peak"] / 2**20),
            ]
            for row in self.rows("floor", what="floor")
            if "ratio" in row
        ]
        resident = [
            [where(row), *(show(row[key] / 2**20, ".1f") for key in ("arena", "constant", "growth", "later"))]
            for row in self.rows("floor", what="resident")
            if "arena" in row
        ]
        return (
            table(["lowest budget", "policy", "/ floor", "floor MiB", "lowest MiB", "peak MiB"], lowest)
            + "\n"
            + table(["resident, MiB", "arena", "constant", "growth", "of it in the second half"], resident)
        )

    def scaling(self) -> str:
        rows = [row for row in self.rows("scaling") if "seconds" in row]
        counts = sorted({row["count"] for row in rows})
        lines = []
        for kind, policy in dict.fromkeys((row["kind"], row["policy"]) for row in rows):
            times = {row["count"]: row["seconds"] for row in rows if (row["kind"], row["policy"]) == (kind, policy)}
            lines.append([f"{kind} ({policy})", *(show(times[n] * 1e6) if n in times else "-" for n in counts)])
        return table(["microseconds at", *(f"{count:,} storages" for count in counts)], lines)

    def text(self, picture: str) -> str:
        parts = ["# Training in less memory: figures asked for and figures reached\n"]
        parts.append(
            "Made by `benchmarks/results.py` from the JSON of the benchmarks; their headers say what is measured, and how.\n"
        )
        for name, content in self.data.items():
            machine, settings = content["machine"], content["settings"]
            scale = f", scale {settings['scale']}" if "scale" in settings else ""
            parts.append(
                f"- `{name}`: {machine['date']}, {machine['processor']}, {settings['threads']} threads, torch {machine['torch']}{scale}"
            )
        parts.append("\n## Asked and reached\n\n" + self.asked())
        sections = {
            "training": "Time against memory, ratios to eager",
            "overhead": "Overhead",
            "floor": "Limits (the floor: sources, gradients on their way, and the largest op)",
            "scaling": "Scaling",
        }
        for name, title in sections.items():
            if name in self.data:
                parts.append(f"\n## {title}\n")
                if name == "training" and picture:
                    parts.append(f"![time against memory]({picture})\n")
                parts.append(getattr(self, name)())
        return "\n".join(parts)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("files", nargs="*", type=Path, help="JSON of the benchmarks (docs/figures/*.json)")
    made.add_argument(
        "--output", type=Path, default=Path("docs/results-training.md"), help="(docs/results-training.md)"
    )
    made.add_argument("--picture", default="figures/training.png", help="drawn here, as seen from the page")
    settings = made.parse_args()
    page = Page(settings.files or sorted(Path("docs/figures").glob("*.json")))
    if rows := page.rows("training"):
        from training import Row, plot

        plot(settings.output.parent / settings.picture, [Row(**row) for row in rows])
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    settings.output.write_text(wrapped(page.text(settings.picture)))
    print(f"written: {settings.output}")


if __name__ == "__main__":
    main()
