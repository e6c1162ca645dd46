"""treewidth: a tree of separators decides what is kept, or the price alone.

Kumar et al., "Efficient rematerialization for deep networks", NeurIPS 2019. A tree decomposition of
the graph, split at its middle recursively, is a tree of separators: the inputs of a node are made
above or below it, and for n nodes of width k the tree is O(log n) deep. While a node runs, the
paper keeps what the separators above it have made, O(k log n) values, and recomputes everything
else. Here other values stay too while they fit, and those that are cheapest to recompute for their
bytes leave first.

What differs: nodes run for the first time in the order of the program (rule 2 of the checker), not
of the tree. Values that are missing for the next node are recomputed, and the values that the tree
keeps leave last. Values that cannot be recomputed stay while the program reads them. Replays by
price alone are tried as well, and are often better. After each replay, reruns are removed if their
value fits after all, until nothing changes.

A replay decides step by step, so it counts memory with `Memory` (timeline.py). The removal of
reruns starts from the timeline's levels and changes them with each rerun, because a new timeline
for each of thousands would take too long. Every plan that is offered is checked.

Not done: the paper's own order. Its bounds on memory and length hold for that order only.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import networkx as nx
import numpy as np
from networkx.algorithms.approximation import treewidth_min_degree, treewidth_min_fill_in

from coop.plan.heuristic.chen import Forward
from coop.plan.model.graph import Graph, until
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import frees, profile, prune
from coop.plan.model.timeline import Memory
from coop.plan.search.search import Search
from coop.sizes import format_bytes

_FILL = 400
"""Up to so many nodes the decomposition is by least fill-in, which is slow; above, by least
degree."""
_LONGEST = 30
"""Times as long as the graph: no sequence becomes longer."""
_RULES = (
    (False, 1.0, False),
    (True, 0.5, False),
    (False, 0.0, True),
    (True, 0.0, True),
    (False, 0.5, True),
    (True, 1.0, False),
)
"""Whether the tree is used, the weight of the time until a value is read, and whether nodes of the
backward pass may be run again: their values are expensive to recompute. (True, 0, True) is the
paper's rule."""
_WAY = 40
"""The most nodes that are counted in the cost of recomputing a value."""
_FRESH = 64
"""Ranks are computed again at every node; at every second node if this many values are in memory,
and so on."""


def treewidth(search: Search) -> None:
    """The best of replays by several rules."""
    graph, tree = search.graph, None
    failure: PlanError | None = None
    for rule in _RULES:
        if search.duration is not None and not search.seconds_left():
            break
        if rule[0] and tree is None:
            search.stage = "tree decomposition"
            tree = Separators(graph)
            search.about["width"] = tree.width
        search.stage = "replay"
        try:
            sequence = _Replay(graph, search.budget, tree, rule, search.seconds_left).sequence()
        except PlanError as error:
            failure = error
            continue
        search.offer(sequence)
        for shorter in taken_back(graph, sequence, search.budget):
            search.offer(shorter)
            if not search.seconds_left():
                break
        if search.proven:
            break
    if search.duration is None and failure is not None:
        raise failure


class Separators:
    """The tree of separators. Every node belongs to one of them."""

    def __init__(self, graph: Graph) -> None:
        undirected = nx.Graph()
        undirected.add_nodes_from(range(len(graph.nodes)))
        undirected.add_edges_from((a, b) for b, parents in enumerate(graph.parents) for a in parents if a != b)
        few = len(graph.nodes) <= _FILL
        self.width, tree = (treewidth_min_fill_in if few else treewidth_min_degree)(undirected)
        self._enter = [0] * len(graph.nodes)
        self._leave = [0] * len(graph.nodes)
        """A separator is above another if its nodes' numbers from `enter` to `leave` include those
        of the other."""
        self.depth = 0
        bags = [sorted(bag) for bag in tree]
        number = {bag: i for i, bag in enumerate(tree)}
        neighbours = [{number[other] for other in tree[bag]} for bag in tree]
        self._split(bags, neighbours)

    def _split(self, bags: list[list[int]], neighbours: list[set[int]]) -> None:
        placed: set[int] = set()
        stack: list[tuple[list[int], int] | list[int]] = [
            (list(part), 1) for part in _parts(range(len(bags)), neighbours)
        ]
        count = 0
        while stack:
            what = stack.pop()
            if isinstance(what, list):
                for node in what:
                    self._leave[node] = count
                continue
            part, depth = what
            self.depth = max(self.depth, depth)
            centre = _centre(part, neighbours, [len(bags[bag]) for bag in part])
            own = [node for node in bags[centre] if node not in placed]
            placed.update(own)
            for node in own:
                self._enter[node] = count
            count += 1
            stack.append(own)
            for other in neighbours[centre]:
                neighbours[other].discard(centre)
            rest = [bag for bag in part if bag != centre]
            stack += [(list(smaller), depth + 1) for smaller in _parts(rest, neighbours)]

    def above(self, node: int, other: int) -> bool:
        """Whether a node's separator is above another node's, or the same."""
        return self._enter[node] <= self._enter[other] < self._leave[node]


def _parts(bags: Iterable[int], neighbours: list[set[int]]) -> list[list[int]]:
    """Connected parts of a forest."""
    found, seen = [], set[int]()
    for bag in bags:
        if bag in seen:
            continue
        seen.add(bag)
        part = [bag]
        for current in part:  # it grows
            new = neighbours[current] - seen
            seen |= new
            part += new
        found.append(part)
    return found


def _centre(part: list[int], neighbours: list[set[int]], sizes: list[int]) -> int:
    """The bag whose removal leaves the smallest largest part. `part` is in breadth-first order."""
    weight = dict(zip(part, sizes, strict=True))
    total = sum(sizes)
    parent: dict[int, int] = {part[0]: -1}
    for bag in part:
        for other in neighbours[bag]:
            if other not in parent:
                parent[other] = bag
    below, largest = dict(weight), dict.fromkeys(part, 0)
    for bag in reversed(part):
        above = parent[bag]
        if above >= 0:
            below[above] += below[bag]
            largest[above] = max(largest[above], below[bag])
    return min(part, key=lambda bag: max(largest[bag], total - below[bag]))


class _Replay:
    """Runs the graph in a budget. Missing values are recomputed; the tree and the price decide what
    leaves."""

    def __init__(
        self,
        graph: Graph,
        budget: int,
        tree: Separators | None,
        rule: tuple[bool, float, bool],
        seconds_left: Callable[[], float],
    ) -> None:
        self.graph, self.budget, self.seconds_left = graph, budget, seconds_left
        by_tree, self.far, backward = rule
        self.tree = tree if by_tree else None
        self.kept = [number for number, value in enumerate(graph.values) if value.kept]
        self.last = [until(graph, number) for number in range(len(graph.values))]
        """Where the program reads each value for the last time."""
        self.until = self._until(len(graph.nodes) if backward else Forward(graph).end)
        self.memory = Memory(graph)
        self.there = self.memory.values
        self.locks: dict[int, int] = {}
        """How many nodes that are about to run read a value."""
        self.heap: list[tuple[bool, float, int]] = []
        self.at = 0
        """The next node to run for the first time."""
        self.found: list[int] = []

    def _until(self, end: int) -> list[int]:
        """The last node before which each can be run again. Those from `end` on are never run
        again.

        An input has to be available: the program still reads it, or it can be recomputed too.
        """
        found: list[int] = []
        for number, node in enumerate(self.graph.nodes):
            own = number if number >= end else len(self.graph.nodes) if node.last is None else node.last
            inputs = (max(found[self.graph.values[v].node], self.last[v]) for v in node.inputs)
            found.append(min(own, *inputs) if node.inputs else own)
        return found

    def sequence(self) -> list[int]:
        n = len(self.graph.nodes)
        for self.at in range(n):
            if self.at % (len(self.there) // _FRESH + 1) == 0:
                self._rank_all()
            self._reach(self.at)
        self.at = n
        for value in self.kept:
            self._lock(value, 1)
        for value in self.kept:
            if value not in self.there:
                self._reach(self.graph.values[value].node)
        return prune(self.graph, self.found)

    def _reach(self, target: int) -> None:
        """Runs a node, and before it the nodes whose outputs are missing. The latest first, because
        it may need the others."""
        nodes, values = self.graph.nodes, self.graph.values
        stack = [target]
        self._lock_inputs(target, 1)
        while stack:
            node = stack[-1]
            missing = [values[v].node for v in nodes[node].inputs if v not in self.there]
            if missing:
                stack.append(max(missing))
                self._lock_inputs(stack[-1], 1)
                continue
            self._run(node, target)
            self._lock_inputs(node, -1)
            stack.pop()

    def _lock_inputs(self, node: int, count: int) -> None:
        for value in self.graph.nodes[node].inputs:
            self._lock(value, count)

    def _lock(self, value: int, count: int) -> None:
        self.locks[value] = self.locks.get(value, 0) + count
        if not self.locks[value] and value in self.there:
            self._offer(value)

    def _run(self, number: int, target: int) -> None:
        if len(self.found) > _LONGEST * len(self.graph.nodes) or not self.seconds_left():
            raise PlanError(
                f"replaying the step in {format_bytes(self.budget)} had run {len(self.found)} nodes when it came to "
                f"node {self.at} of {len(self.graph.nodes)}, and was given up. "
                f"Tip: a larger budget or a longer time limit"
            )
        self._make_room(number)
        self.memory.compute(number)
        self.found.append(number)
        for value in self.graph.nodes[number].outputs:
            if not self.locks.get(value):
                self._offer(value)

    # --- what leaves -----------------------------------------------------------------------------------------------

    def _make_room(self, node: int) -> None:
        outputs = self.graph.nodes[node].outputs
        more = self.graph.base[self.at] + self.memory.rise(node)
        while self.memory.bytes + more > self.budget:
            if not self.heap:
                raise PlanError(
                    f"{format_bytes(self.memory.bytes + more)} are needed while node {node} runs before node "
                    f"{self.at} does, after everything left that can be made again, and the budget is "
                    f"{format_bytes(self.budget)}. Tip: a larger budget, or auto"
                )
            above, rank, value = heapq.heappop(self.heap)
            if value not in self.there or self.locks.get(value) or value in outputs or self._stays(value):
                continue
            now = self._rank(value)
            maker = self.graph.values[value].node
            held = now[0] or (self.tree is not None and self.tree.above(maker, node))
            if (held, now[1]) > (above, rank) and self.heap and (held, now[1]) > self.heap[0][:2]:
                heapq.heappush(self.heap, (held, now[1], value))
                continue
            self.memory.free(value)

    def _stays(self, value: int) -> bool:
        """It cannot be recomputed where it is read."""
        return self.until[self.graph.values[value].node] < self.last[value] and self.at <= self.last[value]

    def _rank_all(self) -> None:
        self.heap = [(*self._rank(v), v) for v in self.there if not self.locks.get(v) and not self._stays(v)]
        heapq.heapify(self.heap)

    def _offer(self, value: int) -> None:
        if not self._stays(value):
            heapq.heappush(self.heap, (*self._rank(value), value))

    def _rank(self, value: int) -> tuple[bool, float]:
        """Whether the tree keeps it, and its price for each byte. The lowest leaves first."""
        made, n = self.graph.values[value], len(self.graph.nodes)
        if self.last[value] < self.at and not self._helps(value):
            return False, -1.0
        i = bisect_left(made.users, self.at)
        following = made.users[i] if i < len(made.users) else n
        read = self.last[value] >= self.at
        price = self._price(value, following) if read else self.graph.nodes[made.node].cost + 1
        above = self.tree is not None and self.at < n and self.tree.above(made.node, self.at)
        return above, price / max(made.bytes, 1) / (following - self.at + 1) ** self.far

    def _helps(self, value: int) -> bool:
        """Whether a value that is read later is made from a value that the program no longer
        reads."""
        nodes = self.graph.nodes
        return any(
            self.last[output] >= self.at for user in self.graph.values[value].users for output in nodes[user].outputs
        )

    def _price(self, value: int, at: int) -> int:
        """The cost of recomputing it for a node, with what will be missing for that. Long chains
        are cut off."""
        nodes, values = self.graph.nodes, self.graph.values
        way = [values[value].node]
        cost = 0
        for node in way:  # it grows
            cost += nodes[node].cost
            if len(way) < _WAY:
                missing = (v for v in nodes[node].inputs if v not in self.there or self.last[v] < at)
                way += [maker for v in missing if (maker := values[v].node) not in way]
        return cost + 1


def taken_back(graph: Graph, sequence: Sequence[int], budget: int) -> Iterable[list[int]]:
    """Shorter sequences, each from the one before: reruns of values that need not leave are
    removed, the most expensive first."""
    current = list(sequence)
    while (shorter := _without_needless(graph, current, budget)) is not None:
        yield shorter
        current = shorter


def _without_needless(graph: Graph, sequence: list[int], budget: int) -> list[int] | None:
    level = np.array(profile(graph, sequence).memory, dtype=np.int64)
    freed = frees(graph, sequence)
    touched: dict[int, int] = {}
    """Where each value was last made or read, so far."""
    lost: set[int] = set()
    """Values that were overwritten since."""
    seen: set[int] = set()
    repeats: list[tuple[int, int, list[tuple[int, int]]]] = []
    """Cost, position in the sequence, and the values that have to stay, with the position from
    which on."""
    for i, number in enumerate(sequence):
        node = graph.nodes[number]
        if number in seen:
            needed = [v for v in node.outputs if v not in freed[i]]
            if lost.isdisjoint(needed):
                repeats.append((node.cost, i, [(v, touched[v]) for v in needed]))
        seen.add(number)
        lost.update(node.overwritten())
        lost.difference_update(node.outputs)
        for value in (*node.inputs, *node.outputs):
            touched[value] = i
    gone: set[int] = set()
    anchors: set[int] = set()
    """The positions of runs whose outputs then stay: these runs are needed."""
    for _, i, stays in sorted(repeats, key=lambda repeat: (-repeat[0], repeat[1])):
        made = {since for value, since in stays if value in graph.nodes[sequence[since]].outputs}
        if i in anchors or made & gone:
            continue
        for done, (value, since) in enumerate(stays):
            between = level[since + 1 : i]
            between += graph.values[value].bytes
            if len(between) and between.max() > budget:
                for other, begin in stays[: done + 1]:
                    level[begin + 1 : i] -= graph.values[other].bytes
                break
        else:
            gone.add(i)
            anchors |= made
    return prune(graph, [node for i, node in enumerate(sequence) if i not in gone]) if gone else None
