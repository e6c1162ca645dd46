"""Addresses for a plan: every value, for as long as it is in memory, at an offset of its own.

Intervals are placed one after the other, each at the lowest offset where nothing placed before lives at the same time. In
which order decides how much is lost: several are tried, and the tightest is kept. What an op overwrites keeps its place.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from coop.plan.graph import NONE, Graph
from coop.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Interval:
    value: int
    bytes: int
    begin: int
    """The first step for which it is in memory."""
    end: int
    """The first step for which it is not."""
    offset: int = 0


@dataclass(frozen=True)
class Addresses:
    intervals: tuple[Interval, ...]
    needed: int
    """Bytes from the lowest to the highest address."""
    used: int
    """The most bytes that live at once: no assignment needs less."""

    @property
    def fragmentation(self) -> float:
        """Bytes lost between intervals, over all bytes needed."""
        return 1 - self.used / self.needed if self.needed else 0.0


def assign(plan: Plan, graph: Graph) -> Addresses:
    lives = _intervals(plan, graph)
    used = _most(lives)
    best: list[Interval] | None = None
    for key in _ORDERS:
        placed = _place(sorted(lives, key=key))
        if best is None or _height(placed) < _height(best):
            best = placed
        if _height(best) == used:
            break
    assert best is not None
    return Addresses(tuple(sorted(best, key=lambda i: (i.begin, i.offset))), _height(best), used)


_ORDERS: tuple[Callable[[Interval], tuple[int, int]], ...] = (
    lambda i: (-i.bytes, i.begin),
    lambda i: (-(i.end - i.begin), -i.bytes),
    lambda i: (-i.bytes * (i.end - i.begin), i.begin),
    lambda i: (i.begin, -i.bytes),
)


def _intervals(plan: Plan, graph: Graph) -> list[Interval]:
    """An output that takes over the bytes of an input continues its interval."""
    begin: dict[int, int] = {}
    found: list[Interval] = []

    def leave(value: int, at: int) -> None:
        found.append(Interval(value, graph.values[value].bytes, begin.pop(value), at))

    for at, (kind, what) in enumerate(plan.steps):
        match kind:
            case "compute":
                node = graph.nodes[what]
                for value, old in zip(node.outputs, node.over or (NONE,) * len(node.outputs), strict=True):
                    since = begin.pop(old) if old != NONE else at
                    if value not in begin:
                        begin[value] = since
            case "in":
                begin[what] = at
            case "free":
                leave(what, at)
    for value in list(begin):
        leave(value, len(plan.steps))
    return found


def _place(order: list[Interval]) -> list[Interval]:
    placed: list[Interval] = []
    for interval in order:
        others: list[tuple[int, int]] = []
        for other in placed:
            if other.begin < interval.end and interval.begin < other.end:
                insort(others, (other.offset, other.offset + other.bytes))
        offset = 0
        for low, high in others:
            if low - offset >= interval.bytes:
                break
            offset = max(offset, high)
        placed.append(Interval(interval.value, interval.bytes, interval.begin, interval.end, offset))
    return placed


def _height(placed: list[Interval]) -> int:
    return max((i.offset + i.bytes for i in placed), default=0)


def _most(lives: list[Interval]) -> int:
    events = sorted([(i.begin, i.bytes) for i in lives] + [(i.end, -i.bytes) for i in lives])
    now = most = 0
    for _, size in events:
        now += size
        most = max(most, now)
    return most
