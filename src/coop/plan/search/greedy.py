"""A first plan, quickly: gaps between two uses of a value are given up one by one, until it fits.

It begins with keeping everything. A value whose gap is given up leaves after the first of the two
uses, and is made again right before the second, with whatever is missing for that. Each time the
gap is chosen that saves the most bytes where memory is short, for its cost. At the end, gaps that
fit in again are closed, the most expensive first.

A start for the exact planners, and their fallback.

Levels begin as those of the timeline, and each gap changes them: a timeline for each of thousands
of gaps would take too long. Whether there is room while something is made again is an estimate for
the same reason. The timeline of the whole sequence says in the end whether it fits.
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
    """The gaps between uses of values, and which of them were given up. poet/start.py adds a
    second way to do that."""

    def __init__(self, graph: Graph, budget: int) -> None:
        self.graph = graph
        n = len(graph.nodes)
        self.limit = np.full(n + 1, budget, dtype=np.int64)
        """What main memory may hold while each node runs for the first time; less than the budget
        where that is not all."""
        kept = profile(graph, range(n))
        self.level = np.array([*kept.memory, kept.end], dtype=np.int64)
        """What main memory holds while each node runs for the first time, and at the end."""
        self.uses: list[list[int]] = []
        """For each value: where it is made or read, in order. Both ends of all its gaps."""
        self.dropped: list[set[int]] = [set() for _ in graph.values]
        """The ends of gaps that were given up: there the value is made again."""
        self.consumed: list[set[int]] = [set() for _ in graph.values]
        """Where it is overwritten: it is not there afterwards."""
        self.again: list[set[int]] = [set() for _ in range(n + 1)]
        """Nodes that are run again before each node."""
        for value, number in graph.overwriter.items():
            self.consumed[value].add(number)
        for made in graph.values:
            self.uses.append([made.node, *made.users, *([n] if made.kept else [])])
        self.careful = True
        """Gaps stay if what is made on the way does not fit in."""

    def sequence(self) -> list[int]:
        budget = int(self.limit[0])
        for _ in range(30):
            self.fit()
            self.take_back()
            places = ((node, at) for at, nodes in enumerate(self.again) for node in nodes)
            sequence = prune(self.graph, sequence_of(self.graph, places))
            found = profile(self.graph, sequence)
            if found.peak <= budget:
                return sequence
            # While something is made again, more may be in memory than when its reader runs.
            self.tighten(found.excess(budget))
        raise PlanError("the plan fits but for what is in memory while values are made again")

    def tighten(self, excess: dict[int, int]) -> None:
        """Leaves more room in the stages where a schedule exceeded the budget, by so many
        bytes."""
        for at, over in excess.items():
            self.limit[at] = min(self.limit[at], self.level[at]) - over

    def fit(self) -> None:
        """Gives gaps up until the level is nowhere above the limit."""
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
        places = self.uses[value]
        i = places.index(at)
        for j in (i - 1, i):
            if 0 <= j < len(places) - 1:
                self.offer(heap, value, places[j], places[j + 1])

    def rank(self, value: int, begin: int, end: int) -> float | None:
        """Cost for each byte that is saved where memory is short; None if the gap is no longer
        there or saves none."""
        saved = self.saved(value, begin, end)
        needed = self.may_be_run(value, end) if saved else None
        return None if needed is None else (sum(self.graph.nodes[node].cost for node in needed) + 1) / saved

    def saved(self, value: int, begin: int, end: int) -> int:
        """Bytes, summed over the nodes where memory is short; 0 if the gap is no longer there."""
        places = self.uses[value]
        i = places.index(end) if end in places else 0
        if end in self.dropped[value] or not i or places[i - 1] != begin:
            return 0
        over = (self.level - self.limit)[self.inside(value, begin, end)]
        return int(np.clip(over, 0, self.graph.values[value].bytes).sum())

    def may_be_run(self, value: int, end: int) -> list[int] | None:
        """What has to be run again to have the value there. None: it cannot, or has no room
        meanwhile."""
        needed = self.needed(self.graph.values[value].node, end)
        if needed is None or (self.careful and not self.fits_for_a_while(needed, end)):
            return None
        return needed

    def inside(self, value: int, begin: int, end: int) -> slice:
        """Where it is in memory because of this gap. A node that makes or reads it has it in
        memory anyway, but not one before which something is made again that reads it."""
        made = self.graph.values[value]
        return slice(begin + (begin == made.node or begin in made.users), end)

    def needed(self, node: int, at: int) -> list[int] | None:
        """The node, and what has to be run again before it at this place. None: impossible."""
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
        """Whether somebody counts on finding it there later: then it must not be overwritten."""
        places = self.uses[value]
        i = bisect_right(places, at)
        return i < len(places) and places[i] not in self.dropped[value]

    def fits_for_a_while(self, needed: list[int], at: int) -> bool:
        """Whether what is made on the way has room, before the node that wants it makes anything
        itself."""
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
        """Whether a value is in memory when a place is reached."""
        places = self.uses[value]
        if at <= places[0] or at > places[-1]:
            return False
        i = bisect_left(places, at)
        return places[i] not in self.dropped[value] and places[i - 1] not in self.consumed[value]

    def drop(self, value: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the values that are used there from now on as well."""
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
        places = self.uses[number]
        if at in places:
            return []
        was_there = self.there(number, at)
        insort(places, at)
        if not was_there:  # it is made again there, and goes again
            self.dropped[number].add(at)
        return [(number, at)]

    def take_back(self) -> None:
        """Gaps that fit in again are closed, the most expensive first."""
        gaps = [(value, end) for value, ends in enumerate(self.dropped) for end in ends]
        gaps.sort(key=lambda gap: -self.graph.nodes[self.graph.values[gap[0]].node].cost)
        for value, end in gaps:
            places = self.uses[value]
            begin = places[places.index(end) - 1]
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
