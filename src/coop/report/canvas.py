"""What all pictures share: matplotlib, if it is installed, colours that are easy to distinguish,
and how files are written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

# Okabe and Ito's colours.
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, RED, PURPLE, BLACK, GREY = "#E69F00", "#D55E00", "#CC79A7", "#000000", "#8C8C8C"
# Transfers to the swap tier and back, in every picture.
OUT, IN = "#5C2694", "#AC80DE"

# A policy that has no line here takes one of the spare styles.
_LINES: dict[str, tuple[str, str]] = {
    "coop": (BLUE, "o"),
    "coop-paper": (SKY, "D"),
    "dte": (ORANGE, "s"),
    "dtr": (RED, "^"),
    "dtr-eq": (PURPLE, "v"),
    "lru": (GREEN, "P"),
    "delta": (BLACK, "*"),
}
_SPARE = ((PURPLE, "X"), (GREEN, "p"), (BLACK, "*"), (GREY, "h"), (SKY, "<"), (ORANGE, ">"))

_STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "coop",  # the same figures give the same file
    "svg.fonttype": "none",
}


class NoPictures(RuntimeError):
    """matplotlib is not installed."""


def matplotlib() -> Any:
    """Imported only where a picture is drawn: nothing else needs it."""
    try:
        return importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        raise NoPictures(
            "pictures need matplotlib, which is not installed. Tip: pip install 'coop-memory[plots]'"
        ) from None


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """A figure in coop's style, of that many inches."""
    library = matplotlib()
    with library.rc_context(_STYLE):
        made: Figure = importlib.import_module("matplotlib.figure").Figure(
            figsize=(width, height), layout="constrained"
        )
        yield made


def save(made: Figure, path: Path, formats: Sequence[str] = ()) -> list[Path]:
    """Writes the figure as `path`; or in each format, if formats are given or the path has no
    suffix of a format."""
    suffix = path.suffix.lstrip(".").lower()
    if suffix in FORMATS and not formats:
        files = [path]
    else:
        stem = path.with_suffix("") if suffix in FORMATS else path
        files = [stem.with_name(f"{stem.name}.{form}") for form in formats or ("png", "svg")]
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        # A picture should not change with the day it was drawn on.
        day = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file.suffix.lstrip(".").lower())
        made.savefig(file, dpi=160, metadata=day)
    return files


def line_styles(variants: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each; the well-known policies always have the same."""
    styles: dict[str, tuple[str, str]] = {}
    for variant in variants:
        free = [style for style in _SPARE if style not in styles.values()]
        styles[variant] = _LINES.get(variant) or (free[0] if free else (BLACK, "o"))
    return styles
