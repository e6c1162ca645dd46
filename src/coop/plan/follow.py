"""A plan for the engine: csrc/follow.h carries it out around the ops of a running program, or of a trace that is played."""

from collections.abc import Iterator

from coop import _C
from coop.plan.addresses import assign, most_at_once
from coop.plan.graph import NONE
from coop.plan.plan import Plan, PlanError
from coop.plan.sound import paging_of, refuse_unless_sound
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


def planned(plan: Plan, budget: int, *, live: bool) -> _C.Planned:
    """`live`: ops are recognised by their names. Else they are the trace's own, in order."""
    refuse_unless_sound(plan)
    made = _C.Planned()
    room: dict[int, list[tuple[int, int, int]]] = {}
    tiny = _C.Options().tiny  # what is no larger stays anyway, at the low end
    placed = assign(plan, above=tiny, room=_room(plan, budget)).intervals
    for interval in sorted(placed, key=lambda i: (i.first == NONE, i.first)):  # in the order in which kernels ask
        room.setdefault(interval.begin, []).append((interval.bytes, interval.offset, interval.first))
    first = {number: room.get(at, []) for at, number in _first_runs(plan)}
    for number, (name, outputs, _) in enumerate(plan.program):
        made.node(name if live else "", live and name.endswith(_SILENT), outputs, first.get(number, []))
    kinds = {"compute": _C.Planned.Kind.compute, "free": _C.Planned.Kind.free} | {
        "out": _C.Planned.Kind.out, "in": getattr(_C.Planned.Kind, "in"),
    }  # fmt: skip
    if (paging := paging_of(plan)) is not None:
        for name in ("in_latency", "in_bandwidth", "out_latency", "out_bandwidth"):
            setattr(made, name, float(getattr(paging, name)))
    reached = 0
    for at, (kind, number) in enumerate(plan.steps):
        if kind == "compute" and number == reached:
            reached += 1
        else:
            made.step(kinds[kind], number, reached, room.get(at, []))
    return made


def _room(plan: Plan, budget: int) -> int:
    """What sources leave of the budget."""
    return budget - (plan.peak - most_at_once(plan))


def _first_runs(plan: Plan) -> Iterator[tuple[int, int]]:
    """The steps at which nodes run for the first time, and the nodes."""
    reached = 0
    for at, (kind, number) in enumerate(plan.steps):
        if kind == "compute" and number == reached:
            yield at, number
            reached += 1
