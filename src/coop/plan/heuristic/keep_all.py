"""keep-all: nothing is computed twice. This is the step as it is; no plan is faster."""

from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import peak_of
from coop.plan.search.search import Search
from coop.sizes import format_bytes


def keep_all(search: Search) -> None:
    peak = peak_of(search.graph)
    if peak > search.budget:
        raise PlanError(
            f"keeping everything needs {format_bytes(peak)}, and the budget is {format_bytes(search.budget)}"
        )
    search.offer(range(len(search.graph.nodes)))
