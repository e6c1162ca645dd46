"""The picture of a plan: which op is computed when, and what is in memory meanwhile.

Time goes to the right, in computations. Above, bytes in memory and the budget. Below, one line for each node, in the order of the
program: dark where it runs for the first time, red where it runs again, and light blue while something that it made is in
memory, as in Checkmate's figures.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coop.plan.graph import Graph
from coop.plan.plan import Plan
from coop.report.canvas import BLACK, GREY, RED, SKY, figure, save
from coop.sizes import format_bytes

_Array = NDArray[np.float32]
_Points = tuple[list[float], list[float]]
_PIXELS = 1200  # of the lower part, at most, each way


def draw(plan: Plan, graph: Graph, path: str | Path) -> list[Path]:
    """Writes the picture, and returns the files."""
    memory, present, first, again = _history(plan, graph)
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
        below.scatter(*first, s=size, color=BLACK, marker="s", linewidths=0, label="computed")
        below.scatter(*again, s=2 * size, color=RED, marker="s", linewidths=0, label="computed again")
        below.plot([], [], color=SKY, linewidth=6, label="in memory")
        below.set_xlabel("computations")
        below.set_ylabel("node, in the order of the program")
        below.grid(False)
        below.legend(loc="lower left", markerscale=4, facecolor="white", framealpha=0.8, frameon=True, edgecolor=GREY)
        return save(made, Path(path))


def _history(plan: Plan, graph: Graph) -> tuple[_Array, _Array, _Points, _Points]:
    """Bytes at each computation; for each node and computation whether something of it is in memory; where nodes run."""
    length = len(plan.sequence())
    memory = np.zeros(length, dtype=np.float32)
    present = np.zeros((len(graph.nodes), length), dtype=np.float32)
    there: set[int] = set()
    used, at, next_first = 0, -1, 0
    first: _Points = ([], [])
    again: _Points = ([], [])
    for kind, number in plan.steps:
        match kind:
            case "compute":
                at += 1
                node = graph.nodes[number]
                for value in node.overwritten():
                    there.discard(value)
                    used -= graph.values[value].bytes
                for value in node.outputs:
                    if value not in there:
                        there.add(value)
                        used += graph.values[value].bytes
                marks = first if number == next_first else again
                marks[0].append(at + 0.5)
                marks[1].append(number + 0.5)
                memory[at] = graph.base[next_first] + used + node.scratch
                next_first += number == next_first
                for value in there:
                    present[graph.values[value].node, at] = 1
            case "free":
                there.discard(number)
                used -= graph.values[number].bytes
            case "in":
                there.add(number)
                used += graph.values[number].bytes
    return memory, present, first, again


def _shrunk(present: _Array) -> _Array:
    """No more pixels than can be seen."""
    for axis in (0, 1):
        factor = -(-present.shape[axis] // _PIXELS)
        if factor > 1:
            starts = np.arange(0, present.shape[axis], factor)
            present = np.maximum.reduceat(present, starts, axis=axis)
    return present


def _colours() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("coop", ["white", SKY])
