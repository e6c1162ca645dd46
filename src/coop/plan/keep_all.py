"""keep-all: nothing is computed twice. What a step needs by itself; no plan is faster."""

from coop.plan.plan import PlanError
from coop.plan.schedule import profile
from coop.plan.search import Search
from coop.sizes import format_bytes


def keep_all(search: Search) -> None:
    sequence = range(len(search.graph.nodes))
    peak = profile(search.graph, sequence).peak
    if peak > search.budget:
        raise PlanError(
            f"keeping everything needs {format_bytes(peak)}, and the budget is {format_bytes(search.budget)}"
        )
    search.offer(sequence)
