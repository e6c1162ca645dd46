"""The memory map: a picture of the arena over time. The vertical axis is the address, the
horizontal axis the time, and the colour shows what lies there.

    with coop.budget("4GiB", events=True) as memory:
        train_one_step()
        coop.report.memory_map.draw(memory.events(), memory.stats().budget, "map.png")

Blocks are painted into an array of pixels, so a hundred thousand of them are drawn quickly, in PNG
and in SVG. Below the arena, strips show when ops ran again, when the link to the swap tier was
busy, and when the program waited for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coop.events import Event
from coop.report.canvas import FORMATS, IN, OUT, figure, save
from coop.report.rebuild import rebuild
from coop.report.timeline import Kind, Mark, Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 1600, 640
"""Pixels of a panel."""

Colour = tuple[int, int, int]
_OUT: Colour = tuple(bytes.fromhex(OUT[1:]))  # type: ignore[assignment]  # three of them
_IN: Colour = tuple(bytes.fromhex(IN[1:]))  # type: ignore[assignment]
_COLOURS: dict[Kind, Colour] = {
    Kind.free: (255, 255, 255),
    Kind.source: (120, 120, 120),
    Kind.expensive: (230, 120, 40),
    Kind.cheap: (110, 175, 225),
    Kind.dead_expensive: (250, 215, 185),
    Kind.dead_cheap: (214, 232, 246),
    Kind.raw: (240, 228, 66),
    Kind.passing: (190, 190, 190),
    Kind.arriving: _IN,
}
_MARKS: dict[str, Colour] = {
    "move": (190, 20, 60),
    "evict": (20, 20, 20),
    "leave": _OUT,
    "restore": (0, 135, 95),
    "in": (214, 60, 190),
}
"""Later kinds are painted over earlier ones."""
_KIND_WORDS: dict[str, tuple[Kind, ...]] = {
    "source: cannot be recomputed": (Kind.source,),
    "passing source: a gradient": (Kind.passing,),
    "expensive to recompute": (Kind.expensive,),
    "cheap to recompute": (Kind.cheap,),
    "nobody's, kept while there is room": (Kind.dead_expensive, Kind.dead_cheap),
    "being computed, or scratch": (Kind.raw,),
    "free": (Kind.free,),
}
_MARK_WORDS = {
    "evict": "evicted",
    "restore": "back again, recomputed",
    "move": "moved",
    "leave": "evicted, with a copy outside",
    "in": "back again, by a transfer",
}
_RECOMPUTING, _WAITING = "#009E73", "#D55E00"
_PLANS: dict[str, tuple[str, str, Any]] = {
    "plan_adopted": ("a plan is in force", "#0072B2", "solid"),
    "plan_lost": ("the plan is lost", "#C1121F", "dashed"),
}

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Panel:
    """One run: all its events, beginning with an empty arena."""

    title: str
    events: Iterable[Event]
    """Iterated over twice."""


def draw(
    events: Iterable[Event],
    budget: int,
    path: str | Path,
    title: str = "",
    by: str = "time",
    since: float = 0.0,
    until: float = math.inf,
) -> list[Path]:
    """Draws one run, or the part of it between two times in seconds. The suffix of the path is the
    format; without one, both PNG and SVG are written."""
    return draw_panels([Panel(title, events)], budget, path, by, since, until)


def draw_panels(
    panels: Sequence[Panel],
    budget: int,
    path: str | Path,
    by: str = "time",
    since: float = 0.0,
    until: float = math.inf,
) -> list[Path]:
    """Draws several runs in the same budget, one above the other, on one time axis: a longer run
    reaches further right."""
    runs = [rebuild(panel.events, by, since, until) for panel in panels]
    return draw_timelines([panel.title for panel in panels], runs, budget, path, by)


def draw_timelines(
    titles: Sequence[str], runs: Sequence[Timeline], budget: int, path: str | Path, by: str = "time"
) -> list[Path]:
    """The same for timelines that are already rebuilt."""
    longest = max([run.end - run.start for run in runs] or [0.0]) or 1.0
    unit, scale = _unit_of_time(longest) if by == "time" else ("changes of the arena", 1.0)
    strips = [_strips_of(run) for run in runs]
    heights = [height for rows in strips for height in (22, 0.4 + 0.9 * len(rows))]
    with figure(11.0, 3.45 * len(runs) + 1.3 + 0.15 * sum(map(len, strips))) as made:
        made.set_layout_engine("constrained", h_pad=0.03, hspace=0.0)
        grid = made.add_gridspec(2 * len(runs), 1, height_ratios=heights)
        first: Axes | None = None
        for row, (title, run) in enumerate(zip(titles, runs, strict=True)):
            arena = made.add_subplot(grid[2 * row], sharex=first)
            first = first or arena
            strip = made.add_subplot(grid[2 * row + 1], sharex=first)
            _draw_arena(arena, run, budget, longest, scale, title)
            _draw_strips(strip, run, strips[row], scale)
            last = row == len(runs) - 1
            arena.tick_params(labelbottom=False, bottom=False)
            strip.tick_params(labelbottom=last, bottom=last)
        strip.set_xlabel(_time_axis(runs, unit, scale) if by == "time" else unit)
        _legend(made, runs)
        return save(made, Path(path))


def writable(path: Path) -> bool:
    """Whether the path has the suffix of a picture format, or none."""
    return path.suffix.lstrip(".").lower() in ("", *FORMATS)


# --- the arena -----------------------------------------------------------------------------------


def paint(run: Timeline, budget: int, longest: float, width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """The arena as pixels, with the lowest address in the first row. `longest` is the time that
    all columns cover."""
    image: Picture = np.full((height, width, 3), 255, dtype=np.uint8)

    def column(time: float) -> int:
        return round(width * (time - run.start) / longest)

    def rows(offset: int, size: int) -> tuple[int, int]:
        """Clipped to the arena: while an op that failed is measured, blocks may lie beyond its
        end."""
        low, high = (min(round(height * at / budget), height) for at in (offset, offset + size))
        return low, high

    image[:, column(run.end) :] = 244  # after its end
    for span in _with_scratch(run):
        left, right = column(span.start), column(span.end)
        low, high = rows(span.offset, span.bytes)
        colour = np.array(_COLOURS[span.kind], dtype=np.uint8)
        image[low:high, left:right] = colour
        if high - low >= 4 and right > left:  # an edge: it separates neighbours of one kind
            image[high - 1, left:right] = colour // 4 * 3
    thick = max(2, width // 700)
    for transfer in run.transfers:
        if transfer.direction == "out":
            right = column(transfer.end)
            left = max(min(column(transfer.start), right - thick), 0)
            _stripe(image, rows(transfer.offset, transfer.bytes), (left, right))
    for mark in sorted(run.marks, key=_order):
        at, (low, high) = column(mark.at), rows(mark.offset, mark.bytes)
        if mark.kind in ("evict", "leave"):
            image[low:high, max(at - thick, 0) : at] = _MARKS[mark.kind]
            continue
        if mark.kind == "move":
            reach = [low, high, *rows(mark.origin, mark.bytes)]
            low, high = min(reach), max(reach)
        image[low:high, at : at + thick] = _MARKS[mark.kind]
    return image


def _stripe(image: Picture, rows: tuple[int, int], columns: tuple[int, int]) -> None:
    """A block that is being written keeps its contents, so its colour shows between the stripes."""
    part = image[slice(*rows), slice(*columns)]
    across = np.add.outer(np.arange(part.shape[0]), np.arange(columns[0], columns[0] + part.shape[1]))
    part[across % 7 < 4] = _OUT


def _order(mark: Mark) -> int:
    return list(_MARKS).index(mark.kind)


def _with_scratch(run: Timeline) -> list[Span]:
    """The spans to draw, in order. Scratch is allocated and freed between two ticks of the clock,
    so it is shown until the next."""
    ticks = np.unique([span.start for span in run.spans] + [span.end for span in run.spans])
    scratch = []
    for span in run.spans:
        if span.kind is Kind.raw and span.end == span.start:
            following = int(np.searchsorted(ticks, span.start, side="right"))
            until = float(ticks[following]) if following < len(ticks) else run.end
            scratch.append(Span(Kind.raw, 0, span.offset, span.bytes, span.start, until))
    return scratch + run.spans


def _draw_arena(panel: Axes, run: Timeline, budget: int, longest: float, scale: float, title: str) -> None:
    unit, bytes_scale = _unit_of_bytes(budget)
    image = paint(run, budget, longest)
    extent = (0.0, longest * scale, 0.0, budget * bytes_scale)
    panel.imshow(image, origin="lower", extent=extent, aspect="auto", interpolation="antialiased")
    for kind, at in run.plans:
        _, colour, style = _PLANS[kind]
        panel.axvline((at - run.start) * scale, color=colour, linestyle=style, linewidth=1.1)
    panel.grid(False)
    panel.set_ylabel(f"address, {unit}")
    panel.set_title(title, loc="left")


# --- the strips ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Strip:
    words: str
    times: list[tuple[float, float]]
    colour: str


def _strips_of(run: Timeline) -> list[_Strip]:
    """The strips from top to bottom. Without transfers there is only one."""
    strips = [_Strip("recomputing", run.recomputing, _RECOMPUTING)]
    if run.transfers:
        strips.append(_Strip("transfers out", run.transferring("out"), OUT))
        strips.append(_Strip("transfers in", run.transferring("in"), IN))
        strips.append(_Strip("waiting for them", run.waiting, _WAITING))
    return strips


def _draw_strips(axes: Axes, run: Timeline, strips: Sequence[_Strip], scale: float) -> None:
    for row, strip in enumerate(reversed(strips)):
        bars = [((start - run.start) * scale, (end - start) * scale) for start, end in strip.times]
        axes.broken_barh([(0, (run.end - run.start) * scale)], (row + 0.08, 0.84), color="#EEEEEE", linewidth=0)
        axes.broken_barh(bars, (row + 0.08, 0.84), color=strip.colour, linewidth=0)
    axes.set_ylim(0, len(strips))
    words = [strip.words for strip in reversed(strips)]
    axes.set_yticks([row + 0.5 for row in range(len(strips))], words, fontsize=8)
    axes.tick_params(left=False)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _time_axis(runs: Sequence[Timeline], unit: str, scale: float) -> str:
    starts = {run.start for run in runs}
    waited = " and waiting" if any(run.waiting for run in runs) else ""
    after = f", from {starts.pop():g} s on" if starts and starts != {0.0} else ""
    return f"time in ops{waited}, {unit}{after}"


# --- the legend ----------------------------------------------------------------------------------


def _legend(made: Figure, runs: Sequence[Timeline]) -> None:
    """The legend has entries for transfers and plans only if there are any."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def patch(kind: Kind) -> Patch:
        return Patch(facecolor=_hex(_COLOURS[kind]), edgecolor="#999999", linewidth=0.5)

    def line(colour: Colour) -> Line2D:
        return Line2D([], [], color=_hex(colour), marker="|", markersize=11, markeredgewidth=2.2, linewidth=0)

    marks = ["evict", "restore", "move"]
    entries: dict[str, Any] = {words: tuple(map(patch, kinds)) for words, kinds in _KIND_WORDS.items()}
    if any(run.transfers for run in runs):
        striped = Patch(facecolor="#DDDDDD", edgecolor=OUT, hatch="//////", linewidth=0.5)
        entries |= {"being written out": (striped,), "being read back": (patch(Kind.arriving),)}
        marks += ["leave", "in"]
    entries |= {_MARK_WORDS[kind]: line(_MARKS[kind]) for kind in marks}
    for kind, (words, colour, style) in _PLANS.items():
        if any(kind == happened for run in runs for happened, _ in run.plans):
            entries[words] = Line2D([], [], color=colour, linestyle=style, linewidth=1.4)
    made.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=5,
        fontsize=8,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )


def _hex(colour: Colour) -> str:
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
