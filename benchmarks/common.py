"""What all benchmarks share: their command line, their tables, their JSON."""

import argparse
import datetime
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from workloads import MODELS

console = Console(width=None if os.isatty(1) else 160)


def parser(header: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=header, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    made.add_argument("--threads", type=int, default=2, help="of PyTorch (2)")
    return made


def names(known: Iterable[str], default: Iterable[str] | None = None) -> dict[str, Any]:
    """Keywords for an option that takes some of these names, separated by commas."""
    all_known = list(known)

    def parse(text: str) -> list[str]:
        chosen = all_known if text == "all" else text.split(",")
        if unknown := [name for name in chosen if name not in all_known]:
            raise argparse.ArgumentTypeError(f"unknown: {unknown[0]!r}; the known ones are {', '.join(all_known)}")
        return chosen

    chosen = list(default) if default is not None else all_known
    return {
        "type": parse,
        "default": chosen,
        "metavar": "A,B,...",
        "help": f"of {', '.join(all_known)} ({','.join(chosen)})",
    }


def add_models(made: argparse.ArgumentParser, scale: str = "full") -> None:
    made.add_argument("--models", **names(MODELS))
    made.add_argument("--scale", choices=["small", "full"], default=scale, help=f"size of the models ({scale})")


def progress() -> Progress:
    """A bar that is redrawn when something happens, not by a thread: processes are forked while it
    is shown."""
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=console, auto_refresh=False, transient=True)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def number(value: float | None, places: int = 2) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def mebibytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**20:.1f}"


def median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def write(path: Path | None, benchmark: str, settings: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """What was measured, where and how, for results.py and for readers."""
    if path is None:
        return
    chosen = {key: value for key, value in vars(settings).items() if key not in ("json", "plot")}
    content = {"benchmark": benchmark, "machine": _machine(), "settings": chosen, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _machine() -> dict[str, Any]:
    processor = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "load": os.getloadavg()[0],
        "waiting": os.environ["OMP_WAIT_POLICY"],
    }
