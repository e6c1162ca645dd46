"""From what is computed and brought in to a plan that pages: the rest follows, as in schedule.py.

A value that is ever brought back goes out right after it is first made. The copy in storage stays,
so once is enough. A value leaves memory after the last step that needs it before it is made or
brought in again.
"""

from collections.abc import Iterable, Sequence

from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.timeline import Place


def arrange(graph: Graph, places: Iterable[Place], brought: Iterable[tuple[int, int]]) -> list[Step]:
    """Runs nodes again at these places, and brings values in at those: right before the first node
    that reads them."""
    count = len(graph.nodes)
    again: list[list[int]] = [[] for _ in range(count + 1)]
    waiting: list[dict[int, None]] = [{} for _ in range(count + 1)]
    for node, at in places:
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
    """The plan that computes and brings in just that; what else is among the steps does not
    matter. What is run again or brought in for nobody is left out.

    Raises PlanError if something is read before it is there, or after it was overwritten.
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
