"""The staged model: Checkmate's schedule with only the Booleans that matter, for OR-tools CP-SAT.

As in Checkmate (Jain et al., MLSys 2020, section 4; see checkmate.py) a step has as many stages as
nodes. In stage t some nodes are run again, in order and each once, and then node t runs for the
first time. One more stage is the end. What differs:

- There are Booleans only for given reruns (node, stage): where a reader of the node runs for the
  first time, where a known plan has a rerun, or everywhere. With all reruns the model is exact.
- There is a Boolean for keeping a value in each gap, not in each stage. A gap lies between two
  stages where the value may be read or made.
- Memory is bounded while the stage's own node runs. During a rerun it is bounded only where a
  solution has exceeded the budget; then the model is solved again.
- A value that an op overwrites is gone, and its bytes count once.

Memory is written here as constraints, because Booleans are no schedule. The timeline of a solution
says where it exceeds the budget.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from coop.plan.exact.solvers import Value, cp_model, run_cp
from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import profile, reruns_of, sequence_of
from coop.plan.model.timeline import Rerun
from coop.plan.search.search import Search

_UNITS = 100_000
"""Units of the budget; the cost of the graph has 100 times as many. Small numbers solve faster."""


@dataclass(frozen=True)
class Outcome:
    sequence: list[int] | None
    """None: nothing better was found."""
    optimal: bool
    """Among all plans with these reruns."""


def near(graph: Graph) -> set[Rerun]:
    """Every node where one of its readers runs for the first time."""
    return {(n, at) for n in range(len(graph.nodes)) for at in graph.children[n] if graph.repeatable(n, at)}


def everywhere(graph: Graph) -> set[Rerun]:
    """All possible reruns."""
    count = len(graph.nodes)
    return {(n, at) for n in range(count) for at in range(n + 1, count + 1) if graph.repeatable(n, at)}


def solve(
    search: Search, reruns: Iterable[Rerun], *, start: Sequence[int] | None = None, seconds: float = 60.0
) -> Outcome:
    """The cheapest sequence with these places that fits into the budget, from `start` on if that
    is given.

    Each better one on the way is offered to the search. Raises PlanError if the model proves that
    there is none.
    """
    end = search.seconds + min(seconds, search.seconds_left())
    model = Model(search.graph, search.budget, set(reruns))
    while True:
        if start is not None:
            model.hint(start)
        sequence, optimal = model.run(search, end - search.seconds)
        if sequence is None:
            return Outcome(None, False)
        exceeded = model.exceeded(sequence)
        if not exceeded:
            search.offer(sequence)
            return Outcome(sequence, optimal)
        for node, at in exceeded:
            model.bound_while_making(node, at)
        if search.seconds >= end or not search.seconds_left():
            return Outcome(None, False)


class Model:
    """poet/model.py adds paging to it, by what `_brought` and `_brought_before` return."""

    def __init__(self, graph: Graph, budget: int, reruns: set[Rerun]) -> None:
        self.cp = cp_model()
        self.graph, self.budget = graph, budget
        self.model: Any = self.cp.CpModel()
        self.again: dict[Rerun, Any] = {rerun: self.model.new_bool_var("") for rerun in sorted(reruns)}
        self.unit = max(1, budget // _UNITS)
        count = len(graph.nodes)
        stages: list[list[int]] = [[] for _ in range(count)]
        for again, at in sorted(reruns):
            stages[again].append(at)
        self.events: list[list[int]] = []
        """For each value: the stages where it may be made or read."""
        self.keeps: list[list[Any]] = []
        """For each gap between two of them: whether the value stays."""
        self.sizes: list[list[tuple[int, Any]]] = [[] for _ in range(count + 1)]
        """In each stage, while its own node runs: bytes, and whether they are there."""
        self.fixed = list(graph.base)
        for number, node in enumerate(graph.nodes):
            self.fixed[number] += node.scratch - sum(graph.values[v].bytes for v in node.overwritten())
        for number, value in enumerate(graph.values):
            events = {value.node, *value.users, *stages[value.node]}.union(*(stages[user] for user in value.users))
            ordered = sorted(events | {count} if value.kept else events)
            self.events.append(ordered)
            self.keeps.append([self.model.new_bool_var("") for _ in ordered[1:]])
            self._add_value(number)
        for at in range(count + 1):
            self._add_memory(at)
        self._minimise()

    def _minimise(self) -> None:
        nodes, scale = self.graph.nodes, max(1, self.graph.cost // (100 * _UNITS))
        self.model.minimize(sum(max(1, nodes[n].cost // scale) * again for (n, _), again in self.again.items()))

    def _brought(self, number: int, at: int) -> Any:
        """Whether a value comes into memory in a stage without being made. None: it cannot."""
        return None

    def _brought_before(self, number: int, node: int, at: int) -> list[list[Any]]:
        """The ways in which that happens before a rerun in that stage. Each is a list of literals
        that are all true."""
        return []

    def _add_value(self, number: int) -> None:
        graph, model, value = self.graph, self.model, self.graph.values[number]
        events, keeps = self.events[number], self.keeps[number]
        single = len(graph.nodes[value.node].outputs) == 1
        overwriter = graph.overwriter.get(number)
        for i, at in enumerate(events):
            before: Any = keeps[i - 1] if i else None
            after = keeps[i] if i < len(keeps) else None
            made = self.again.get((value.node, at))
            read = at in value.users or (value.kept and at == len(graph.nodes))
            if at != value.node:
                there = [literal for literal in (before, made, self._brought(number, at)) if literal is not None]
                if read:
                    model.add_bool_or(there)
                for user in value.users:
                    if (user, at) in self.again:
                        model.add_bool_or([*there, self.again[user, at].negated()])
                if after is not None:
                    model.add_bool_or([*there, after.negated()])
                if made is not None and single:
                    model.add_implication(made, before.negated())
            if at == value.node or read:
                self.fixed[at] += value.bytes
            elif after is not None:
                self.sizes[at].append((value.bytes, after))
            if after is not None:
                if overwriter == at:
                    model.add(after == 0)
                elif overwriter is not None and (overwriter, at) in self.again:
                    model.add_implication(self.again[overwriter, at], after.negated())
                for stage in range(at + 1, events[i + 1]):
                    self.sizes[stage].append((value.bytes, after))

    def _add_memory(self, at: int) -> None:
        room = self.budget - self.fixed[at]
        if room < 0:
            raise PlanError(f"node {at} alone needs {self.fixed[at]} bytes, and the budget is {self.budget}")
        if sum(size for size, _ in self.sizes[at]) > room:
            self.model.add(sum(self._units(size) * there for size, there in self.sizes[at]) <= room // self.unit)

    def _units(self, size: int) -> int:
        return -(-size // self.unit)

    def bound_while_making(self, node: int, at: int) -> None:
        """Also bounds memory during that rerun."""
        graph, model = self.graph, self.model
        running = graph.nodes[node]
        gone = set(running.overwritten())
        here = self.again[node, at]
        sizes: list[tuple[int, Any]] = []
        fixed = graph.base[at] + running.scratch + sum(graph.values[v].bytes for v in running.outputs)
        for number, value in enumerate(graph.values):
            events = self.events[number]
            if number in running.outputs or number in gone or not events[0] < at <= events[-1]:
                continue
            i = next(j for j, event in enumerate(events) if event >= at)
            before = self.keeps[number][i - 1]
            if events[i] != at:  # in the middle of a gap
                sizes.append((value.bytes, before))
                continue
            there = [[before], *self._brought_before(number, node, at)]
            if value.node < node and (value.node, at) in self.again:
                there.append([self.again[value.node, at]])
            wanted = [self.again[user, at] for user in value.users if user > node and (user, at) in self.again]
            if i < len(self.keeps[number]):
                wanted.append(self.keeps[number][i])
            always = number in running.inputs or at in value.users or (value.kept and at == len(graph.nodes))
            present = model.new_bool_var("")
            for have in there:
                for want in [None] if always else wanted:
                    both = have if want is None else [*have, want]
                    model.add_bool_or([present, *(literal.negated() for literal in both)])
            sizes.append((value.bytes, present))
        room = (self.budget - fixed) // self.unit
        model.add(sum(self._units(size) * present for size, present in sizes) <= room).only_enforce_if(here)

    def exceeded(self, sequence: Sequence[int]) -> set[Rerun]:
        """The reruns of a sequence during which it exceeds the budget."""
        return profile(self.graph, sequence).runs_over(self.budget)

    def hint(self, sequence: Sequence[int]) -> None:
        model = self.model
        model.clear_hints()
        chosen = reruns_of(sequence)
        for rerun, again in self.again.items():
            model.add_hint(again, rerun in chosen)
        at_the_start = profile(self.graph, sequence).at_the_start()
        for number, keeps in enumerate(self.keeps):
            for event, keep in zip(self.events[number][1:], keeps, strict=True):
                model.add_hint(keep, number in at_the_start[event])

    def run(self, search: Search, seconds: float) -> tuple[list[int] | None, bool]:
        cp = self.cp
        solver, status = run_cp(
            search, self.model, seconds=seconds, heard=lambda value: search.offer_if_legal(self._sequence(value))
        )
        if status == cp.INFEASIBLE:
            raise PlanError(f"no plan with these places fits into {self.budget} bytes")
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return None, False
        return self._sequence(solver.value), status == cp.OPTIMAL

    def _sequence(self, value: Value) -> list[int]:
        return sequence_of(self.graph, (rerun for rerun, again in self.again.items() if value(again)))
