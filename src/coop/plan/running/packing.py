"""Addresses for a plan: every interval of a value in memory, and all scratch, gets an offset.

Intervals are placed one after the other, each at the lowest offset where no placed interval lives
at the same time. The order decides how much is lost, so a few orders are tried. If too much is
lost, CP-SAT places the large ones in a given room (two-dimensional non-overlap, as a feasibility
problem), and the small ones go in between. A value that an op overwrites keeps its address.

`with_addresses` is called once, when a plan is made: the plan keeps its addresses, and so does its
file. Decision 13 says why addresses matter and what else was tried.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from coop import _C
from coop.plan.exact.solvers import cp_model, missing, run_cp
from coop.plan.model.addresses import Addresses, Interval, height, most_at_once
from coop.plan.model.plan import Plan, PlanError
from coop.plan.model.timeline import timeline_of
from coop.plan.search.search import Search

PATIENCE = 6.0  # seconds with CP-SAT, for each room that is tried
_ROOMS = (1.0, 1.005, 1.02)  # over what lives at once
_SMALL = 2048  # parts of the room: smaller intervals fit in any case
_WORKERS = 4
"""More than there are cores: CP-SAT's workers search in different ways, and any of them may
succeed."""


def with_addresses(plan: Plan, search: Search | None = None, *, patience: float = PATIENCE) -> Plan:
    """The plan with addresses for its own budget. Without addresses if none were found inside that
    budget."""
    found = assign(plan, above=tiny(), room=room_in(plan, plan.budget), patience=patience, search=search)
    return replace(plan, addresses=found if found.needed <= plan.budget else None)


def tiny() -> int:
    """Bytes. Values up to this size have no planned address: the engine leaves them where the
    program puts them."""
    return int(_C.Options().tiny)


def room_in(plan: Plan, budget: int) -> int:
    """Bytes of a budget that sources leave to the plan's values and scratch."""
    return budget - (plan.peak - timeline_of(plan).peak)


def assign(
    plan: Plan,
    above: int = 0,
    room: int | None = None,
    *,
    patience: float = PATIENCE,
    search: Search | None = None,
) -> Addresses:
    """Addresses for every interval larger than `above` bytes, in as little room as can be found; or
    in `room` bytes, if that is enough. Raises PlanError if the plan does not say what its nodes
    are.

    CP-SAT runs for at most `patience` seconds for each room; not at all if that is 0, or after the
    `search` was stopped.
    """
    if not plan.program:
        raise PlanError("the plan does not say for which ops it is: it has no addresses")
    lives = [interval for interval in timeline_of(plan).intervals() if interval.bytes > above]
    used, at = most_at_once(lives)
    enough = used if room is None else max(used, room)
    best: list[Interval] = []
    for order in _orders(lives, at):
        placed = _place(order)
        if not best or height(placed) < height(best):
            best = placed
        if height(best) <= enough:
            break
    for asked in (enough, *(int(factor * enough) for factor in _ROOMS[1:])):
        if asked >= height(best) or not patience or missing() or (search is not None and search.stopped):
            break
        if (packed := _packed(lives, asked, patience, search)) and height(packed) < height(best):
            best = packed
            break
    return Addresses(tuple(sorted(best, key=lambda i: (i.begin, i.offset))))


def _orders(lives: list[Interval], at: int) -> Iterator[list[Interval]]:
    """Larger ones first; before all others, those that live at the moment with the most bytes."""
    yield sorted(lives, key=lambda i: (-i.bytes, i.begin))
    yield sorted(lives, key=lambda i: (not i.begin <= at < i.end, -i.bytes, i.begin))
    yield sorted(lives, key=lambda i: (-i.bytes * (i.end - i.begin), i.begin))


def _packed(
    lives: list[Interval], room: int, patience: float = PATIENCE, search: Search | None = None
) -> list[Interval]:
    """Places the large ones in this room by CP-SAT, and the others wherever they fit. Empty: no
    solution in time."""
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
    solver, status = run_cp(search, model, seconds=patience, num_workers=_WORKERS)
    if status not in (cp_model().OPTIMAL, cp_model().FEASIBLE):
        return []
    found = [replace(i, offset=solver.value(o) * unit) for i, o in zip(large, offsets, strict=True)]
    return _place(sorted(small, key=lambda i: (-i.bytes, i.begin)), found)


def _place(order: Sequence[Interval], placed: Sequence[Interval] = ()) -> list[Interval]:
    """Places each at the lowest offset that is free while it lives, beside those that are placed
    already."""
    begins, ends, lows, highs = np.zeros((4, len(placed) + len(order)), dtype=np.int64)
    done = list(placed)
    for i, interval in enumerate(placed):
        begins[i], ends[i], lows[i], highs[i] = interval.begin, interval.end, interval.offset, interval.top
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
