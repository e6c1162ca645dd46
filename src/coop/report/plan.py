"""The picture of a plan: which op is computed when, and what is in memory meanwhile.

Time goes to the right, in computations. Above, bytes in memory and the budget. Below, one line for
each node, in the order of the program: dark where it runs for the first time, red where it runs
again, and light blue while something that it made is in memory, as in Checkmate's figures. Where
the plan pages, triangles show when an output of the node is written out and when it is read back.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coop.plan.model.graph import Graph
from coop.plan.model.plan import Plan
from coop.plan.model.timeline import Timeline
from coop.report.canvas import BLACK, GREY, IN, OUT, RED, SKY, figure, save
from coop.sizes import format_bytes

_Array = NDArray[np.float32]
_Points = tuple[list[float], list[float]]
_PIXELS = 1200  # of the lower part, at most, each way


def draw(plan: Plan, graph: Graph, path: str | Path) -> list[Path]:
    """Writes the picture, and returns the files."""
    memory, present, points = _course(plan, graph)
    mebibytes = 2.0**20
    with figure(10.0, 8.0) as made:
        made.set_layout_engine("constrained")
        above, below = made.subplots(2, 1, sharex=True, height_ratios=[1, 3])
        above.fill_between(
            range(len(memory)), memory / mebibytes, step="post", color=SKY, linewidth=0, label="in memory"
        )
        above.axhline(plan.budget / mebibytes, color=RED, linewidth=1, label=f"budget, {format_bytes(plan.budget)}")
        above.set_ylabel("MiB")
        above.set_ylim(bottom=0)
        above.legend(loc="lower center", ncols=2)
        runs = len(memory) - len(graph.nodes)
        name = f"{graph.name}, " if graph.name else ""
        above.set_title(f"{name}{plan.planner}: {plan.increase:.2%} more time, {runs:,} runs again")
        span = (0, len(memory), len(graph.nodes), 0)
        below.imshow(
            _shrunk(present), aspect="auto", extent=span, cmap=_colours(), vmin=0, vmax=1, interpolation="nearest"
        )
        size = max(0.2, min(4.0, 600 / max(len(graph.nodes), 1)))
        below.scatter(*points["first"], s=size, color=BLACK, marker="s", linewidths=0, label="computed")
        below.scatter(*points["again"], s=2 * size, color=RED, marker="s", linewidths=0, label="computed again")
        for kind, colour, marker, words in (("out", OUT, "^", "written out"), ("in", IN, "v", "read back")):
            if points[kind][0]:
                below.scatter(*points[kind], s=5 * size, color=colour, marker=marker, linewidths=0, label=words)
        below.plot([], [], color=SKY, linewidth=6, label="in memory")
        below.set_xlabel("computations")
        below.set_ylabel("node, in the order of the program")
        below.grid(False)
        below.legend(loc="lower left", markerscale=2.5, facecolor="white", framealpha=0.8, frameon=True, edgecolor=GREY)
        return save(made, Path(path))


def _course(plan: Plan, graph: Graph) -> tuple[_Array, _Array, dict[str, _Points]]:
    """Bytes at each computation; for each node and computation, whether one of its values is in
    memory; and where nodes run, first and again, and where transfers go out and in."""
    timeline = Timeline(graph, plan.steps)
    memory = np.array(timeline.memory, dtype=np.float32)
    present = np.zeros((len(graph.nodes), len(memory)), dtype=np.float32)
    points: dict[str, _Points] = {kind: ([], []) for kind in ("first", "again", "out", "in")}
    at = 0
    for moment, values in timeline.present():
        if moment.kind == "compute":
            marks = points["again" if moment.again else "first"]
            marks[0].append(at + 0.5)
            marks[1].append(moment.number + 0.5)
            present[[graph.values[value].node for value in values], at] = 1
            at += 1
    ran = 0
    for kind, number in plan.steps:
        ran += kind == "compute"
        if kind in ("out", "in"):
            points[kind][0].append(float(ran))
            points[kind][1].append(graph.values[number].node + 0.5)
    return memory, present, points


def _shrunk(present: _Array) -> _Array:
    """Reduced to no more pixels than can be seen."""
    for axis in (0, 1):
        factor = -(-present.shape[axis] // _PIXELS)
        if factor > 1:
            starts = np.arange(0, present.shape[axis], factor)
            present = np.maximum.reduceat(present, starts, axis=axis)
    return present


def _colours() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("coop", ["white", SKY])
