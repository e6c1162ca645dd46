"""From computations and reads to a plan that pages. The other steps follow, as in schedule.py.

A value that is ever brought in is written out right after it is first computed. The copy in storage
stays, so once is enough. A value leaves memory after the last step that needs it before it is
computed or brought in again.
"""

from collections.abc import Iterable, Sequence

from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.timeline import Rerun


def arrange(graph: Graph, reruns: Iterable[Rerun], brought: Iterable[tuple[int, int]]) -> list[Step]:
    """Steps with these reruns. Each value of `brought` is brought in in its stage, right before the
    first node that reads it."""
    count = len(graph.nodes)
    again: list[list[int]] = [[] for _ in range(count + 1)]
    waiting: list[dict[int, None]] = [{} for _ in range(count + 1)]
    for node, at in reruns:
        again[at].append(node)
    for value, at in sorted(brought):
        waiting[at][value] = None
    found = []
    for at in range(count + 1):
        for node in sorted(again[at]):
            for value in graph.nodes[node].inputs:
                if value in waiting[at]:
                    del waiting[at][value]
                    found.append(Step("in", value))
            found.append(Step("compute", node))
        found.extend(Step("in", value) for value in waiting[at])
        if at < count:
            found.append(Step("compute", at))
    return found


def complete(graph: Graph, steps: Sequence[Step]) -> list[Step]:
    """The plan with the computations and reads of these steps; other steps are ignored. Reruns and
    reads that no node needs are left out.

    Raises PlanError if a value is read before it is in memory, or after it was overwritten.
    """
    events = [step for step in steps if step.kind in ("compute", "in")]
    needed = {number for number, value in enumerate(graph.values) if value.kept}
    first = {step.number: at for at, step in reversed(list(enumerate(events))) if step.kind == "compute"}
    back: set[int] = set()
    found: list[Step] = []  # from the end
    for at in range(len(events) - 1, -1, -1):
        step = events[at]
        if step.kind == "in":
            if step.number in needed:
                needed.remove(step.number)
                back.add(step.number)
                found.append(step)
            continue
        node = graph.nodes[step.number]
        again = first[step.number] != at
        if again and needed.isdisjoint(node.outputs):
            continue
        gone = set(node.overwritten())
        if lost := gone & needed:
            raise PlanError(f"value {min(lost)} is read after it was overwritten")
        leave = [v for v in dict.fromkeys((*node.inputs, *node.outputs)) if v not in needed and v not in gone]
        found.extend(Step("free", value) for value in reversed(leave))
        if not again:
            found.extend(Step("out", value) for value in reversed(node.outputs) if value in back)
        found.append(step)
        needed.difference_update(node.outputs)
        needed.update(node.inputs)
    if needed:
        raise PlanError(f"value {min(needed)} is read before it is made")
    return found[::-1]
