"""Whether a plan can be followed, as far as it says so itself. A file is refused when it is read, not when its plan is in force.

    1. It says for which nodes it is. Their values are numbered one after the other, and each is made by one node.
    2. What takes over bytes takes them from a value that was made before, and has as many.
    3. Each step can be carried out after those before it, and all nodes are computed, first in their order.
    4. If it pages, it says how fast.
    5. Its figures agree: it needs at least the bytes of its own values and at most its budget, and no less time than the step
       or its bound. That is asked of files only: a wrong figure harms nobody but its reader.

Whether it is legal for a graph, `check` says, which needs one.
"""

import dataclasses

from coop.plan.addresses import most_at_once
from coop.plan.graph import NONE
from coop.plan.plan import Plan, PlanError
from coop.sizes import format_bytes
from coop.trace.content import MOST, is_rate, is_whole
from coop.trace.paging import Paging


def refuse_unless_sound(plan: Plan) -> None:
    """Raises PlanError, with the node or step."""
    if not plan.program:
        raise PlanError("the plan does not say for which ops it is: it cannot be followed")
    _nodes(plan)
    paging = paging_of(plan)
    if _steps(plan) and paging is None:
        raise PlanError("the plan is damaged: it pages, and does not say how fast")


def paging_of(plan: Plan) -> Paging | None:
    """Where it pages to, if it does. Raises PlanError if what it says of that is no such thing."""
    said = plan.about.get("paging")
    if said is None:
        return None
    names = {field.name for field in dataclasses.fields(Paging)}
    good = (
        isinstance(said, dict)
        and said.keys() <= names
        and all(is_rate(said.get(name)) for name in ("in_bandwidth", "out_bandwidth"))
        and all(is_rate(said.get(name)) or said.get(name) == 0 for name in ("in_latency", "out_latency"))
        and (said.get("watts", 0) == 0 or is_rate(said["watts"]))
        and (said.get("capacity") is None or is_whole(said["capacity"]))
    )
    if not good:
        raise PlanError(f"the plan is damaged: {repr(said)[:200]} is not what can be paged to")
    return Paging(**said)


def _nodes(plan: Plan) -> None:
    sizes: list[int] = []
    total = 0
    for at, line in enumerate(plan.program):
        before = len(sizes)
        for value, size, over in line.outputs:
            if value != len(sizes):
                raise PlanError(
                    f"the plan is damaged: its values are not numbered one after the other: node {at} makes {value}, "
                    f"and the next is {len(sizes)}"
                )
            if over != NONE and not (0 <= over < before and sizes[over] == size):
                raise PlanError(
                    f"the plan is damaged: in node {at}, value {value} cannot take over the bytes of {over}"
                )
            sizes.append(size)
            total += size
        total += line.scratch
    if total > MOST:
        raise PlanError("the plan is damaged: its sizes are more than 2**60 bytes: too large to be added up")


def _steps(plan: Plan) -> bool:
    """Whether it pages."""
    values = sum(len(line.outputs) for line in plan.program)
    reached = 0
    present: set[int] = set()
    stored: set[int] = set()
    for at, (kind, number) in enumerate(plan.steps):
        if kind == "compute":
            good = 0 <= number <= reached and number < len(plan.program)
            if good:
                reached += number == reached
                outputs = plan.program[number].outputs
                taken = [over for _, _, over in outputs if over != NONE]
                good = len(set(taken)) == len(taken) and present.issuperset(taken)
                present.difference_update(taken)
                present.update(value for value, _, _ in outputs)
        else:
            good = 0 <= number < values and (kind == "in") == (number not in present)
            if kind == "free":
                present.discard(number)
            elif kind == "in":
                good = good and number in stored
                present.add(number)
            else:
                stored.add(number)
        if not good:
            raise PlanError(f"the plan is damaged: step {at} ({kind} {number}) cannot be carried out")
    if reached < len(plan.program):
        raise PlanError(f"the plan is damaged: node {reached} is never computed")
    return bool(stored)


def refuse_unless_figures_agree(plan: Plan) -> None:
    """Of a plan that is sound. Raises PlanError."""
    least = most_at_once(plan)
    if not least <= plan.peak <= plan.budget:
        raise PlanError(
            f"the plan is damaged: it says that it needs {format_bytes(plan.peak)} of {format_bytes(plan.budget)}, and its "
            f"values alone take {format_bytes(least)}"
        )
    if not max(plan.base_duration, plan.bound) <= plan.duration:
        raise PlanError(
            f"the plan is damaged: it says that it takes {plan.duration} ns, the step by itself {plan.base_duration} ns, and no "
            f"plan less than {plan.bound} ns"
        )
