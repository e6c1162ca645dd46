"""Addresses for a plan: every value, for as long as it is in memory, and all scratch, at an offset of its own.

Intervals are placed one after the other, each at the lowest offset where nothing placed before lives at the same time. In
which order decides how much is lost: a few are tried. Where that leaves too much, CP-SAT is asked to place the large ones
in so much room, and the small ones go in between. What an op overwrites keeps its place.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coop.plan.graph import NONE
from coop.plan.plan import Plan, PlanError
from coop.plan.solvers import cp_model, missing, run_cp


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


_PATIENCE = 6.0  # seconds with CP-SAT, for each room that is asked
_ROOMS = (1.0, 1.005, 1.02)  # over what lives at once
_SMALL = 2048  # parts of the room: what is no larger finds a place anyway
_WORKERS = 4  # CP-SAT's ways to search differ, and any may be the lucky one: more than there are cores


def assign(plan: Plan, above: int = 0, room: int | None = None) -> Addresses:
    """For everything that is larger than `above` bytes, in as little room as can be found; or, if `room` bytes are enough, in
    no more than that. Raises PlanError if the plan does not say what its nodes are."""
    if not plan.program:
        raise PlanError("the plan does not say for which ops it is: it has no addresses")
    lives = [interval for interval in _intervals(plan) if interval.bytes > above]
    used, at = _most(lives)
    enough = used if room is None else max(used, room)
    best: list[Interval] = []
    for order in _orders(lives, at):
        placed = _place(order)
        if not best or _height(placed) < _height(best):
            best = placed
        if _height(best) <= enough:
            break
    for asked in (enough, *(int(factor * enough) for factor in _ROOMS[1:])):
        if asked >= _height(best) or missing():
            break
        if (packed := _packed(lives, asked)) and _height(packed) < _height(best):
            best = packed
            break
    return Addresses(tuple(sorted(best, key=lambda i: (i.begin, i.offset))), _height(best), used)


def most_at_once(plan: Plan) -> int:
    """Bytes of values and scratch: without sources."""
    return _most(_intervals(plan))[0]


def _orders(lives: list[Interval], at: int) -> Iterator[list[Interval]]:
    """The larger first; and those that live when the most does before all others."""
    yield sorted(lives, key=lambda i: (-i.bytes, i.begin))
    yield sorted(lives, key=lambda i: (not i.begin <= at < i.end, -i.bytes, i.begin))
    yield sorted(lives, key=lambda i: (-i.bytes * (i.end - i.begin), i.begin))


def _packed(lives: list[Interval], room: int) -> list[Interval]:
    """The large ones in so much room, by CP-SAT; the others wherever they fit. Empty: it was not found in time."""
    large = [interval for interval in lives if interval.bytes * _SMALL > room]
    small = [interval for interval in lives if interval.bytes * _SMALL <= room]
    unit = math.gcd(*(interval.bytes for interval in large))
    model = cp_model().CpModel()
    offsets, times, places = [], [], []
    for interval in large:
        size = interval.bytes // unit
        offset = model.new_int_var(0, room // unit - size, "")
        offsets.append(offset)
        places.append(model.new_fixed_size_interval_var(offset, size, ""))
        times.append(model.new_fixed_size_interval_var(interval.begin, interval.end - interval.begin, ""))
    model.add_no_overlap_2d(times, places)
    solver, status = run_cp(None, model, seconds=_PATIENCE, num_workers=_WORKERS)
    if status not in (cp_model().OPTIMAL, cp_model().FEASIBLE):
        return []
    found = [replace(i, offset=solver.value(o) * unit) for i, o in zip(large, offsets, strict=True)]
    return _place(sorted(small, key=lambda i: (-i.bytes, i.begin)), found)


def _intervals(plan: Plan) -> list[Interval]:
    """An output that takes over the bytes of an input continues its interval. Scratch lives while its node runs."""
    sizes = {value: size for line in plan.program for value, size, _ in line.outputs}
    begun: dict[int, tuple[int, int]] = {}
    found: list[Interval] = []

    def leave(value: int, at: int) -> None:
        begin, first = begun.pop(value)
        found.append(Interval(value, sizes[value], begin, at, first))

    for at, (kind, what) in enumerate(plan.steps):
        match kind:
            case "compute":
                line = plan.program[what]
                for value, _, old in line.outputs:
                    since = begun.pop(old) if old != NONE else (at, value)
                    begun.setdefault(value, since)
                if line.scratch:
                    found.append(Interval(NONE, line.scratch, at, at + 1))
            case "in":
                begun[what] = at, what
            case "free":
                leave(what, at)
    for value in list(begun):
        leave(value, len(plan.steps))
    return found


def _place(order: Sequence[Interval], placed: Sequence[Interval] = ()) -> list[Interval]:
    """Each at the lowest offset that is free for as long as it lives, beside what is placed already."""
    begins, ends, lows, highs = np.zeros((4, len(placed) + len(order)), dtype=np.int64)
    done = list(placed)
    for i, interval in enumerate(placed):
        begins[i], ends[i], lows[i], highs[i] = interval.begin, interval.end, interval.offset, _top(interval)
    for i, interval in enumerate(order, len(placed)):
        others = (begins[:i] < interval.end) & (ends[:i] > interval.begin)
        offset = 0
        if others.any():
            low, high = lows[:i][others], highs[:i][others]
            by_offset = np.argsort(low, kind="stable")
            reached = np.concatenate(([0], np.maximum.accumulate(high[by_offset])))
            gaps = np.append(low[by_offset], np.iinfo(np.int64).max) - reached
            offset = int(reached[int(np.argmax(gaps >= interval.bytes))])
        begins[i], ends[i], lows[i], highs[i] = interval.begin, interval.end, offset, offset + interval.bytes
        done.append(replace(interval, offset=offset))
    return done


def _top(interval: Interval) -> int:
    return interval.offset + interval.bytes


def _height(placed: list[Interval]) -> int:
    return max(map(_top, placed), default=0)


def _most(lives: list[Interval]) -> tuple[int, int]:
    """The most bytes that live at once, and when."""
    events = sorted([(i.begin, i.bytes) for i in lives] + [(i.end, -i.bytes) for i in lives])
    now = most = when = 0
    for at, size in events:
        now += size
        if now > most:
            most, when = now, at
    return most, when
