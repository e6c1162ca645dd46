"""The memory map: the arena over time as a picture. Address goes up, time to the right, the colour tells what lies there.

    with coop.budget("4GiB", events=True) as memory:
        train_one_step()
        coop.report.memory_map.draw(memory.events(), memory.stats().budget, "map.png")

Blocks are painted into an array of pixels, so that a hundred thousand of them take a moment, in PNG and SVG alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coop.events import Event
from coop.report.arena import History, Kind, Mark, Span, history
from coop.report.canvas import FORMATS, figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 1600, 640
"""Pixels of a panel."""

_COLOURS: dict[Kind, tuple[int, int, int]] = {
    Kind.free: (255, 255, 255),
    Kind.source: (120, 120, 120),
    Kind.dear: (230, 120, 40),
    Kind.cheap: (110, 175, 225),
    Kind.dead_dear: (250, 215, 185),
    Kind.dead_cheap: (214, 232, 246),
    Kind.raw: (240, 228, 66),
    Kind.passing: (190, 190, 190),
}
_EVICT, _RESTORE, _MOVE = (20, 20, 20), (0, 135, 95), (170, 50, 130)
_RECOMPUTING = "#009E73"
_WORDS: dict[str, tuple[Kind, ...]] = {
    "source: cannot be recomputed": (Kind.source,),
    "passing source: a gradient": (Kind.passing,),
    "dear to recompute": (Kind.dear,),
    "cheap to recompute": (Kind.cheap,),
    "nobody's, kept while there is room": (Kind.dead_dear, Kind.dead_cheap),
    "being computed, or scratch": (Kind.raw,),
    "free": (Kind.free,),
}

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Panel:
    """One run: all its events since its arena was empty."""

    title: str
    events: Sequence[Event]


def draw(events: Sequence[Event], budget: int, path: str | Path, title: str = "", by: str = "time") -> list[Path]:
    """One run as a picture. The path's ending tells the format; without one, both PNG and SVG are written."""
    return draw_panels([Panel(title, events)], budget, path, by)


def draw_panels(panels: Sequence[Panel], budget: int, path: str | Path, by: str = "time") -> list[Path]:
    """Several runs in the same budget, one above the other, on one axis of time: what takes longer reaches further."""
    runs = [history(panel.events, by) for panel in panels]
    longest = max([run.end for run in runs] or [0.0]) or 1.0
    unit, scale = _unit_of_time(longest) if by == "time" else ("changes of the arena", 1.0)
    with figure(11.0, 3.6 * len(panels) + 1.2) as made:
        made.set_layout_engine("constrained", h_pad=0.03, hspace=0.0)
        grid = made.add_gridspec(2 * len(panels), 1, height_ratios=[22, 1] * len(panels))
        first: Axes | None = None
        for row, (panel, run) in enumerate(zip(panels, runs, strict=True)):
            arena = made.add_subplot(grid[2 * row], sharex=first)
            first = first or arena
            strip = made.add_subplot(grid[2 * row + 1], sharex=first)
            _draw_arena(arena, run, budget, longest, scale, panel.title)
            _draw_strip(strip, run, scale)
            arena.tick_params(labelbottom=False, bottom=False)
            strip.tick_params(labelbottom=row == len(panels) - 1, bottom=row == len(panels) - 1)
        strip.set_xlabel(f"time in ops, {unit}" if by == "time" else unit)
        _legend(made)
        return save(made, Path(path))


def writable(path: Path) -> bool:
    """Whether the path has an ending that pictures can have, or none."""
    return path.suffix.lstrip(".").lower() in ("", *FORMATS)


def paint(run: History, budget: int, longest: float, width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """The arena as pixels, lowest address in the first row."""
    image: Picture = np.full((height, width, 3), 255, dtype=np.uint8)
    lit = round(width * run.end / longest)
    image[:, lit:] = 244  # after its end

    def columns(start: float, end: float) -> tuple[int, int]:
        return round(width * start / longest), round(width * end / longest)

    def rows(offset: int, size: int) -> tuple[int, int]:
        return round(height * offset / budget), round(height * (offset + size) / budget)

    for span in _with_scratch(run):
        (left, right), (low, high) = columns(span.start, span.end), rows(span.offset, span.bytes)
        colour = np.array(_COLOURS[span.kind], dtype=np.uint8)
        image[low:high, left:right] = colour
        if high - low >= 4 and right > left:  # an edge, so that neighbours of one kind can be told apart
            image[high - 1, left:right] = colour // 4 * 3
    thick = max(2, width // 700)
    for mark in sorted(run.marks, key=_order):
        (at, _), (low, high) = columns(mark.at, mark.at), rows(mark.offset, mark.bytes)
        if mark.kind == "evict":
            image[low:high, max(at - thick, 0) : at] = _EVICT
        elif mark.kind == "restore":
            image[low:high, at : at + thick] = _RESTORE
        else:
            reach = [low, high, *rows(mark.origin, mark.bytes)]
            image[min(reach) : max(reach), at : at + thick] = _MOVE
    return image


def _order(mark: Mark) -> int:
    """Later ones are painted over earlier ones."""
    return ("move", "evict", "restore").index(mark.kind)


def _with_scratch(run: History) -> list[Span]:
    """What is drawn, in that order. Scratch comes and goes between two ticks of the clock; it is shown until the next."""
    ticks = np.unique([span.start for span in run.spans] + [span.end for span in run.spans])
    scratch = []
    for span in run.spans:
        if span.kind is Kind.raw and span.end == span.start:
            following = int(np.searchsorted(ticks, span.start, side="right"))
            until = float(ticks[following]) if following < len(ticks) else run.end
            scratch.append(Span(Kind.raw, 0, span.offset, span.bytes, span.start, until))
    return scratch + run.spans


def _draw_arena(panel: Axes, run: History, budget: int, longest: float, scale: float, title: str) -> None:
    unit, bytes_scale = _unit_of_bytes(budget)
    image = paint(run, budget, longest)
    extent = (0.0, longest * scale, 0.0, budget * bytes_scale)
    panel.imshow(image, origin="lower", extent=extent, aspect="auto", interpolation="antialiased")
    panel.grid(False)
    panel.set_ylabel(f"address, {unit}")
    panel.set_title(title, loc="left")


def _draw_strip(strip: Axes, run: History, scale: float) -> None:
    """When ops were run again."""
    strip.broken_barh(
        [(start * scale, (end - start) * scale) for start, end in run.recomputing],
        (0, 1),
        color=_RECOMPUTING,
        linewidth=0,
    )
    strip.axvspan(0, run.end * scale, color="#EEEEEE", zorder=0)
    strip.set_ylim(0, 1)
    strip.set_yticks([0.5], ["recomputing"], fontsize=8)
    strip.tick_params(left=False)
    strip.grid(False)
    strip.spines[:].set_visible(False)


def _legend(made: Figure) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def patch(kind: Kind) -> Patch:
        return Patch(facecolor=_hex(_COLOURS[kind]), edgecolor="#999999", linewidth=0.5)

    def line(colour: tuple[int, int, int]) -> Line2D:
        return Line2D([], [], color=_hex(colour), marker="|", markersize=11, markeredgewidth=2.2, linewidth=0)

    entries: dict[str, Any] = {words: tuple(map(patch, kinds)) for words, kinds in _WORDS.items()}
    entries |= {"evicted": line(_EVICT), "back again, recomputed": line(_RESTORE), "moved": line(_MOVE)}
    made.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=5,
        fontsize=8,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _unit_of_time(seconds: float) -> tuple[str, float]:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return unit, scale
    return "ns", 1e9


def _unit_of_bytes(count: int) -> tuple[str, float]:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 2 << power:
            return unit, 2.0**-power
    return "bytes", 1.0
