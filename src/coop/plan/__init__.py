"""Offline planners: what to compute again and what to page, decided before the step runs.

    plan = coop.plan.solve(trace, "80%", planner="auto", time_limit=60)
    print(plan.increase, plan.gap)
    coop.plan.write(plan, "step.plan")

`solve` asks a planner, `read` and `write` are for files, `check` says whether a plan is legal,
`graph_of` makes a graph of a trace, `make_graph` one by hand.
"""

from coop.plan.exact.solvers import MissingSolver
from coop.plan.model.check import check
from coop.plan.model.file import read, write
from coop.plan.model.graph import Graph
from coop.plan.model.graph import from_trace as graph_of
from coop.plan.model.graph import make as make_graph
from coop.plan.model.plan import Plan, PlanError, floor
from coop.plan.model.schedule import peak_of
from coop.plan.planners import PLANNERS, solve
from coop.plan.running.compile_solver import compile_solver
from coop.plan.running.packing import assign
from coop.plan.search.search import Progress
from coop.trace.paging import Paging

__all__ = [
    "PLANNERS", "Graph", "MissingSolver", "Paging", "Plan", "PlanError", "Progress", "assign", "check", "compile_solver", "floor", "graph_of",
    "make_graph", "peak_of", "read", "solve", "write",
]  # fmt: skip
