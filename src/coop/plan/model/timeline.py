"""The timeline of a schedule: which values are in memory when, their bytes, and where these exceed
the budget.

The one definition of memory along a schedule. Planners, the checker, addresses and pictures use it.
A planner that decides step by step uses `Memory`, which takes one step at a time.

    compute n   the values that it overwrites are gone, its outputs are in memory, and so is its
                scratch while it runs
    in v        value v is in memory
    free v      value v is no longer in memory
    out v       nothing changes

Sources are in memory too. How many bytes they take depends on the stage (`Graph.base`): the number
of nodes that have run for the first time. Memory can rise only at steps that compute or bring in,
and at the end of the step, when sources are counted once more. So bytes are counted there and
nowhere else.

tests/plan/test_timeline.py compares this with a brute-force definition on random schedules.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from coop.plan.model.addresses import Interval
from coop.plan.model.graph import NONE, Graph
from coop.plan.model.plan import Kind, Plan, PlanError, bare_graph

Rerun = tuple[int, int]
"""A node that is run again, and the stage in which it is: the node before whose first run that
happens. The number of nodes: at the end."""


class Moment(NamedTuple):
    """A step that computes or brings in."""

    at: int
    """The number of the step."""
    kind: Kind
    number: int
    stage: int
    """The next node to run for the first time, when this step begins."""
    bytes: int
    """In memory while the step is carried out."""

    @property
    def again(self) -> bool:
        """Whether it runs a node again."""
        return self.kind == "compute" and self.number != self.stage


class Memory:
    """The values in memory, and their bytes. Sources are not among them."""

    def __init__(self, graph: Graph) -> None:
        self.nodes, self.sizes = graph.nodes, graph.sizes
        self.values: set[int] = set()
        self.bytes = 0

    def rise(self, number: int) -> int:
        """Bytes that are in memory while a node runs, beyond those before."""
        node = self.nodes[number]
        made = sum(self.sizes[value] for value in node.outputs if value not in self.values)
        return made - sum(self.sizes[value] for value in node.overwritten()) + node.scratch

    def compute(self, number: int) -> None:
        node = self.nodes[number]
        for value in node.over:
            if value != NONE:
                self.free(value)
        for value in node.outputs:
            self.bring(value)

    def free(self, value: int) -> None:
        """Raises KeyError if it is not in memory."""
        self.values.remove(value)
        self.bytes -= self.sizes[value]

    def bring(self, value: int) -> None:
        if value not in self.values:
            self.values.add(value)
            self.bytes += self.sizes[value]


class Timeline:
    """Of steps that can be carried out. Raises PlanError if something leaves that is not in
    memory."""

    def __init__(self, graph: Graph, steps: Iterable[tuple[Kind, int]]) -> None:
        self.graph, self.steps = graph, tuple(steps)
        base, nodes = graph.base, graph.nodes
        self._rises: list[tuple[int, int, int]] = []
        """Number, stage and bytes of each step that computes or brings in."""
        reached = last = 0
        for at, kind, number, memory in self._states():
            last = memory.bytes
            if kind == "compute":
                self._rises.append((at, reached, base[reached] + last + nodes[number].scratch))
                reached += number == reached
            elif kind == "in":
                self._rises.append((at, reached, base[reached] + last))
        self.end = base[reached] + last
        """Bytes in memory after the last step."""

    def _states(self) -> Iterator[tuple[int, Kind, int, Memory]]:
        """Each step, with its number, and memory after it."""
        memory = Memory(self.graph)
        at = 0
        try:
            for at, (kind, number) in enumerate(self.steps):
                if kind == "compute":
                    memory.compute(number)
                elif kind == "free":
                    memory.free(number)
                elif kind == "in":
                    memory.bring(number)
                yield at, kind, number, memory
        except KeyError as error:
            kind, number = self.steps[at]
            raise PlanError(f"step {at} ({kind} {number}): value {error.args[0]} is not in memory") from None

    @cached_property
    def moments(self) -> list[Moment]:
        return [Moment(at, *self.steps[at], stage, level) for at, stage, level in self._rises]

    @property
    def peak(self) -> int:
        """The most bytes in memory."""
        return max(self.end, max((level for _, _, level in self._rises), default=0))

    @property
    def duration(self) -> int:
        """Nanoseconds of all computations."""
        return sum(self.graph.nodes[number].cost for kind, number in self.steps if kind == "compute")

    @property
    def memory(self) -> list[int]:
        """Bytes in memory while each computation runs."""
        return [level for at, _, level in self._rises if self.steps[at][0] == "compute"]

    def over(self, budget: int) -> list[Moment]:
        """The moments at which memory exceeds the budget, without the end."""
        return [Moment(at, *self.steps[at], stage, level) for at, stage, level in self._rises if level > budget]

    def excess(self, budget: int) -> dict[int, int]:
        """For each stage in which memory exceeds the budget: by how many bytes at most."""
        found: dict[int, int] = {}
        for moment in self.over(budget):
            found[moment.stage] = max(found.get(moment.stage, 0), moment.bytes - budget)
        return found

    def runs_over(self, budget: int) -> set[Rerun]:
        """The reruns during which memory exceeds the budget."""
        return {(moment.number, moment.stage) for moment in self.over(budget) if moment.again}

    def present(self) -> Iterator[tuple[Moment, set[int]]]:
        """Each moment, and the values in memory then. The set changes from one to the next: copy
        it to keep it."""
        moments = iter(self.moments)
        for _, kind, _, memory in self._states():
            if kind in ("compute", "in"):
                yield next(moments), memory.values

    def at_the_start(self) -> list[frozenset[int]]:
        """For each stage, and for the end: the values in memory before it runs a node or brings
        something in."""
        found = [frozenset[int]()]
        begins = True
        """Whether nothing has been run or brought in since the last first run. A value that is
        freed then is not in memory at the start."""
        for _, kind, number, memory in self._states():
            if kind == "compute" and number == len(found) - 1:
                found.append(frozenset(memory.values))
                begins = True
            elif kind in ("compute", "in"):
                begins = False
            elif kind == "free" and begins:
                found[-1] -= {number}
        return found

    def residencies(self) -> Iterator[tuple[int, int, int]]:
        """Each residency of a value in memory: the value, the step at which it enters memory, and
        the first step at which it is no longer there (the number of steps: it is there at the end).
        A value that is computed while it is in memory begins a new residency."""
        begun: dict[int, int] = {}
        for at, kind, number, _ in self._states():
            if kind == "compute":
                node = self.graph.nodes[number]
                for value in (*node.overwritten(), *node.outputs):
                    if value in begun:
                        yield value, begun.pop(value), at
                begun.update(dict.fromkeys(node.outputs, at))
            elif kind == "in":
                begun.setdefault(number, at)
            elif kind == "free":
                yield number, begun.pop(number), at
        for value, begin in begun.items():
            yield value, begin, len(self.steps)

    def intervals(self) -> list[Interval]:
        """The intervals of values and of scratch, in the order in which they end. In one interval
        the same bytes stay in memory: a value that an op overwrites continues as its output."""
        graph = self.graph
        begun: dict[int, tuple[int, int]] = {}
        """For values in memory: the step at which their interval began, and the value that it was
        then."""
        found: list[Interval] = []

        def leave(value: int, at: int) -> None:
            begin, first = begun.pop(value)
            found.append(Interval(value, graph.values[value].bytes, begin, at, first))

        for at, (kind, number) in enumerate(self.steps):
            if kind == "compute":
                node = graph.nodes[number]
                for value, old in zip(node.outputs, node.over or (NONE,) * len(node.outputs), strict=True):
                    if old == NONE:
                        begun.setdefault(value, (at, value))
                    elif value in begun:  # it was there already, and stays where it is
                        leave(old, at)
                    else:
                        begun[value] = begun.pop(old)
                if node.scratch:
                    found.append(Interval(NONE, node.scratch, at, at + 1))
            elif kind == "in":
                begun.setdefault(number, (at, number))
            elif kind == "free":
                leave(number, at)
        for value in list(begun):
            leave(value, len(self.steps))
        return found


def timeline_of(plan: Plan) -> Timeline:
    """As far as the plan describes the step: without sources."""
    return Timeline(bare_graph(plan.program), plan.steps)
