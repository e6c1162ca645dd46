"""A better plan from a known one, by simulated annealing over reruns.

The search itself is in csrc/plan/plan_search.h. It proves nothing. On small graphs it finds the
plans that the exact models prove to be optimal. It also works on large graphs: with a thousand
nodes it tries some 40,000 plans a second. To be so fast, it counts memory itself, and only where a
move changes it. Every plan that it offers is checked.
"""

import time
from collections.abc import Sequence

from coop import _C
from coop.plan.model.graph import Graph
from coop.plan.model.schedule import reruns_of, sequence_of
from coop.plan.search.search import Search

HOT, COLD = 0.3, 0.002
"""Temperatures at the beginning and at the end, in mean costs of a node."""
_SLICE = 0.2  # seconds


def anneal(
    search: Search, start: Sequence[int], *, seconds: float = 10.0, seed: int = 0, hot: float = HOT
) -> list[int] | None:
    """The best sequence found that fits into the budget. `start` need not fit. None: nothing fits.

    Each better one on the way is offered to the search, at most five times a second.
    """
    graph = search.graph
    annealing = _C.PlanSearch(_graph(graph), search.budget, sorted(reruns_of(start)), seed)
    unit = max(graph.cost / max(len(graph.nodes), 1), 1.0)
    begin, moves, offered = time.monotonic(), 1000, None
    seconds = min(seconds, search.seconds_left())
    while (part := (time.monotonic() - begin) / max(seconds, 1e-3)) < 1 and search.seconds_left():
        before = time.monotonic()
        now = unit * hot * (COLD / hot) ** part
        annealing.run(moves, now, now)
        took = max(time.monotonic() - before, 1e-6)
        moves = max(100, int(moves * min(_SLICE / took, 4)))
        if annealing.best is not None and (offered is None or annealing.best_cost < offered):
            offered = annealing.best_cost
            search.offer(sequence_of(graph, annealing.best))
    return None if annealing.best is None else sequence_of(graph, annealing.best)


def _graph(graph: Graph) -> _C.PlanGraph:
    made = _C.PlanGraph()
    for node in graph.nodes:
        last = -1 if node.last is None else node.last
        made.node(node.cost, node.scratch, last, node.inputs, node.outputs, list(node.overwritten()))
    for value in graph.values:
        made.value(value.bytes, value.node, value.kept, value.users)
    made.base(graph.base)
    return made
