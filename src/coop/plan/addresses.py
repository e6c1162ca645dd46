"""Addresses for a plan: every value, for as long as it is in memory, and all scratch, at an offset of its own.

Intervals are placed one after the other, each at the lowest offset where nothing placed before lives at the same time. In
which order decides how much is lost: several are tried, and then what lies too high is placed earlier, time and again. What an op overwrites keeps its place.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coop.plan.graph import NONE
from coop.plan.plan import Plan, PlanError


@dataclass(frozen=True, slots=True)
class Interval:
    value: int
    """NONE: scratch."""
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


_ROUNDS, _PATIENCE = 100, 3.0  # seconds


def assign(plan: Plan, above: int = 0) -> Addresses:
    """For everything that is larger than `above` bytes. Raises PlanError if the plan does not say what its nodes are."""
    if not plan.program:
        raise PlanError("the plan does not say for which ops it is: it has no addresses")
    lives = [interval for interval in _intervals(plan) if interval.bytes > above]
    used, at = _most(lives)
    best: list[Interval] = []
    for order in _orders(lives, at):
        placed = _place(order)
        if not best or _height(placed) < _height(best):
            best = placed
        if _height(best) == used:
            break
    if _height(best) > used:
        best = _squeeze(best, used)
    return Addresses(tuple(sorted(best, key=lambda i: (i.begin, i.offset))), _height(best), used)


def _orders(lives: list[Interval], at: int) -> Iterator[list[Interval]]:
    """The larger first; and those that live when the most does before all others."""
    yield sorted(lives, key=lambda i: (-i.bytes, i.begin))
    yield sorted(lives, key=lambda i: (not i.begin <= at < i.end, -i.bytes, i.begin))
    yield sorted(lives, key=lambda i: (-i.bytes * (i.end - i.begin), i.begin))


def _squeeze(best: list[Interval], used: int) -> list[Interval]:
    """What lies higher than it would have to is placed earlier the next time, again and again."""
    end = time.monotonic() + _PATIENCE
    order = list(best)
    for _ in range(_ROUNDS):
        rank = {id(i): float(n) for n, i in enumerate(order)}
        for interval in order:
            if interval.offset + interval.bytes > used:
                rank[id(interval)] *= 0.7
        order = _place(sorted(order, key=lambda i: rank[id(i)]))
        if _height(order) < _height(best):
            best = order
        if _height(best) == used or time.monotonic() > end:
            break
    return best


def _intervals(plan: Plan) -> list[Interval]:
    """An output that takes over the bytes of an input continues its interval. Scratch lives while its node runs."""
    sizes = {value: size for line in plan.program for value, size, _ in line.outputs}
    begin: dict[int, int] = {}
    found: list[Interval] = []

    def leave(value: int, at: int) -> None:
        found.append(Interval(value, sizes[value], begin.pop(value), at))

    for at, (kind, what) in enumerate(plan.steps):
        match kind:
            case "compute":
                line = plan.program[what]
                for value, _, old in line.outputs:
                    since = begin.pop(old) if old != NONE else at
                    if value not in begin:
                        begin[value] = since
                if line.scratch:
                    found.append(Interval(NONE, line.scratch, at, at + 1))
            case "in":
                begin[what] = at
            case "free":
                leave(what, at)
    for value in list(begin):
        leave(value, len(plan.steps))
    return found


def _place(order: list[Interval]) -> list[Interval]:
    """Each at the lowest offset that is free for as long as it lives."""
    begins, ends, lows, highs = np.zeros((4, len(order)), dtype=np.int64)
    placed = []
    for i, interval in enumerate(order):
        others = (begins[:i] < interval.end) & (ends[:i] > interval.begin)
        offset = 0
        if others.any():
            low, high = lows[:i][others], highs[:i][others]
            by_offset = np.argsort(low, kind="stable")
            reached = np.concatenate(([0], np.maximum.accumulate(high[by_offset])))
            gaps = np.append(low[by_offset], np.iinfo(np.int64).max) - reached
            offset = int(reached[int(np.argmax(gaps >= interval.bytes))])
        begins[i], ends[i], lows[i], highs[i] = interval.begin, interval.end, offset, offset + interval.bytes
        placed.append(Interval(interval.value, interval.bytes, interval.begin, interval.end, offset))
    return placed


def _height(placed: list[Interval]) -> int:
    return max((i.offset + i.bytes for i in placed), default=0)


def _most(lives: list[Interval]) -> tuple[int, int]:
    """The most bytes that live at once, and when."""
    events = sorted([(i.begin, i.bytes) for i in lives] + [(i.end, -i.bytes) for i in lives])
    now = most = when = 0
    for at, size in events:
        now += size
        if now > most:
            most, when = now, at
    return most, when
