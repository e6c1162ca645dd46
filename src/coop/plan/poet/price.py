"""What a plan costs on a device: joules and nanoseconds."""

from collections.abc import Iterable
from dataclasses import dataclass

from coop.plan.model.check import Checked
from coop.plan.model.graph import Graph
from coop.plan.model.plan import Step
from coop.trace.paging import Paging


@dataclass(frozen=True)
class Price:
    graph: Graph
    watts: float
    """While it computes."""
    paging: Paging
    """What paging would cost, whether it is allowed or not."""

    @property
    def capacity(self) -> int | None:
        return self.paging.capacity

    def run(self, node: int) -> tuple[float, int]:
        cost = self.graph.nodes[node].cost
        return self.watts * cost / 1e9, cost

    def go_out(self, value: int) -> tuple[float, int]:
        return self._transfer(self.paging.out_time(self.graph.values[value].bytes))

    def bring(self, value: int) -> tuple[float, int]:
        return self._transfer(self.paging.in_time(self.graph.values[value].bytes))

    def _transfer(self, time: int) -> tuple[float, int]:
        return self.paging.watts * time / 1e9, time

    def of(self, steps: Iterable[Step]) -> tuple[float, int]:
        """Joules and nanoseconds of a whole plan."""
        ways = {"compute": self.run, "out": self.go_out, "in": self.bring}
        costs = [ways[kind](number) for kind, number in steps if kind in ways]
        return sum(joules for joules, _ in costs), sum(time for _, time in costs)

    def joules(self, plan: Checked) -> float:
        return (self.watts * plan.computing + self.paging.watts * (plan.duration - plan.computing)) / 1e9
