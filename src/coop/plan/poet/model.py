"""POET's model: the staged model (exact/staged.py) with paging, for the least energy. Memory is a
constraint there. The timeline says where a solution exceeds the budget."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from coop.plan.exact.solvers import Value, run_cp
from coop.plan.exact.staged import Model
from coop.plan.model.paged import arrange, complete
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.timeline import Rerun, Timeline
from coop.plan.poet.price import Price
from coop.plan.search.search import Search

_UNITS = 10_000_000
"""Units of energy and time: enough digits, and small numbers solve faster."""

Offer = Callable[[Sequence[Step]], bool]


class PagedModel(Model):
    """A value may be brought in in each stage where it may be read. It is written out once, when it
    is first computed.

    It is brought in right before its first reader in that stage. So there is room for the transfer
    whenever there is room for the reader.
    """

    def __init__(self, search: Search, price: Price, reruns: set[Rerun], *, page: bool, limit: int | None) -> None:
        self.price, self.page, self.time_limit = price, page, limit
        self.brings: dict[Rerun, Any] = {}
        """A value, and the stage in which it is brought in."""
        self.outs: dict[int, Any] = {}
        super().__init__(search.graph, search.budget, reruns)

    def _brought(self, number: int, at: int) -> Any:
        value = self.graph.values[number]
        read = at in value.users or (value.kept and at == len(self.graph.nodes))
        if not self.page or not (read or any((user, at) in self.again for user in value.users)):
            return None
        if number not in self.outs:
            self.outs[number] = self.model.new_bool_var("")
        bring = self.brings[number, at] = self.model.new_bool_var("")
        self.model.add_implication(bring, self.outs[number])
        return bring

    def _brought_before(self, number: int, node: int, at: int) -> list[list[Any]]:
        if (number, at) not in self.brings:
            return []
        users = [user for user in self.graph.values[number].users if user < node and (user, at) in self.again]
        own = [[self.brings[number, at]]] if number in self.graph.nodes[node].inputs else []
        return own + [[self.brings[number, at], self.again[user, at]] for user in users]

    def _minimise(self) -> None:
        """The time limit, and the capacity of the storage."""
        model, values = self.model, self.graph.values
        literals = [*self.again.values(), *self.brings.values(), *self.outs.values()]
        costs = [self.price.run(node) for node, _ in self.again]
        costs += [self.price.bring(value) for value, _ in self.brings] + [
            self.price.go_out(value) for value in self.outs
        ]
        scale = max(self.price.watts * self.graph.cost / 1e9, 1e-30) / _UNITS
        model.minimize(self._sum(literals, [max(1, round(joules / scale)) for joules, _ in costs]))
        if self.time_limit is not None:
            room = self.time_limit - self.graph.cost
            unit = max(1, room // _UNITS)
            model.add(self._sum(literals, [-(-time // unit) for _, time in costs]) <= room // unit)
        if self.outs and self.price.capacity is not None:
            unit = max(1, self.price.capacity // _UNITS)
            sizes = [-(-values[value].bytes // unit) for value in self.outs]
            model.add(self._sum(list(self.outs.values()), sizes) <= self.price.capacity // unit)

    def _sum(self, literals: list[Any], factors: list[int]) -> Any:
        return self.cp.LinearExpr.weighted_sum(literals, factors)

    def best(self, search: Search, seconds: float, start: Sequence[Step] | None, offer: Offer) -> bool:
        """Offers what it finds. True: that is the best plan of the model. Raises PlanError if it
        has none."""

        def heard(value: Value) -> None:
            with contextlib.suppress(PlanError):  # it may exceed the budget during a rerun
                offer(self._steps(value))

        end = search.seconds + min(seconds, search.seconds_left())
        while True:
            if start is not None:
                self.start(start)
            solver, status = run_cp(search, self.model, seconds=end - search.seconds, heard=heard)
            if status == self.cp.INFEASIBLE:
                raise PlanError("no plan with these places fits")
            if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
                return False
            steps = self._steps(solver.value)
            over = Timeline(self.graph, steps).runs_over(self.budget)
            if not over:
                offer(steps)
                return bool(status == self.cp.OPTIMAL)
            for node, at in over:
                self.bound_while_making(node, at)
            if search.seconds >= end or not search.seconds_left():
                return False

    def start(self, steps: Sequence[Step]) -> None:
        graph, model = self.graph, self.model
        timeline = Timeline(graph, steps)
        reruns = {(moment.number, moment.stage) for moment in timeline.moments if moment.again}
        brought = {(moment.number, moment.stage) for moment in timeline.moments if moment.kind == "in"}
        at_the_start = timeline.at_the_start()
        model.clear_hints()
        for rerun, again in self.again.items():
            model.add_hint(again, rerun in reruns)
        for rerun, bring in self.brings.items():
            model.add_hint(bring, rerun in brought)
        for value, out in self.outs.items():
            model.add_hint(out, any(number == value for number, _ in brought))
        for number, keeps in enumerate(self.keeps):
            for event, keep in zip(self.events[number][1:], keeps, strict=True):
                model.add_hint(keep, number in at_the_start[event])

    def _steps(self, value: Value) -> list[Step]:
        reruns = [rerun for rerun, again in self.again.items() if value(again)]
        brought = [rerun for rerun, bring in self.brings.items() if value(bring)]
        return complete(self.graph, arrange(self.graph, reruns, brought))
