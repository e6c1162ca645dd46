"""The plan: what to compute, free and page, in order. One type for all planners.

    compute n   run node n; its outputs are in memory from then on
    free v      the bytes of value v leave
    out v       copy value v to storage; it stays in memory until it is freed
    in v        bring value v back from storage; the copy there stays

Nodes are computed for the first time in the order of the graph, which is the program's. In
between, a plan computes nodes again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from coop.plan.model.addresses import Addresses
from coop.plan.model.graph import NONE, Graph, Node, Value, until
from coop.trace.content import BadContent

Kind = Literal["compute", "free", "out", "in"]
KINDS: tuple[Kind, ...] = ("compute", "free", "out", "in")
STATUSES = ("optimal", "feasible")


class PlanError(BadContent):
    """A plan, or the file of one, is wrong or for another graph. The text says where."""


class Step(NamedTuple):
    kind: Kind
    number: int
    """Of a node if it is computed, else of a value."""


class Line(NamedTuple):
    """What running a plan needs to know of a node."""

    name: str
    """Of the op."""
    outputs: tuple[tuple[int, int, int], ...]
    """Values: number, bytes, and the value whose bytes it takes over, or NONE."""
    scratch: int = 0


def program_of(graph: Graph) -> tuple[Line, ...]:
    return tuple(
        Line(
            node.name,
            tuple(
                (value, graph.values[value].bytes, over)
                for value, over in zip(node.outputs, node.over or (NONE,) * len(node.outputs), strict=True)
            ),
            node.scratch,
        )
        for node in graph.nodes
    )


def bare_graph(program: Sequence[Line]) -> Graph:
    """The step, as far as the plan describes it: without costs and sources. Of the inputs of a
    node, only those that it overwrites are known."""
    nodes, values = [], []
    for number, line in enumerate(program):
        over = tuple(old for _, _, old in line.outputs)
        taken = tuple(old for old in over if old != NONE)
        nodes.append(Node(line.name, 0, taken, tuple(value for value, _, _ in line.outputs), over, line.scratch))
        values += [Value(size, number, ()) for _, size, _ in line.outputs]
    return Graph(tuple(nodes), tuple(values), (0,) * (len(nodes) + 1))


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    graph: str
    """The fingerprint of the graph that it is for."""
    budget: int
    planner: str
    duration: int
    """Nanoseconds, with the transfers that do not overlap with computation."""
    base_duration: int
    peak: int
    bound: int = 0
    """Nanoseconds. No legal plan in this budget takes less. At least the duration of the graph
    itself."""
    status: str = "feasible"
    """optimal: the bound is reached, or an exact model has shown that no plan of Checkmate's form
    is faster: one that runs a node at most once between two first runs. feasible: there may be a
    better one."""
    seconds: float = 0.0
    about: dict[str, Any] = field(default_factory=dict)
    program: tuple["Line", ...] = ()
    """The graph's nodes, for running the plan."""
    addresses: Addresses | None = field(default=None, repr=False)
    """Where values lie while they are in memory. None: solved when the plan is followed."""

    @property
    def increase(self) -> float:
        """Of the duration, as a fraction."""
        return self.duration / self.base_duration - 1 if self.base_duration else 0.0

    @property
    def gap(self) -> float:
        """No plan is faster than this one by more than that fraction."""
        return (self.duration - self.bound) / self.duration if self.duration else 0.0

    def sequence(self) -> list[int]:
        """The nodes in the order in which they are computed."""
        return [step.number for step in self.steps if step.kind == "compute"]

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "duration_increase": self.increase,
            "peak": self.peak,
            "budget": self.budget,
            "bound": max(self.bound / self.base_duration - 1, 0.0) if self.base_duration else 0.0,
            "gap": self.gap,
            "seconds": self.seconds,
            "planner": self.planner,
        }


def floor(graph: Graph, *, paging: bool = False) -> tuple[int, int]:
    """Bytes below which no plan exists, and the node that sets them (the number of nodes: the
    end).

    While a node runs, its inputs, outputs and scratch are in memory. So is every value that will be
    read and cannot be recomputed or paged out.
    """
    values, end = graph.values, len(graph.nodes)
    enters: list[list[int]] = [[] for _ in range(end + 1)]
    for number, value in enumerate(values):
        last = graph.nodes[value.node].last
        if not paging and last is not None and until(graph, number) > last:
            enters[last + 1].append(number)
    stuck: set[int] = set()
    most, setter = 0, 0
    for at in range(end + 1):
        stuck = {v for v in stuck if until(graph, v) >= at} | set(enters[at])
        needed, gone, scratch = set(stuck), set[int](), 0
        if at < end:
            node = graph.nodes[at]
            needed.update(node.inputs, node.outputs)
            gone.update(node.overwritten())
            scratch = node.scratch
        else:
            needed.update(number for number, value in enumerate(values) if value.kept)
        here = graph.base[at] + sum(values[v].bytes for v in needed - gone) + scratch
        if here > most:
            most, setter = here, at
    return most, setter
