"""First plans for poet.py, quickly: as in search/greedy.py, but a gap may also be paged.

The way that costs less energy is taken.
"""

from collections.abc import Callable

from coop.plan.model.graph import Graph
from coop.plan.model.paged import arrange, complete
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.timeline import Timeline
from coop.plan.poet.price import Price
from coop.plan.search.greedy import Gaps


def first(
    graph: Graph, budget: int, price: Price, *, rematerialise: bool, page: bool, hurry: float = 0.0
) -> list[Step]:
    """Steps that fit into the budget. `hurry`: joules that a second is worth. Raises PlanError if
    it finds none."""
    return _PagedGaps(graph, budget, price, rematerialise, page, hurry).steps()


class _PagedGaps(Gaps):
    def __init__(self, graph: Graph, budget: int, price: Price, rematerialise: bool, page: bool, hurry: float) -> None:
        super().__init__(graph, budget)
        self.price, self.rematerialise, self.hurry = price, rematerialise, hurry
        self.room = (price.capacity if price.capacity is not None else float("inf")) if page else -1
        """Free bytes in storage."""
        self.paged: list[set[int]] = [set() for _ in graph.values]
        """The ends of gaps at which the value is brought in."""

    def steps(self) -> list[Step]:
        budget = int(self.limit[0])
        for _ in range(30):
            self.fit()
            self.take_back()
            for paged, dropped in zip(self.paged, self.dropped, strict=True):
                paged &= dropped
            reruns = ((node, at) for at, nodes in enumerate(self.again) for node in nodes)
            brought = ((value, at) for value, ends in enumerate(self.paged) for at in ends)
            steps = complete(self.graph, arrange(self.graph, reruns, brought))
            excess = Timeline(self.graph, steps).excess(budget)
            if not excess:
                return steps
            self.tighten(excess)
        raise PlanError("the plan fits but for what is in memory while values are made again")

    def rank(self, value: int, begin: int, end: int) -> float | None:
        saved = self.saved(value, begin, end)
        found = self.way(value, end) if saved else None
        return None if found is None else found[0] / saved

    def way(self, value: int, end: int) -> tuple[float, bool] | None:
        """What it costs to drop a gap, and whether by paging."""
        found: list[tuple[float, bool]] = []
        if self.rematerialise:
            needed = self.may_be_run(value, end)
            if needed is not None:
                found.append((sum(self.worth(self.price.run, node) for node in needed), False))
        if self.paged[value] or self.room >= self.graph.values[value].bytes:
            out = 0.0 if self.paged[value] else self.worth(self.price.go_out, value)
            found.append((out + self.worth(self.price.bring, value), True))
        return min(found, default=None)

    def worth(self, what: Callable[[int], tuple[float, int]], number: int) -> float:
        joules, nanoseconds = what(number)
        return joules + self.hurry * nanoseconds / 1e9 + 1e-12

    def drop(self, value: int, begin: int, end: int) -> list[tuple[int, int]]:
        found = self.way(value, end)
        assert found is not None
        if not found[1]:
            return super().drop(value, begin, end)
        if not self.paged[value]:
            self.room -= self.graph.values[value].bytes
        self.paged[value].add(end)
        self.dropped[value].add(end)
        self.level[self.inside(value, begin, end)] -= self.graph.values[value].bytes
        return []

    def there(self, value: int, at: int) -> bool:
        return at in self.paged[value] or super().there(value, at)
