"""Bounds: the least that any plan can cost, by linear programs. They make a gap certified.

`bound` is a relaxation of Checkmate's schedule to a few moments, for graphs of any size. At each
moment, while a node runs for the first time, what is in memory fits into the budget. What is read
between two moments and was not in memory at the first of them has been run again in between, and so
has what that needs. The model does not say how often, or what is in memory meanwhile. Runs between
different pairs of moments are different runs, so their costs add up. More moments give a better
bound. Their position matters more than their number, so they are put where the least memory is
left.

The other bound, with all of Checkmate's stages, is in exact/checkmate.py. It is better, and out of
reach for more than some 200 nodes.

Memory is written here as rows of a program, because its unknowns are no schedule. The positions of
moments follow from the timeline, and from how long the program reads each value.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from coop.plan.exact.solvers import Linear
from coop.plan.model.graph import Graph, until
from coop.plan.model.schedule import profile
from coop.plan.search.search import Search

_SLACK = 1e-6  # a solver's tolerance, of the cost of the graph
_Levels = NDArray[np.float64]


def bound(search: Search, moments: Sequence[int], *, seconds: float, whole: bool = False) -> float | None:
    """Nanoseconds: no plan takes less. The graph's own cost is included. None: the solver found no
    bound in time. Infinity: there is no plan.

    `whole`: variables are integers. That takes longer, and is worth it for one moment.
    """
    # A solver may find that a plan that fills the budget to the last byte exceeds it.
    cuts = Cuts(search.graph, search.budget, sorted(moments), whole=whole, slack=_SLACK)
    found = cuts.linear.least(search, seconds)
    return None if found is None else search.graph.cost * (1 - _SLACK) + found


def moments(graph: Graph, count: int) -> list[int]:
    """Nodes at which memory is short: first the highest, then those with the most bytes that no
    chosen moment has in memory."""
    levels = np.array(profile(graph, range(len(graph.nodes))).memory, dtype=np.float64)
    chosen = [int(levels.argmax())]
    alive = _crossing(graph)
    while len(chosen) < min(count, len(graph.nodes)):
        # Next, the node with the most bytes that no chosen moment has in memory.
        gain = levels - np.max([alive(moment) for moment in chosen], axis=0)
        gain[chosen] = -1
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        chosen.append(best)
    return sorted(chosen)


def _crossing(graph: Graph) -> Callable[[int], _Levels]:
    """The bytes that a moment has in common with each other moment, when everything is kept."""
    begin = np.array([value.node for value in graph.values])
    end = np.array([until(graph, number) for number in range(len(graph.values))])
    sizes = np.array([value.bytes for value in graph.values], dtype=np.float64)

    def common(moment: int) -> _Levels:
        here = (begin <= moment) & (end >= moment)
        change = np.zeros(len(graph.nodes) + 2)
        np.add.at(change, begin[here], sizes[here])
        np.add.at(change, end[here] + 1, -sizes[here])
        return np.cumsum(change)[: len(graph.nodes)]

    return common


class Cuts:
    """The model. cut.py makes plans of it, with one moment."""

    def __init__(
        self, graph: Graph, budget: int, moments: list[int], *, whole: bool = False, slack: float = 0.0
    ) -> None:
        self.graph, self.budget, self.moments, self.whole, self.slack = graph, budget, moments, whole, slack
        self.ends = [*moments[1:], len(graph.nodes)]
        self.linear = Linear()
        self.kept: list[dict[int, int]] = []
        """For each moment: the variables of values made before it that may be in memory."""
        self.again: list[dict[int, int]] = []
        """For each stretch after a moment, nodes that may be run again in it."""
        for moment in moments:
            self._add_variables(moment)
        for stretch in range(len(moments)):
            self._add_memory(stretch)
            self._add_needs(stretch)
            if stretch + 1 < len(moments):
                self._add_carries(stretch)
                self._add_ever(stretch)

    def _add_variables(self, moment: int) -> None:
        graph, linear = self.graph, self.linear
        again = {}
        for number in range(moment + 1):
            if graph.repeatable(number, moment + 1):
                again[number] = linear.variable(0, 1, graph.nodes[number].cost, whole=self.whole)
        kept = {}
        for number, value in enumerate(graph.values):
            if value.node < moment:
                low = number in graph.nodes[moment].inputs
                kept[number] = linear.variable(low, 1, 0, whole=self.whole)
        self.again.append(again)
        self.kept.append(kept)

    def _add_memory(self, stretch: int) -> None:
        graph, moment = self.graph, self.moments[stretch]
        node = graph.nodes[moment]
        fixed = graph.base[moment] + node.scratch + sum(graph.values[v].bytes for v in node.outputs)
        fixed -= sum(graph.values[v].bytes for v in node.overwritten())
        unit = max(self.budget, 1)
        terms = [(variable, graph.values[v].bytes / unit) for v, variable in self.kept[stretch].items()]
        self.linear.row(terms, high=(self.budget - fixed) / unit + self.slack)

    def _there(self, stretch: int, value: int, again: dict[int, int] | None = None) -> list[int] | None:
        """Variables of which one has to be 1 for a value to be read in a stretch. None: it may be
        in memory in any case."""
        graph, moment = self.graph, self.moments[stretch]
        if graph.values[value].node > moment or (
            graph.values[value].node == moment and graph.overwriter.get(value, moment + 1) > moment
        ):
            return None
        found = []
        # What the moment's own node overwrites is no longer in memory.
        if value in self.kept[stretch] and graph.overwriter.get(value) != moment:
            found.append(self.kept[stretch][value])
        runs = self.again[stretch] if again is None else again
        if graph.values[value].node in runs:
            found.append(runs[graph.values[value].node])
        return found

    def _add_needs(self, stretch: int) -> None:
        graph = self.graph
        begin, end = self.moments[stretch], self.ends[stretch]
        needed = {v for j in range(begin + 1, min(end + 1, len(graph.nodes))) for v in graph.nodes[j].inputs}
        if end == len(graph.nodes):
            needed.update(number for number, value in enumerate(graph.values) if value.kept)
        for value in needed:
            there = self._there(stretch, value)
            if there is not None:
                self.linear.row([(variable, 1.0) for variable in there], low=1.0)
        for number, again in self.again[stretch].items():
            for value in graph.nodes[number].inputs:
                there = self._there(stretch, value)
                if there is not None:
                    self.linear.row([*((variable, 1.0) for variable in there), (again, -1.0)], low=0.0)

    def _add_ever(self, stretch: int) -> None:
        """The same for everything after a moment, whatever the stretch. Otherwise fractions of runs
        would be enough."""
        graph, linear, end = self.graph, self.linear, len(self.graph.nodes)
        ever = {}
        for number in self.again[stretch]:
            ever[number] = linear.variable(0, 1, 0)
            runs = [later[number] for later in self.again[stretch:] if number in later]
            linear.row([*((run, 1.0) for run in runs), (ever[number], -1.0)], low=0.0)
        needed = {v for j in range(self.moments[stretch] + 1, end) for v in graph.nodes[j].inputs}
        needed.update(number for number, value in enumerate(graph.values) if value.kept)
        for value in needed:
            there = self._there(stretch, value, ever)
            if there is not None:
                linear.row([(variable, 1.0) for variable in there], low=1.0)
        for number, again in ever.items():
            for value in graph.nodes[number].inputs:
                there = self._there(stretch, value, ever)
                if there is not None:
                    linear.row([*((variable, 1.0) for variable in there), (again, -1.0)], low=0.0)

    def _add_carries(self, stretch: int) -> None:
        begin, end = self.moments[stretch], self.ends[stretch]
        for value, later in self.kept[stretch + 1].items():
            there = self._there(stretch, value)
            if there is None:
                continue
            if begin < self.graph.overwriter.get(value, -1) < end:  # overwritten then, unless it was computed again
                there = [variable for variable in there if variable != self.kept[stretch].get(value)]
            self.linear.row([*((variable, 1.0) for variable in there), (later, -1.0)], low=0.0)
