"""The figures of a plan that users are told."""

from typing import Any

from coop.plan.model.graph import Graph
from coop.plan.model.plan import Plan
from coop.plan.model.schedule import peak_of
from coop.plan.running.packing import assign


def figures(plan: Plan, graph: Graph) -> dict[str, Any]:
    placed = plan.addresses or assign(plan, patience=0)
    return plan.to_json() | {
        "nodes": len(graph.nodes),
        "unlimited_peak": peak_of(graph),
        "recomputed": len(plan.sequence()) - len(graph.nodes),
        "fragmentation": placed.fragmentation,
        "about": plan.about,
    }
