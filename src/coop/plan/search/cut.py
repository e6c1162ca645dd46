"""Plans from one cut: what is kept across the moment with the least room decides the rest.

In a training step that moment is the turn from forward to backward. A value that is read after it
was either kept, or is computed again once, with what that needs, right before it is first read;
then it stays. Choosing one of the two for all values at once is a knapsack with precedences: a
mixed-integer program with a Boolean for each node and value. Its optimum is found in a second for
thousands of nodes. Its relaxation (bounds.py) is a bound for all plans; on the networks of the
paper the two are within a percent of each other. Decision 12 says more.

Memory at other moments is bounded too, as a sum over what is kept. Reruns for the sake of others
add to it. If a plan exceeds the budget at a moment, that moment gets less room, and the program is
solved again. These sums are rows of a program, because its unknowns are no schedule. The levels
that they start from, and the excess over the budget, come from the timeline.
"""

from collections.abc import Iterator

from coop.plan.exact.solvers import math_opt
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import frees, profile, prune, sequence_of
from coop.plan.model.timeline import Rerun
from coop.plan.search.bounds import Cuts
from coop.plan.search.search import Search

_ROUNDS = 40
_GAP = 1e-3  # of the time that reruns take


def cut(search: Search, *, seconds: float) -> Iterator[list[int]]:
    """Sequences, until one fits into the budget. The first is the cheapest, if nothing has to be
    run again for others."""
    levels = profile(search.graph, range(len(search.graph.nodes))).memory
    moment = max(range(len(levels)), key=lambda at: levels[at])
    return _Plans(search, moment, levels).sequences(min(seconds, search.seconds_left()))


class _Plans:
    def __init__(self, search: Search, moment: int, levels: list[int]) -> None:
        self.search, self.graph, self.moment = search, search.graph, moment
        self.cuts = Cuts(search.graph, search.budget, [moment], whole=True)
        self.kept, self.again = self.cuts.kept[0], self.cuts.again[0]
        for value, variable in self.kept.items():
            if self.graph.overwriter.get(value, moment) < moment:
                self.cuts.linear.highs[variable] = 0
        self.levels = levels
        self.rows: dict[int, int] = {}
        """For each other moment where memory is bounded: the row, and what is in it."""
        self.terms: dict[int, list[tuple[int, float]]] = {}
        for at, level in enumerate(levels):
            if level > search.budget and at != moment:
                self._bound(at)

    def _bound(self, at: int) -> None:
        """Memory at another moment: the values that are there in any case, and those that are there
        only because they are kept across the cut. At a moment before the cut, these are not read
        again before it; at a moment after the cut, they have not been read yet."""
        terms, fixed = [], self.levels[at]
        for value, variable in self.kept.items():
            if self._waits(value, at):
                size = self.graph.values[value].bytes
                terms.append((variable, size / self.search.budget))
                fixed -= size
        self.rows[at], self.terms[at] = len(self.cuts.linear.row_lows), terms
        self.cuts.linear.row(terms, high=(self.search.budget - fixed) / self.search.budget)

    def _waits(self, value: int, at: int) -> bool:
        """Whether a value is in memory at a moment only if it is kept across the cut."""
        users, end = self.graph.values[value].users, len(self.graph.nodes)
        if at < self.moment:
            before = [user for user in users if user <= self.moment]
            return at > max([self.graph.values[value].node, *before])
        after = [user for user in users if user > self.moment] + ([end] if self.graph.values[value].kept else [])
        return bool(after) and at < after[0]

    def sequences(self, seconds: float) -> Iterator[list[int]]:
        opt = math_opt()
        end = self.search.seconds + seconds
        for _ in range(_ROUNDS):
            left = end - self.search.seconds
            if left <= 0 or not self.search.seconds_left():
                break
            result = self.cuts.linear.run(self.search, left / 2, relative_gap_tolerance=_GAP)
            values = self.cuts.linear.values(result)
            if result.termination.reason == opt.TerminationReason.INFEASIBLE or values is None:
                break
            reruns = self._reruns(values)
            late = [node for node, at in reruns if not self.graph.repeatable(node, at)]
            if late:
                for node in late:
                    self.cuts.linear.highs[self.again[node]] = 0
                continue
            sequence = sequence_of(self.graph, reruns)
            try:
                frees(self.graph, sequence)
            except PlanError:
                break
            sequence = prune(self.graph, sequence)
            yield sequence
            if not self._tighten(sequence, values):
                break

    def _reruns(self, values: list[float]) -> list[Rerun]:
        """The reruns: each right before its output is read."""
        graph = self.graph
        again = [node for node, variable in self.again.items() if values[variable] > 0.5]
        at: dict[int, int] = {}
        for node in sorted(again, reverse=True):
            first = len(graph.nodes)
            for value in graph.nodes[node].outputs:
                if value in self.kept and values[self.kept[value]] > 0.5:
                    continue
                for user in graph.values[value].users:
                    first = min(first, user if user > self.moment else at.get(user, first))
            for value in graph.nodes[node].inputs:  # before one of its inputs is overwritten
                first = min(first, at.get(self.graph.overwriter.get(value, -1), first))
            at[node] = first
        return list(at.items())

    def _tighten(self, sequence: list[int], values: list[float]) -> bool:
        """Leaves more room where the sequence exceeds the budget. False: it does not exceed it, or
        no more room can be left."""
        worst = profile(self.graph, sequence).excess(self.search.budget)
        linear, budget = self.cuts.linear, self.search.budget
        for at, over in worst.items():
            if at not in self.rows:
                if at == self.moment or at >= len(self.graph.nodes):
                    return False
                self._bound(at)
            row = self.rows[at]
            filled = sum(size * round(values[variable]) for variable, size in self.terms[at])
            linear.row_highs[row] = min(linear.row_highs[row], filled) - over / budget
        return bool(worst)
