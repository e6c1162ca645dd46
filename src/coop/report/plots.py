"""The pictures of a comparison: those of the paper, from the results of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from coop.report.canvas import BLACK, GREY, figure, line_styles, matplotlib, save
from coop.report.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter


def draw_all(results: Results, folder: Path) -> dict[str, str]:
    """Draws each picture that there are results for, as PNG and SVG. Returns its file name without
    suffix."""
    wanted: dict[str, Callable[[Results, Path], None]] = {
        "overhead": overhead,
        "fragmentation": fragmentation,
        "search": search,
    }
    if results.ablated:
        wanted["ablation"] = ablation
    if results.with_lowest:
        wanted["lowest"] = lowest
    for name, draw in wanted.items():
        draw(results, folder / name)
    return {name: name for name in wanted}


def overhead(results: Results, path: Path) -> None:
    """Overhead against memory ratio, one panel for each network. Points that did not run are
    marked above the lines."""
    columns = min(4, len(results.networks))
    rows = -(-len(results.networks) // columns)
    styles = line_styles(results.variants)
    with figure(max(3.0 * columns, 4.5), 2.6 * rows + 0.5) as made:
        axes = made.subplots(rows, columns, squeeze=False).flat
        for network, panel in zip(results.networks, axes, strict=False):
            _overhead_panel(panel, results, network, styles)
        for panel in list(axes)[len(results.networks) :]:
            panel.set_visible(False)
        made.supxlabel("memory ratio: budget / the step's own peak")
        made.supylabel("overhead")
        _legend(made, styles, failures=True)
        save(made, path)


def _overhead_panel(panel: Axes, results: Results, network: str, styles: dict[str, tuple[str, str]]) -> None:
    cells = {variant: results.cells(network, variant) for variant in styles}
    highest = max((cell.overhead or 0.0 for line in cells.values() for cell in line), default=0.0)
    top = max(1.1 * highest, 0.02)
    for place, (variant, (colour, marker)) in enumerate(styles.items()):
        first = place == 0
        line = [(ratio, cell) for ratio, cell in zip(results.ratios, cells[variant], strict=True) if cell.answers]
        ran = [(ratio, cell.overhead) for ratio, cell in line if cell.overhead is not None]
        panel.plot(
            [ratio for ratio, _ in ran],
            [value for _, value in ran],
            color=colour,
            linewidth=2.2 if first else 1.4,
            zorder=3.0 if first else 2.5,
        )
        for ratio, cell in line:
            if cell.overhead is not None:
                fill = colour if cell.complete else "white"
                panel.plot(ratio, cell.overhead, marker, color=colour, markerfacecolor=fill, markersize=5, zorder=3.5)
            if not cell.complete:
                height = top * (1.06 + 0.075 * (len(styles) - 1 - place))
                panel.plot(ratio, height, "x", color=colour, markersize=5, markeredgewidth=1.6, clip_on=False)
    shelf = top * (1.06 + 0.075 * len(styles))
    panel.axhline(top, color=GREY, linewidth=0.7, linestyle=":")
    if (floor := results.floor(network)) is not None and floor < max(results.ratios):
        panel.axvspan(min(*results.ratios, floor) - 1, floor, color="#F2F2F2", zorder=0)
    panel.set_yticks([tick for tick in panel.get_yticks() if 0 <= tick <= top])
    panel.set_ylim(-0.02 * top, shelf)
    edge = 0.03 + 0.02 * (max(results.ratios) - min(results.ratios))
    panel.set_xlim(min(results.ratios) - edge, max(results.ratios) + edge)
    panel.yaxis.set_major_formatter(_percent())
    panel.xaxis.set_major_formatter(_percent())
    panel.set_title(network)


def fragmentation(results: Results, path: Path) -> None:
    """The mean over the ratios as a bar, the largest as a mark above it."""
    with figure(_wide(results), 3.2) as made:
        panel = made.subplots()
        _bars(panel, results, "fragmentation", statistics.fmean, max)
        panel.set_ylabel("free bytes left after an eviction / budget")
        panel.yaxis.set_major_formatter(_percent())
        panel.set_title("Fragmentation: mean over the ratios that ran; largest as a mark", loc="left")
        _legend(made, line_styles(results.variants))
        save(made, path)


def search(results: Results, path: Path) -> None:
    """How long one search for room takes."""
    with figure(_wide(results), 3.2) as made:
        panel = made.subplots()
        styles = line_styles(results.variants)
        for place, (variant, (colour, marker)) in enumerate(styles.items()):
            for column, network in enumerate(results.networks):
                x = column + _beside(place, len(styles))
                median, slowest = (results.search_time(network, variant, share) for share in (0.5, 0.99))
                if median and slowest:
                    panel.plot([x, x], [median * 1e6, slowest * 1e6], color=colour, linewidth=2.0, alpha=0.6)
                    panel.plot(x, median * 1e6, marker, color=colour, markersize=6)
                    panel.plot(x, slowest * 1e6, "_", color=colour, markersize=9, markeredgewidth=2.0)
        panel.set_yscale("log")
        panel.set_xlim(-0.5, len(results.networks) - 0.5)
        _name_columns(panel, results.networks)
        panel.set_ylabel("microseconds for one search")
        panel.set_title("Search latency: median as a mark, 99th percentile as a bar", loc="left")
        _legend(made, styles)
        save(made, path)


def ablation(results: Results, path: Path) -> None:
    """Percentage points of overhead that each part saves: how much is added when it is off."""
    columns = [*results.networks, "mean"]
    rows = [variant.partition("+")[2] for variant in results.ablated]
    limit = 0.001
    texts: list[list[str]] = []
    values: list[list[float]] = []
    for variant in results.ablated:
        gaps = [results.difference(variant, results.variants[0], [network]) for network in results.networks]
        gaps.append(results.difference(variant, results.variants[0]))
        values.append([gap.mean if gap.mean is not None else float("nan") for gap in gaps])
        texts.append(
            [
                ("-" if gap.mean is None else f"{100 * gap.mean:+.1f}")
                + (f"\n{gap.only_second} fail" if gap.only_second else "")
                + (f"\n{gap.only_first} saved" if gap.only_first else "")
                for gap in gaps
            ]
        )
        limit = max([limit, *(abs(value) for value in values[-1] if value == value)])
    with figure(max(1.0 * len(columns) + 2.0, 6.5), 0.5 * len(rows) + 1.4) as made:
        panel = made.subplots()
        colours = matplotlib().colormaps["PuOr_r"].with_extremes(bad="#F2F2F2")
        panel.imshow(values, cmap=colours, vmin=-limit * 1.4, vmax=limit * 1.4, aspect="auto")
        for y, line in enumerate(texts):
            for x, text in enumerate(line):
                panel.text(x, y, text, ha="center", va="center", fontsize=8)
        _name_columns(panel, columns)
        panel.set_yticks(range(len(rows)), rows)
        panel.grid(False)
        panel.spines[:].set_visible(False)
        panel.axvline(len(columns) - 1.5, color="white", linewidth=4)
        panel.set_title(
            f"Points of overhead added to {results.variants[0]} when one part is off\n"
            "(mean over ratios that both run; fail: ratios that run only with it)",
            loc="left",
        )
        save(made, path)


def lowest(results: Results, path: Path) -> None:
    """The lowest ratio reached, one row for each network. The floor, below which nothing can run,
    is grey."""
    styles = line_styles(results.variants)
    with figure(6.5, 0.42 * len(results.networks) + 1.4) as made:
        panel = made.subplots()
        for row, network in enumerate(reversed(results.networks)):
            floor = results.floor(network)
            if floor is not None:
                panel.barh(row, floor, color="#E4E4E4", height=0.7)
            for place, (variant, (colour, marker)) in enumerate(styles.items()):
                value = results.lowest(network, variant)
                if value is not None:
                    y = row - 0.8 * _beside(place, len(styles))
                    panel.plot(value, y, marker, color=colour, markersize=6.5)
        panel.set_yticks(range(len(results.networks)), list(reversed(results.networks)))
        panel.set_xlim(0, 1.02)
        panel.grid(False, axis="y")
        panel.xaxis.set_major_formatter(_percent())
        panel.set_title("Lowest memory ratio reached; in grey the floor, below which nothing can run", loc="left")
        _legend(made, styles)
        save(made, path)


# --- parts ---------------------------------------------------------------------------------------------------------------


def _bars(
    panel: Axes,
    results: Results,
    figure_name: str,
    fold: Callable[[list[float]], float],
    mark: Callable[[list[float]], float],
) -> None:
    styles = line_styles(results.variants)
    width = 0.8 / len(styles)
    for place, (variant, (colour, _)) in enumerate(styles.items()):
        for column, network in enumerate(results.networks):
            x = column + _beside(place, len(styles))
            value, largest = (results.over(network, variant, figure_name, f) for f in (fold, mark))
            if value is not None and largest is not None:
                panel.bar(x, value, 0.9 * width, color=colour)
                panel.plot([x, x], [value, largest], color=colour, linewidth=1.0)
                panel.plot(x, largest, "_", color=colour, markersize=7, markeredgewidth=2.0)
    panel.set_xlim(-0.5, len(results.networks) - 0.5)
    panel.grid(False, axis="x")
    _name_columns(panel, results.networks)


def _beside(place: int, of: int) -> float:
    return 0.8 * ((place + 0.5) / of - 0.5)


def _wide(results: Results) -> float:
    return max(6.5, 1.3 * len(results.networks) + 1.0)


def _name_columns(panel: Axes, names: list[str]) -> None:
    turned = len(names) > 5
    panel.set_xticks(range(len(names)), names, rotation=20 if turned else 0, ha="right" if turned else "center")


def _percent() -> PercentFormatter:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0, decimals=0)


def _legend(made: Figure, styles: dict[str, tuple[str, str]], failures: bool = False) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker, linewidth=1.6, label=variant)
        for variant, (colour, marker) in styles.items()
    ]
    if failures:
        handles.append(Line2D([], [], color=BLACK, marker="x", linewidth=0, markeredgewidth=1.6, label="does not run"))
        handles.append(Line2D([], [], color="#E4E4E4", linewidth=6, label="below the floor"))
    made.legend(handles=handles, loc="outside upper center", ncols=len(handles))
