"""From a sequence of nodes to a plan: the computations decide what has to be in memory.

A value is freed after the last node that reads it before it is computed again. So a sequence, in
which nodes may be repeated, determines a plan without paging.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from coop.plan.model.check import check
from coop.plan.model.graph import Graph
from coop.plan.model.plan import Kind, Plan, PlanError, Step, program_of
from coop.plan.model.timeline import Rerun, Timeline


def reruns_of(sequence: Sequence[int]) -> set[Rerun]:
    """The reruns of a sequence."""
    found, at = set(), 0
    for node in sequence:
        if node == at:
            at += 1
        else:
            found.add((node, at))
    return found


def sequence_of(graph: Graph, reruns: Iterable[Rerun]) -> list[int]:
    """The sequence with these reruns. Those of one stage are in the order of the graph."""
    again: list[list[int]] = [[] for _ in range(len(graph.nodes) + 1)]
    for node, at in reruns:
        again[at].append(node)
    return [node for at, before in enumerate(again) for node in (*sorted(before), at)][:-1]


def frees(graph: Graph, sequence: Sequence[int]) -> list[tuple[int, ...]]:
    """For each computation, the values that are freed right after it.

    Raises PlanError if something is read before it is made, or after it was overwritten.
    """
    kept = (number for number, value in enumerate(graph.values) if value.kept)
    found, needed = _frees(graph, sequence, kept)
    if needed:
        raise PlanError(f"value {min(needed)} is read before it is made")
    return found


def _frees(graph: Graph, sequence: Sequence[int], wanted: Iterable[int]) -> tuple[list[tuple[int, ...]], set[int]]:
    """The same for a sequence after which some values are wanted; and the values that have to be in
    memory before it."""
    needed = set(wanted)
    found: list[tuple[int, ...]] = [()] * len(sequence)
    for at in range(len(sequence) - 1, -1, -1):
        node = graph.nodes[sequence[at]]
        touched = dict.fromkeys((*node.inputs, *node.outputs))
        gone = set(node.overwritten())
        if lost := gone & needed:
            raise PlanError(f"value {min(lost)} is read after it was overwritten")
        found[at] = tuple(value for value in touched if value not in needed and value not in gone)
        needed.difference_update(node.outputs)
        needed.update(node.inputs)
    return found, needed


def prune(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The sequence without reruns whose outputs are not read."""
    needed = {number for number, value in enumerate(graph.values) if value.kept}
    first = {node: at for at, node in reversed(list(enumerate(sequence)))}
    kept = []
    for at in range(len(sequence) - 1, -1, -1):
        node = graph.nodes[sequence[at]]
        if first[sequence[at]] != at and needed.isdisjoint(node.outputs):
            continue
        kept.append(sequence[at])
        needed.difference_update(node.outputs)
        needed.update(node.inputs)
    return kept[::-1]


def profile(graph: Graph, sequence: Sequence[int]) -> Timeline:
    """What the sequence costs in time and memory. Raises PlanError as `frees` does."""
    return Timeline(graph, _carried_out(graph, sequence))


def _carried_out(graph: Graph, sequence: Sequence[int]) -> Iterator[tuple[Kind, int]]:
    """Steps as plain tuples, because these are faster to make and planners try many sequences."""
    for number, freed in zip(sequence, frees(graph, sequence), strict=True):
        yield "compute", number
        for value in freed:
            yield "free", value


def peak_alone(graph: Graph, sequence: Sequence[int], wanted: Collection[int]) -> int:
    """The most bytes in memory while these nodes run one after the other, each once, somewhere in a
    step. Only what they make and overwrite, and their scratch, is counted.

    Sources and values that they only read do not count. A wanted value stays; any other leaves
    after the last of them that reads it.
    """
    freed, before = _frees(graph, sequence, wanted)
    taken = [value for number in sequence for value in graph.nodes[number].overwritten() if value in before]
    steps: list[tuple[Kind, int]] = [("in", value) for value in taken]
    for number, leave in zip(sequence, freed, strict=True):
        steps.append(("compute", number))
        steps += [("free", value) for value in leave if value not in before]
    moments = Timeline(graph, steps).moments
    return max((moment.bytes - graph.base[moment.stage] for moment in moments), default=0)


def peak_of(graph: Graph) -> int:
    """Bytes that the step needs when everything is kept."""
    return profile(graph, range(len(graph.nodes))).peak


def steps_of(graph: Graph, sequence: Sequence[int]) -> tuple[Step, ...]:
    return tuple(Step(kind, number) for kind, number in _carried_out(graph, sequence))


def plan_of(graph: Graph, sequence: Sequence[int], budget: int, planner: str, **more: Any) -> Plan:
    """The plan of a sequence, checked. Raises PlanError if it is not legal."""
    draft = Plan(steps_of(graph, sequence), graph.fingerprint, budget, planner, 0, graph.cost, 0)
    found = check(draft, graph)
    bound = max(int(more.pop("bound", 0)), graph.cost)
    status = "optimal" if found.duration <= bound else "feasible"
    return Plan(
        draft.steps,
        draft.graph,
        budget,
        planner,
        found.duration,
        graph.cost,
        found.peak,
        bound,
        status,
        **more,
        program=program_of(graph),
    )
