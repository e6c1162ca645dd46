"""Coarsening: neighbouring nodes become one, for planners whose programs grow faster than the
graph.

Two rules, both for nodes that follow each other in the program:

- A chain is fused where keeping the values in between cannot pay: only the next node reads them,
  that node reads nothing else, and its output is not larger.
- Nodes at the end, such as an optimizer's thousand updates, are fused, as long as they together do
  not need more memory than some other node alone.

A fused node needs all its inputs at once, and as much scratch as its members need at most. So a
plan of the coarse graph is a plan of the fine one, in no more memory. Plans that need less memory
because they bring an input later are lost. The bound of the fine graph limits this loss: coarse
plans are offered to the search in the fine graph, and the gap is that search's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coop.plan.model.graph import NONE, Graph, Node, Value
from coop.plan.model.plan import floor
from coop.plan.model.schedule import peak_alone
from coop.plan.search.bounds import bound, moments
from coop.plan.search.search import Search

_LARGE = 150  # nodes: coarsening pays from this size on


@dataclass(frozen=True)
class Coarse:
    graph: Graph
    groups: tuple[range, ...]
    """For each node: those of the fine graph."""

    def fine(self, sequence: Sequence[int]) -> list[int]:
        """The sequence of the fine graph that a coarse one stands for."""
        return [node for group in sequence for node in self.groups[group]]


class CoarseSearch(Search):
    """A search in a coarse graph whose plans are offered to that in the fine one."""

    def __init__(self, fine: Search, coarse: Coarse) -> None:
        super().__init__(coarse.graph, fine.budget, fine.seconds_left(), workers=fine.workers)
        self.fine, self.coarse = fine, coarse

    def offer(self, sequence: Sequence[int]) -> bool:
        better = super().offer(sequence)
        self.fine.stage = self.stage
        self.fine.offer_if_legal(self.coarse.fine(sequence))
        return better

    def seconds_left(self, share: float = 1.0) -> float:
        return min(super().seconds_left(share), self.fine.seconds_left(share))


def in_the_coarse(planner: Callable[..., None], search: Search, **options: Any) -> None:
    """Plans a graph that is too large for a planner in a smaller one. The bound is the fine
    graph's."""
    coarse = coarsen(search.graph) if len(search.graph.nodes) > _LARGE else None
    if coarse is None or search.budget < floor(coarse.graph)[0]:
        planner(search, **options)
        return
    inner = CoarseSearch(search, coarse)
    search.about["coarse"] = f"planned with {len(coarse.graph.nodes)} nodes for {len(search.graph.nodes)}"
    found = bound(search, moments(search.graph, 1), seconds=search.seconds_left(0.2))
    if found is not None and math.isfinite(found):
        search.raise_bound(found)
    try:
        planner(inner, **options)
    finally:
        search.about |= inner.about


def coarsen(graph: Graph) -> Coarse:
    groups: list[range] = []
    for number in range(len(graph.nodes)):
        if groups and _fuse(graph, groups[-1], number):
            groups[-1] = range(groups[-1].start, number + 1)
        else:
            groups.append(range(number, number + 1))
    low, high = 0, len(groups) - 1
    least = floor(_with_tail(graph, groups, high).graph)[0]
    while low < high:  # the first group of the end
        middle = (low + high) // 2
        if floor(_with_tail(graph, groups, middle).graph)[0] <= least:
            high = middle
        else:
            low = middle + 1
    return _with_tail(graph, groups, low)


def _with_tail(graph: Graph, groups: list[range], first: int) -> Coarse:
    joined = [*groups[:first], range(groups[first].start, len(graph.nodes))]
    return Coarse(_Fused(graph, joined).graph(), tuple(joined))


def _fuse(graph: Graph, group: range, number: int) -> bool:
    between = [graph.values[v] for node in group for v in graph.nodes[node].outputs]
    if not between or any(value.kept or any(u not in group and u != number for u in value.users) for value in between):
        return False
    read = {v for node in group for v in (*graph.nodes[node].inputs, *graph.nodes[node].outputs)}
    if not read.issuperset(graph.nodes[number].inputs):
        return False
    given = sum(graph.values[v].bytes for v in graph.nodes[group[-1]].outputs)
    made = sum(graph.values[v].bytes for v in graph.nodes[number].outputs)
    return bool(graph.nodes[number].outputs) and made <= given and number in between[-1].users


class _Fused:
    def __init__(self, graph: Graph, groups: list[range]) -> None:
        self.fine, self.groups = graph, groups
        self.group_of = [number for number, group in enumerate(groups) for _ in group]
        self.numbers: dict[int, int] = {}
        """The numbers, in the coarse graph, of values that are read outside of their group."""
        for number, value in enumerate(graph.values):
            home = self.group_of[value.node]
            if value.kept or any(self.group_of[user] != home for user in value.users):
                self.numbers[number] = len(self.numbers)
        for group in groups:  # a value that no node reads is an output too, or its bytes would not count
            for node in group:
                for made in graph.nodes[node].outputs:
                    if len(group) == 1:
                        self.numbers.setdefault(made, len(self.numbers))

    def graph(self) -> Graph:
        fine = self.fine
        nodes = [self._node(number, group) for number, group in enumerate(self.groups)]
        values: list[Value | None] = [None] * len(self.numbers)
        for old, new in self.numbers.items():
            value = fine.values[old]
            home = self.group_of[value.node]
            users = sorted({self.group_of[user] for user in value.users} - {home})
            values[new] = replace(value, node=home, users=tuple(users))
        base = [max(fine.base[i] for i in group) for group in self.groups]
        return Graph(tuple(nodes), tuple(v for v in values if v), (*base, fine.base[-1]), fine.name, dict(fine.about))

    def _node(self, number: int, group: range) -> Node:
        fine = self.fine
        members = [fine.nodes[i] for i in group]
        inside = {v for member in members for v in member.outputs}
        inputs = dict.fromkeys(v for member in members for v in member.inputs if v not in inside)
        outputs = [v for member in members for v in member.outputs if v in self.numbers]
        # What it overwrites, through versions that no other node reads.
        before = {v: old for member in members for v, old in zip(member.outputs, member.over, strict=False)}
        gone = {old for old in before.values() if old != NONE}
        outputs = [v for v in outputs if v not in gone]
        over = []
        for value in outputs:
            while (old := before.get(value, NONE)) != NONE and old in inside:
                value = old
            over.append(self.numbers.get(old, NONE))
        lasts = [self.group_of[m.last] if m.last < len(fine.nodes) else None for m in members if m.last is not None]
        last = min((at for at in lasts if at is not None), default=None)
        return Node(
            members[0].name if len(group) == 1 else f"{members[0].name} ... {members[-1].name}",
            sum(member.cost for member in members),
            tuple(self.numbers[v] for v in inputs),
            tuple(self.numbers[v] for v in outputs),
            tuple(over) if any(old != NONE for old in over) else (),
            # What its members have in memory at once, beyond its inputs and outputs.
            max(peak_alone(fine, group, outputs) - sum(fine.values[v].bytes for v in outputs), 0),
            last,
        )
