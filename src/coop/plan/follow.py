"""A plan for the engine: csrc/follow.h carries it out around the ops of a running program, or of a trace that is played."""

from collections.abc import Iterator

from coop import _C
from coop.plan.addresses import assign, most_at_once
from coop.plan.graph import NONE
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


def planned(plan: Plan, budget: int, *, live: bool) -> _C.Planned:
    """`live`: ops are recognised by their names. Else they are the trace's own, in order."""
    if not plan.program:
        raise PlanError("the plan does not say for which ops it is: it cannot be followed")
    made = _C.Planned()
    _refuse_unless_sound(plan)
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
    for name, rate in plan.about.get("paging", {}).items():
        if name.endswith(("latency", "bandwidth")):
            setattr(made, name, float(rate))
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


def _refuse_unless_sound(plan: Plan) -> None:
    """As far as the engine could be harmed by it. Whether it is legal, `check` says."""
    values = {value for line in plan.program for value, _, _ in line.outputs}
    overs = {over for line in plan.program for _, _, over in line.outputs}
    if values != set(range(len(values))) or not overs <= values | {NONE}:
        raise PlanError("the plan is damaged: its values are not numbered one after the other")
    reached = 0
    present: set[int] = set()
    for at, (kind, number) in enumerate(plan.steps):
        if kind == "compute":
            good = 0 <= number <= reached and number < len(plan.program)
            if good:
                reached += number == reached
                for value, _, over in plan.program[number].outputs:
                    good = good and (over == NONE or over in present)
                    present.discard(over)
                    present.add(value)
        else:
            good = number in values and (kind == "in") == (number not in present)
            if kind == "free":
                present.discard(number)
            elif kind == "in":
                present.add(number)
        if not good:
            raise PlanError(f"the plan is damaged: step {at} ({kind} {number}) cannot be carried out")


def _first_runs(plan: Plan) -> Iterator[tuple[int, int]]:
    """The steps at which nodes run for the first time, and the nodes."""
    reached = 0
    for at, (kind, number) in enumerate(plan.steps):
        if kind == "compute" and number == reached:
            yield at, number
            reached += 1
