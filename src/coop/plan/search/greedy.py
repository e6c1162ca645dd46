"""A first plan, quickly: gaps between two uses of a value are dropped one by one, until the plan
fits.

It begins with everything kept. If a gap is dropped, the value leaves after the first of the two
uses, and is computed again right before the second, with what is missing for that. The gap that
saves the most bytes where memory is short, for its cost, is dropped first. At the end, dropped gaps
that fit again are closed, the most expensive first.

It is the start of the exact planners, and their fallback.

Levels start from the timeline, and each gap changes them: a new timeline for each of thousands of
gaps would take too long. For the same reason, the room during a rerun is an estimate. In the end,
the timeline of the whole sequence decides whether it fits.
"""

import heapq
from bisect import bisect_left, bisect_right, insort

import numpy as np

from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import profile, prune, sequence_of


def greedy(graph: Graph, budget: int) -> list[int]:
    """A sequence that fits into the budget. Raises PlanError if it finds none."""
    return Gaps(graph, budget).sequence()


class Gaps:
    """The gaps between uses of values, and which of them are dropped. poet/start.py adds a second
    way to drop them."""

    def __init__(self, graph: Graph, budget: int) -> None:
        self.graph = graph
        n = len(graph.nodes)
        self.limit = np.full(n + 1, budget, dtype=np.int64)
        """The bytes that main memory may hold while each node runs for the first time. Less than
        the budget where a rerun needs more."""
        kept = profile(graph, range(n))
        self.level = np.array([*kept.memory, kept.end], dtype=np.int64)
        """The bytes that main memory holds while each node runs for the first time, and at the
        end."""
        self.uses: list[list[int]] = []
        """For each value: where it is made or read, in order. Both ends of all its gaps."""
        self.dropped: list[set[int]] = [set() for _ in graph.values]
        """The ends of dropped gaps: there the value is computed again."""
        self.consumed: list[set[int]] = [set() for _ in graph.values]
        """Where it is overwritten: it is not in memory afterwards."""
        self.again: list[set[int]] = [set() for _ in range(n + 1)]
        """Nodes that are run again before each node."""
        for value, number in graph.overwriter.items():
            self.consumed[value].add(number)
        for made in graph.values:
            self.uses.append([made.node, *made.users, *([n] if made.kept else [])])
        self.careful = True
        """A gap is kept if the values that are computed on the way do not fit."""

    def sequence(self) -> list[int]:
        budget = int(self.limit[0])
        for _ in range(30):
            self.fit()
            self.take_back()
            reruns = ((node, at) for at, nodes in enumerate(self.again) for node in nodes)
            sequence = prune(self.graph, sequence_of(self.graph, reruns))
            found = profile(self.graph, sequence)
            if found.peak <= budget:
                return sequence
            # During a rerun, more may be in memory than when its reader runs.
            self.tighten(found.excess(budget))
        raise PlanError("the plan fits but for what is in memory while values are made again")

    def tighten(self, excess: dict[int, int]) -> None:
        """Leaves more room in the stages where a schedule exceeded the budget, by so many
        bytes."""
        for at, over in excess.items():
            self.limit[at] = min(self.limit[at], self.level[at]) - over

    def fit(self) -> None:
        """Drops gaps until the level is nowhere above the limit."""
        for self.careful in (True, False):
            self.give_up()
            if (self.level <= self.limit).all():
                return
        at = int(np.argmax(self.level - self.limit))
        raise PlanError(f"{int((self.level - self.limit)[at])} bytes too much are left while node {at} runs")

    def give_up(self) -> None:
        heap: list[tuple[float, int, int, int]] = []
        for value in range(len(self.graph.values)):
            for begin, end in zip(self.uses[value], self.uses[value][1:], strict=False):
                self.offer(heap, value, begin, end)
        while heap and (self.level > self.limit).any():
            rank, value, begin, end = heapq.heappop(heap)
            now = self.rank(value, begin, end)
            if now is None:
                continue
            if now > rank and heap and now > heap[0][0]:
                heapq.heappush(heap, (now, value, begin, end))
                continue
            for touched, at in self.drop(value, begin, end):
                self.offer_around(heap, touched, at)

    def offer(self, heap: list[tuple[float, int, int, int]], value: int, begin: int, end: int) -> None:
        rank = self.rank(value, begin, end)
        if rank is not None:
            heapq.heappush(heap, (rank, value, begin, end))

    def offer_around(self, heap: list[tuple[float, int, int, int]], value: int, at: int) -> None:
        uses = self.uses[value]
        i = uses.index(at)
        for j in (i - 1, i):
            if 0 <= j < len(uses) - 1:
                self.offer(heap, value, uses[j], uses[j + 1])

    def rank(self, value: int, begin: int, end: int) -> float | None:
        """Cost for each byte that is saved where memory is short; None if the gap is no longer
        there or saves none."""
        saved = self.saved(value, begin, end)
        needed = self.may_be_run(value, end) if saved else None
        return None if needed is None else (sum(self.graph.nodes[node].cost for node in needed) + 1) / saved

    def saved(self, value: int, begin: int, end: int) -> int:
        """Bytes, summed over the nodes where memory is short; 0 if the gap is no longer there."""
        uses = self.uses[value]
        i = uses.index(end) if end in uses else 0
        if end in self.dropped[value] or not i or uses[i - 1] != begin:
            return 0
        over = (self.level - self.limit)[self.inside(value, begin, end)]
        return int(np.clip(over, 0, self.graph.values[value].bytes).sum())

    def may_be_run(self, value: int, end: int) -> list[int] | None:
        """The nodes to run again to have the value there. None: that is impossible, or there is no
        room meanwhile."""
        needed = self.needed(self.graph.values[value].node, end)
        if needed is None or (self.careful and not self.fits_for_a_while(needed, end)):
            return None
        return needed

    def inside(self, value: int, begin: int, end: int) -> slice:
        """Where it is in memory because of this gap. A node that makes or reads it has it in memory
        in any case; a node before which a reader of it is run again does not."""
        made = self.graph.values[value]
        return slice(begin + (begin == made.node or begin in made.users), end)

    def needed(self, node: int, at: int) -> list[int] | None:
        """The node, and the nodes that have to be run again before it in this stage. None:
        impossible."""
        if at >= len(self.graph.nodes):
            return None
        found: list[int] = []
        stack = [node]
        seen = {node}
        while stack:
            current = stack.pop()
            if current in self.again[at]:
                continue
            if not self.graph.repeatable(current, at) or any(
                self.wanted_after(value, at) for value in self.graph.nodes[current].overwritten()
            ):
                return None
            found.append(current)
            if len(found) > 200:
                return None
            for value in self.graph.nodes[current].inputs:
                maker = self.graph.values[value].node
                if maker not in seen and not self.there(value, at):
                    seen.add(maker)
                    stack.append(maker)
        return found

    def wanted_after(self, value: int, at: int) -> bool:
        """Whether a later use needs it in memory: then it must not be overwritten."""
        uses = self.uses[value]
        i = bisect_right(uses, at)
        return i < len(uses) and uses[i] not in self.dropped[value]

    def fits_for_a_while(self, needed: list[int], at: int) -> bool:
        """Whether the values that are computed on the way fit, before the node that needs them
        runs."""
        nodes, values, here = self.graph.nodes, self.graph.values, self.graph.nodes[at]
        order = sorted(needed)
        last = {value: node for node in order for value in nodes[node].inputs}
        used = int(self.level[at]) - here.scratch - sum(values[v].bytes for v in here.outputs)
        used -= sum(values[v].bytes for node in order for v in nodes[node].outputs if v in here.inputs)
        most = 0
        for node in order:
            used += sum(values[v].bytes for v in nodes[node].outputs)
            most = max(most, used + nodes[node].scratch - sum(values[v].bytes for v in nodes[node].overwritten()))
            made = {v for parent in order if parent <= node for v in nodes[parent].outputs}
            used -= sum(values[v].bytes for v in nodes[node].inputs if v in made and last[v] == node)
            used -= sum(values[v].bytes for v in nodes[node].outputs if v not in last and v not in here.inputs)
        return most <= max(int(self.limit[at]), int(self.level[at]))

    def there(self, value: int, at: int) -> bool:
        """Whether a value is in memory when a stage is reached."""
        uses = self.uses[value]
        if at <= uses[0] or at > uses[-1]:
            return False
        i = bisect_left(uses, at)
        return uses[i] not in self.dropped[value] and uses[i - 1] not in self.consumed[value]

    def drop(self, value: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the values that are now used there too."""
        needed = self.needed(self.graph.values[value].node, end)
        assert needed is not None
        self.dropped[value].add(end)
        self.level[self.inside(value, begin, end)] -= self.graph.values[value].bytes
        touched = []
        for node in needed:
            self.again[end].add(node)
        for node in needed:
            for number in self.graph.nodes[node].inputs:
                touched += self.use(number, end)
            for number in self.graph.nodes[node].overwritten():
                self.consumed[number].add(end)
        return touched

    def use(self, number: int, at: int) -> list[tuple[int, int]]:
        uses = self.uses[number]
        if at in uses:
            return []
        was_there = self.there(number, at)
        insort(uses, at)
        if not was_there:  # it is computed again there, and leaves again
            self.dropped[number].add(at)
        return [(number, at)]

    def take_back(self) -> None:
        """Closes gaps that fit again, the most expensive first."""
        gaps = [(value, end) for value, ends in enumerate(self.dropped) for end in ends]
        gaps.sort(key=lambda gap: -self.graph.nodes[self.graph.values[gap[0]].node].cost)
        for value, end in gaps:
            uses = self.uses[value]
            begin = uses[uses.index(end) - 1]
            if begin in self.consumed[value]:
                continue
            size = self.graph.values[value].bytes
            inner = self.inside(value, begin, end)
            if ((self.level + size)[inner] <= self.limit[inner]).all():
                maker = self.graph.values[value].node
                others = [v for v in self.graph.nodes[maker].outputs if v != value and end in self.dropped[v]]
                if others:
                    continue
                self.level[inner] += size
                self.dropped[value].discard(end)
                self.again[end].discard(maker)
