"""A plan as the engine reads it: the steps around each op, and the addresses.

csrc/engine/follower.h carries it out around the ops of a running program, or of a trace that is
played. model/check.py decides whether the plan is legal. The plan has the addresses of its values.
They are solved here only if the plan has none, or if they need more room than there is.
"""

from collections.abc import Iterator

from coop import _C
from coop.plan.model.addresses import Interval
from coop.plan.model.check import check_addresses, check_followable, check_same_step, paging_of
from coop.plan.model.graph import NONE
from coop.plan.model.plan import Plan, PlanError
from coop.plan.running.packing import assign, room_in, tiny
from coop.sizes import format_bytes

_SILENT = ":statistics"
"""In a trace, the update of a batch norm's running statistics is an op of its own. In a live
program it is part of the batch norm."""


def refuse_unless_for(plan: Plan, graph: str | None, budget: int) -> None:
    """Raises PlanError if a plan is for another graph (None: not known yet) or needs more than the
    budget."""
    if graph is not None:
        check_same_step(plan, graph)
    if plan.peak > budget:
        raise PlanError(
            f"the plan needs {format_bytes(plan.peak)} ({plan.peak} bytes), and the budget is {format_bytes(budget)}. "
            "Tip: make a plan for this budget, or allow that much"
        )


def planned(plan: Plan, budget: int, *, live: bool) -> _C.Planned:
    """`live`: ops are recognised by their names. Else they are the trace's own, in order."""
    check_followable(plan)
    check_addresses(plan)
    made = _C.Planned()
    room: dict[int, list[tuple[int, int, int]]] = {}
    for interval in sorted(
        _placed(plan, budget), key=lambda i: (i.first == NONE, i.first)
    ):  # in the order in which kernels ask
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


def _placed(plan: Plan, budget: int) -> tuple[Interval, ...]:
    """The plan's own addresses. They are solved again if the plan has none, or if they were solved
    for another budget and do not fit into this one."""
    room = room_in(plan, budget)
    own = plan.addresses
    if own is not None and (own.needed <= room or budget == plan.budget):
        return own.intervals
    return assign(plan, above=tiny(), room=room).intervals


def _first_runs(plan: Plan) -> Iterator[tuple[int, int]]:
    """The steps at which nodes run for the first time, and the nodes."""
    reached = 0
    for at, (kind, number) in enumerate(plan.steps):
        if kind == "compute" and number == reached:
            yield at, number
            reached += 1
