"""A plan for the engine: csrc/follow.h carries it out around the ops of a running program, or of a trace that is played."""

from coop import _C
from coop.plan.plan import Plan, PlanError
from coop.sizes import format_bytes

_SILENT = ":statistics"
"""A batch norm's update of its running statistics is an op of its own in a trace, and part of the batch norm live."""


def refuse_unless_for(plan: Plan, graph: str | None, budget: int) -> None:
    """Raises PlanError if a plan is for another graph (None: that will be seen) or needs more than the budget."""
    if graph is not None and plan.graph != graph:
        raise PlanError(f"the plan is for another step: its graph is {plan.graph}, and this one is {graph}")
    if plan.peak > budget:
        raise PlanError(
            f"the plan needs {format_bytes(plan.peak)} ({plan.peak} bytes), and the budget is {format_bytes(budget)}. "
            "Tip: make a plan for this budget, or allow that much"
        )


def planned(plan: Plan, *, live: bool) -> _C.Planned:
    """`live`: ops are recognised by their names. Else they are the trace's own, in order."""
    if not plan.program:
        raise PlanError("the plan does not say for which ops it is: it cannot be followed")
    made = _C.Planned()
    for name, outputs in plan.program:
        made.node(name if live else "", live and name.endswith(_SILENT), outputs)
    kinds = {"compute": _C.Planned.Kind.compute, "free": _C.Planned.Kind.free} | {
        "out": _C.Planned.Kind.out, "in": getattr(_C.Planned.Kind, "in"),
    }  # fmt: skip
    for name, rate in plan.about.get("paging", {}).items():
        if name.endswith(("latency", "bandwidth")):
            setattr(made, name, float(rate))
    reached = 0
    for kind, number in plan.steps:
        if kind == "compute" and number == reached:
            reached += 1
        else:
            made.step(kinds[kind], number, reached)
    return made
