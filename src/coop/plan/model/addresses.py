"""Addresses of a plan: where each value lies while it is in memory.

An interval is one residency of a value in memory, or the scratch of one run of a node. An output
that takes over the bytes of an input continues its interval. The offset of an interval is counted
from one end of the memory that the plan may use; running/packing.py finds the offsets. Intervals
come from the timeline; here their bytes are only added up.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from coop.plan.model.graph import NONE


@dataclass(frozen=True, slots=True)
class Interval:
    value: int
    """What it is at its end; NONE: scratch."""
    bytes: int
    begin: int
    """The first step for which it is in memory."""
    end: int
    """The first step for which it is not."""
    first: int = NONE
    """The value that it is at its beginning: ops may overwrite it."""
    offset: int = 0

    @property
    def top(self) -> int:
        return self.offset + self.bytes


@dataclass(frozen=True)
class Addresses:
    intervals: tuple[Interval, ...]
    """In the order of their beginnings."""

    @cached_property
    def needed(self) -> int:
        """Bytes from offset 0 to the highest address."""
        return height(self.intervals)

    @cached_property
    def used(self) -> int:
        """The most bytes that live at once: no assignment needs less."""
        return most_at_once(self.intervals)[0]

    @property
    def fragmentation(self) -> float:
        """Bytes lost between intervals, over all bytes needed."""
        return 1 - self.used / self.needed if self.needed else 0.0


def height(intervals: Iterable[Interval]) -> int:
    return max((interval.top for interval in intervals), default=0)


def most_at_once(intervals: Iterable[Interval]) -> tuple[int, int]:
    """The most bytes that live at once, and the step at which they do."""
    changes = [(i.begin, i.bytes) for i in intervals] + [(i.end, -i.bytes) for i in intervals]
    now = most = when = 0
    for at, size in sorted(changes):
        now += size
        if now > most:
            most, when = now, at
    return most, when


def overlap(intervals: Iterable[Interval]) -> tuple[Interval, Interval] | None:
    """Two intervals that share bytes while both live. None: there are none."""
    whole = [interval for interval in intervals if interval.bytes]
    events = [(i.end, 0, at) for at, i in enumerate(whole)] + [(i.begin, 1, at) for at, i in enumerate(whole)]
    alive: list[tuple[int, int]] = []
    """Offset and number of each interval that lives now. They do not overlap, so it is enough to
    look at the neighbours."""
    for _, begins, number in sorted(events):
        interval = whole[number]
        at = bisect_left(alive, (interval.offset, number))
        if not begins:
            del alive[at]
            continue
        for _, other in alive[max(at - 1, 0) : at + 1]:
            if whole[other].offset < interval.top and interval.offset < whole[other].top:
                return whole[other], interval
        insort(alive, (interval.offset, number))
    return None
