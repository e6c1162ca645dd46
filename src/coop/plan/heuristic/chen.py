"""chen-sqrt and chen-greedy: segments of the forward pass are computed twice.

Chen et al., "Training deep nets with sublinear memory cost", 2016. The forward pass is cut into
segments. Values that cross a cut are kept. All others are dropped after the forward pass has read
them, are recomputed when the backward pass first reads them, and then stay to their last use. The
last segment is not dropped.

`sqrt` makes about sqrt(n) segments of equal bytes, whatever the budget is. `greedy` tries several
sizes of segments (the paper's search over b) and drops as few segments as the budget allows, from
the first on: that takes the least time.

What differs: any graph is allowed, not only a network of layers. The forward pass ends where the
most bytes wait to be read, and cuts are where few bytes cross. Values that cannot be recomputed are
kept. A value that was overwritten comes back with the whole chain of nodes that made it, and no cut
goes through such a chain.

Bytes that wait or cross a cut are counted in the graph, because there is no schedule yet. The
memory of a schedule comes from the timeline.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import isqrt

from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import peak_of, profile, prune, sequence_of
from coop.plan.model.timeline import Rerun
from coop.plan.search.search import Search
from coop.sizes import format_bytes

_SIZES = 24
"""How many sizes of segments `greedy` tries."""


def sqrt(search: Search) -> None:
    """The plan of about sqrt(n) segments, if it fits."""
    forward = Forward(search.graph)
    layers = sum(bytes_ > 0 for bytes_ in forward.wanted)
    segments = max(isqrt(layers), 1)
    cuts = forward.equal_cuts(segments)
    sequence = forward.sequence(cuts)
    peak = profile(search.graph, sequence).peak
    if peak > search.budget:
        raise PlanError(
            f"{len(cuts) + 1} segments of the forward pass, of {layers} nodes whose values are read again, need "
            f"{format_bytes(peak)}, and the budget is {format_bytes(search.budget)}. Tip: chen-greedy chooses its "
            f"segments by the budget; treewidth and auto compute things more than twice"
        )
    search.about["segments"] = len(cuts) + 1
    search.offer(sequence)


def greedy(search: Search) -> None:
    """The cheapest plan that fits, over several sizes of segments."""
    least = peak_of(search.graph)
    if least <= search.budget:
        search.offer(range(len(search.graph.nodes)))
        return
    forward = Forward(search.graph)
    layers = max(sum(bytes_ > 0 for bytes_ in forward.wanted), 2)
    for i in range(_SIZES):
        if search.duration is not None and not search.seconds_left():
            break
        cuts = forward.cuts_of(sum(forward.wanted) / 2 / (layers / 2) ** (i / (_SIZES - 1)))
        low, high = 1, len(cuts)
        """The fewest and the most segments that may have to be dropped."""
        dropped = high
        while low <= high:
            sequence = forward.sequence(cuts[:dropped])
            if search.duration is not None and _duration(search, sequence) >= search.duration:
                high = dropped - 1
            elif (peak := profile(search.graph, sequence).peak) <= search.budget:
                search.about["segments"] = dropped + 1
                search.offer(sequence)
                high = dropped - 1
            else:
                low, least = dropped + 1, min(least, peak)
            dropped = (low + high) // 2
    if search.duration is None:
        raise PlanError(
            f"computing segments of the forward pass twice needs {format_bytes(least)} at best, and the budget is "
            f"{format_bytes(search.budget)}. Tip: treewidth and auto compute things more than twice"
        )


def _duration(search: Search, sequence: Sequence[int]) -> int:
    return sum(search.graph.nodes[node].cost for node in sequence)


@dataclass(frozen=True)
class Forward:
    """The forward pass of a graph, and where it can be cut. A cut is the number of the first node
    after it."""

    graph: Graph

    @cached_property
    def end(self) -> int:
        """The first node after it, where the most bytes wait to be read."""
        waiting = [0] * (len(self.graph.nodes) + 2)
        for value in self.graph.values:
            if value.users:
                waiting[value.node + 1] += value.bytes
                waiting[value.users[-1] + 1] -= value.bytes
        levels = list(accumulate(waiting))
        return levels.index(max(levels))

    @cached_property
    def wanted(self) -> list[int]:
        """For each of its nodes, bytes that it makes and that are read after the forward pass."""
        return [
            sum(self.graph.values[v].bytes for v in node.outputs if self.late(v))
            for node in self.graph.nodes[: self.end]
        ]

    @cached_property
    def sums(self) -> list[int]:
        """Bytes wanted of all nodes before each."""
        return list(accumulate(self.wanted, initial=0))

    def late(self, value: int) -> bool:
        users = self.graph.values[value].users
        return bool(users) and users[-1] >= self.end

    def reach(self, value: int) -> int:
        """The last of its nodes that reads a value; the node that makes it if none does."""
        made = self.graph.values[value]
        i = bisect_left(made.users, self.end)
        return made.users[i - 1] if i else made.node

    @cached_property
    def crossing(self) -> list[int | None]:
        """For each cut, bytes that cross it. None: something would, and is overwritten on the
        other side."""
        bytes_, chains = [0] * (self.end + 2), [0] * (self.end + 2)
        for number, value in enumerate(self.graph.values):
            if value.node < self.end:
                bytes_[value.node + 1] += value.bytes
                bytes_[self.reach(number) + 1] -= value.bytes
                if (last := self.graph.overwriter.get(number, self.end)) < self.end:
                    chains[value.node + 1] += 1
                    chains[last + 1] -= 1
        levels = zip(accumulate(bytes_), accumulate(chains), strict=True)
        return [None if chain else crossing for crossing, chain in levels][: self.end]

    def thinnest(self, first: int, last: int, ideal: int) -> int | None:
        """The cut in a range that the fewest bytes cross; on a tie, the one nearest to the ideal.
        None: no cut is possible."""
        found = [
            (crossing, abs(cut - ideal), cut)
            for cut in range(max(first, 1), min(last, self.end - 1) + 1)
            if (crossing := self.crossing[cut]) is not None
        ]
        return min(found)[2] if found else None

    def equal_cuts(self, segments: int) -> list[int]:
        """Into so many segments of about equal bytes, or fewer where no cut is possible."""
        part = self.sums[-1] / segments
        cuts: list[int] = []
        for i in range(1, segments):
            first, ideal, last = (bisect_left(self.sums, part * (i + shift)) for shift in (-0.25, 0, 0.25))
            cut = self.thinnest(first, last, ideal)
            if cut is not None and (not cuts or cut > cuts[-1]):
                cuts.append(cut)
        return cuts

    def cuts_of(self, threshold: float) -> list[int]:
        """Into segments of at most so many bytes, and more than half of that, where cuts are
        possible."""
        cuts: list[int] = []
        begin = 0
        while self.sums[begin] + threshold < self.sums[-1]:
            # A segment that ends before node p has the bytes of all nodes up to p - 1.
            first = bisect_right(self.sums, self.sums[begin] + threshold / 2)
            last = bisect_right(self.sums, self.sums[begin] + threshold) - 1
            cut = self.thinnest(max(first, begin + 1), last, last)
            later = max(last, begin) + 1
            while cut is None and later < self.end:
                cut = self.thinnest(later, later, later)
                later += 1
            if cut is None:
                break
            cuts.append(cut)
            begin = cut
        return cuts

    def sequence(self, cuts: Sequence[int]) -> list[int]:
        """All segments but the last are dropped."""
        dropped = set()
        for number, value in enumerate(self.graph.values):
            if cuts and value.node < cuts[-1] and not self.kept(value.node, cuts):
                dropped.add(number)
        return prune(self.graph, sequence_of(self.graph, self.made_again(dropped)))

    def kept(self, node: int, cuts: Sequence[int]) -> bool:
        """Whether something that a node makes crosses a cut."""
        i = bisect_right(cuts, node)
        return i < len(cuts) and any(self.reach(value) >= cuts[i] for value in self.graph.nodes[node].outputs)

    def made_again(self, dropped: Iterable[int]) -> list[Rerun]:
        """The reruns if these values leave: right before their next reader. Then the values
        stay."""
        nodes, values = self.graph.nodes, self.graph.values
        gone = set(dropped)
        reruns = []
        for at in range(self.end, len(nodes)):
            stack = [value for value in nodes[at].inputs if value in gone]
            found: set[int] = set()
            while stack:
                maker = values[stack.pop()].node
                if maker in found or self.until[maker] < at:  # a value that is not recomputed has been kept
                    continue
                found.add(maker)
                stack += [v for v in nodes[maker].inputs if v in gone or self.graph.overwriter.get(v, at) < at]
            for node in found:
                gone.difference_update(nodes[node].outputs)
                reruns.append((node, at))
        return reruns

    @cached_property
    def until(self) -> list[int]:
        return repeatable_until(self.graph)


def repeatable_until(graph: Graph) -> list[int]:
    """For each node, the last node before which it can be run again, if its inputs are in memory or
    recomputed.

    An input that was overwritten is no longer in memory, so its maker has to be repeatable too.
    """
    found: list[int] = []
    for node in graph.nodes:
        until = len(graph.nodes) if node.last is None else node.last
        for value in node.inputs:
            if value in graph.overwriter:
                until = min(until, max(graph.overwriter[value], found[graph.values[value].node]))
        found.append(until)
    return found
