"""From what is computed and brought in to a plan that pages: the rest follows, as in schedule.py.

A value goes out right after it is first made, if it is ever brought back; the copy in storage stays, so once is
enough. It leaves memory after the last step that needs it before it is made or brought in again.
"""

from collections.abc import Iterable, Iterator, Sequence

from coop.plan.graph import Graph
from coop.plan.plan import PlanError, Step
from coop.plan.schedule import Place


def arrange(graph: Graph, places: Iterable[Place], brought: Iterable[tuple[int, int]]) -> list[Step]:
    """Runs nodes again at these places, and brings values in at those: right before the first node that reads them."""
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
    """The plan that computes and brings in just that; what else is among the steps does not matter. What is run again
    or brought in for nobody is left out.

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


def levels(graph: Graph, steps: Sequence[Step]) -> Iterator[tuple[Step, int, int]]:
    """Each step that computes or brings in, the stage that it is in, and the bytes in memory meanwhile."""
    memory: set[int] = set()
    used = stage = 0
    for kind, number in steps:
        now, extra = stage, 0
        gone: Iterable[int] = [number] if kind == "free" else []
        come: Iterable[int] = [number] if kind == "in" else []
        if kind == "compute":
            node = graph.nodes[number]
            gone, come, extra = node.overwritten(), node.outputs, node.scratch
            stage += number == stage
        for value in gone:
            memory.remove(value)
            used -= graph.values[value].bytes
        for value in come:
            used += 0 if value in memory else graph.values[value].bytes
            memory.add(value)
        if kind in ("compute", "in"):
            yield Step(kind, number), now, graph.base[now] + used + extra
