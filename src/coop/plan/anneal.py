"""A better plan from a known one, by simulated annealing over the places where nodes are run again.

csrc/plan_search.h is the search itself. It proves nothing, but finds what the exact models prove to be optimal where they
can, and goes on where they cannot: with a thousand nodes it judges some 40,000 plans a second.
"""

import time
from collections.abc import Callable, Sequence

from coop import _C
from coop.plan.graph import Graph
from coop.plan.schedule import places_of, sequence_of

HOT, COLD = 0.3, 0.002
"""Temperatures at the beginning and at the end, in mean costs of a node."""
_SLICE = 0.2  # seconds


def anneal(
    graph: Graph,
    budget: int,
    start: Sequence[int],
    *,
    seconds: float = 10.0,
    seed: int = 0,
    report: Callable[[list[int]], None] | None = None,
) -> list[int]:
    """The best sequence found that fits into the budget; `start`, which must, if nothing is better.

    `report` is called with each better one, as often as five times a second.
    """
    search = _C.PlanSearch(_graph(graph), budget, sorted(places_of(start)), seed)
    if search.best is None:
        raise ValueError("the sequence to start from does not fit into the budget")
    unit = max(graph.cost / max(len(graph.nodes), 1), 1.0)
    begin, moves, least = time.monotonic(), 1000, search.best_cost
    while (part := (time.monotonic() - begin) / seconds) < 1:
        before = time.monotonic()
        now = unit * HOT * (COLD / HOT) ** part
        search.run(moves, now, now)
        took = max(time.monotonic() - before, 1e-6)
        moves = max(100, int(moves * min(_SLICE / took, 4)))
        if report and search.best_cost < least:
            least = search.best_cost
            report(sequence_of(graph, search.best))
    return sequence_of(graph, search.best)


def _graph(graph: Graph) -> _C.PlanGraph:
    made = _C.PlanGraph()
    for node in graph.nodes:
        last = -1 if node.last is None else node.last
        made.node(node.cost, node.scratch, last, node.inputs, node.outputs, list(node.overwritten()))
    for value in graph.values:
        made.value(value.bytes, value.node, value.kept, value.users)
    made.base(graph.base)
    return made
