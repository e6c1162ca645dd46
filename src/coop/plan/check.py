"""The checker: whether a plan is legal. It shares no code with any planner, and every plan passes it before it is returned.

Rules:
1. A node is computed when all its inputs are in memory.
2. Nodes are computed for the first time in the order of the graph, each of them. One that cannot be run again is not, and
   others not after what they read of a source was overwritten.
3. Bytes in memory never exceed the budget: sources, values, and while a node runs its outputs and scratch. An output that
   takes over the bytes of an input needs none of its own, and that input is gone.
4. Only what is in memory is freed or paged out; only what was paged out comes in; storage holds no more than it can.
5. At the end, everything that outlives the step is in memory.
"""

from dataclasses import dataclass

from coop.plan.graph import NONE, Graph
from coop.plan.plan import Plan, PlanError, Step
from coop.trace.paging import Paging


@dataclass(frozen=True)
class Checked:
    duration: int
    """Of all that is computed and paged, one after the other. Nanoseconds."""
    peak: int
    computing: int
    """Nanoseconds of it."""
    paged_out: int
    """Bytes."""
    paged_in: int
    stored: int
    """The most bytes that storage held at once."""


def check(plan: Plan, graph: Graph, *, budget: int | None = None, paging: Paging | None = None) -> Checked:
    """Raises PlanError, with the step's number, unless the plan is legal in its own budget, or in this one.

    Without `paging`, a plan that pages is not.
    """
    if plan.graph != graph.fingerprint:
        raise PlanError(f"the plan is for another step: its graph is {plan.graph}, and this one is {graph.fingerprint}")
    limit = plan.budget if budget is None else budget
    return _Run(graph, limit, paging).all(plan.steps)


class _Run:
    def __init__(self, graph: Graph, budget: int, paging: Paging | None) -> None:
        self.graph, self.budget, self.paging = graph, budget, paging
        self.memory: set[int] = set()
        self.stored: set[int] = set()
        self.used = self.stored_bytes = 0
        self.next = 0
        self.computing = self.transfers = self.peak = self.stored_peak = self.out = self.back = 0

    def all(self, steps: tuple[Step, ...]) -> Checked:
        for number, (kind, what) in enumerate(steps):
            try:
                limit = len(self.graph.nodes if kind == "compute" else self.graph.values)
                if not 0 <= what < limit:
                    raise PlanError(f"there is no {'node' if kind == 'compute' else 'value'} {what}")
                match kind:
                    case "compute":
                        self.compute(what)
                    case "free":
                        self.leave(what)
                    case "out":
                        self.page_out(what)
                    case "in":
                        self.page_in(what)
                    case _:
                        raise PlanError("no such kind of step")
            except PlanError as error:
                raise PlanError(f"step {number} ({kind} {what}): {error}") from None
        if self.next < len(self.graph.nodes):
            raise PlanError(f"rule 2: node {self.next} is never computed")
        for number, value in enumerate(self.graph.values):
            if value.kept and number not in self.memory:
                raise PlanError(f"rule 5: value {number} is not in memory at the end")
        duration = self.computing + self.transfers
        return Checked(duration, self.peak, self.computing, self.out, self.back, self.stored_peak)

    def compute(self, number: int) -> None:
        node = self.graph.nodes[number]
        if number > self.next:
            raise PlanError(f"rule 2: the program has only come to node {self.next}")
        if number < self.next and node.last is not None and self.next > node.last:
            raise PlanError("rule 2: it cannot be run again")
        for value in node.inputs:
            if value not in self.memory:
                raise PlanError(f"rule 1: value {value} is not in memory")
        at = self.next
        if number == at:
            self.next += 1
        for value, old in zip(node.outputs, node.over or (NONE,) * len(node.outputs), strict=True):
            if old != NONE:
                self.memory.remove(old)
                self.used -= self.graph.values[old].bytes
            if value not in self.memory:
                self.memory.add(value)
                self.used += self.graph.values[value].bytes
        self.fits(node.scratch, self.graph.base[at])
        self.computing += node.cost

    def leave(self, value: int) -> None:
        if value not in self.memory:
            raise PlanError("rule 4: it is not in memory")
        self.memory.remove(value)
        self.used -= self.graph.values[value].bytes

    def page_out(self, value: int) -> None:
        if self.paging is None:
            raise PlanError("rule 4: there is no storage to page to")
        if value not in self.memory:
            raise PlanError("rule 4: it is not in memory")
        size = self.graph.values[value].bytes
        if value not in self.stored:
            self.stored.add(value)
            self.stored_bytes += size
            self.stored_peak = max(self.stored_peak, self.stored_bytes)
        if self.paging.capacity is not None and self.stored_bytes > self.paging.capacity:
            raise PlanError(f"rule 4: storage would hold {self.stored_bytes} bytes, and has {self.paging.capacity}")
        self.out += size
        self.transfers += self.paging.out_time(size)

    def page_in(self, value: int) -> None:
        if self.paging is None or value not in self.stored:
            raise PlanError("rule 4: it was never paged out")
        if value in self.memory:
            raise PlanError("rule 4: it is in memory")
        self.memory.add(value)
        self.used += self.graph.values[value].bytes
        self.fits(0, self.graph.base[self.next])
        size = self.graph.values[value].bytes
        self.back += size
        self.transfers += self.paging.in_time(size)

    def fits(self, extra: int, base: int) -> None:
        now = base + self.used + extra
        self.peak = max(self.peak, now)
        if now > self.budget:
            raise PlanError(f"rule 3: {now} bytes are in memory, and the budget is {self.budget}")
