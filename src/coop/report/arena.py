"""The arena over time, as an onlooker rebuilds it who sees nothing but the events.

A source is a storage that was never recorded, or was committed since. Recorded ones are dear or cheap by the density of
their op's cost, with Otsu's threshold over all of them as in csrc/classes.h; the engine decides online and forgets, so the two
may differ on storages near the threshold.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coop.events import Event

BINS = 96


class Kind(enum.IntEnum):
    """What a stretch of the arena holds.

    The dead are kept while there is room; nobody holds them. Passing are sources that came after the first recorded op
    and were gone before the end: gradients, mostly.
    """

    free = 0
    source = 1
    dear = 2
    cheap = 3
    dead_dear = 4
    dead_cheap = 5
    raw = 6
    passing = 7


@dataclass(slots=True)
class Span:
    """A block, for as long as it is where it is and what it is."""

    kind: Kind
    storage: int
    offset: int
    bytes: int
    start: float
    end: float


@dataclass(slots=True)
class Mark:
    """An eviction (of what somebody holds), a rematerialisation or a move."""

    kind: str
    at: float
    offset: int
    bytes: int
    origin: int = 0
    """Of a move: the offset before."""


@dataclass(slots=True)
class History:
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    recomputing: list[tuple[float, float]] = field(default_factory=list)
    """When ops were run again. In order; stretches do not overlap."""
    end: float = 0.0
    last: list[Span] = field(default_factory=list)
    """Those that are still there at the end, by offset."""

    def count(self, kind: str) -> int:
        return sum(mark.kind == kind for mark in self.marks)


def history(events: Sequence[Event], by: str = "time") -> History:
    """`by` "time": on the engine's clock. "events": each change of the arena takes the same time, so that nothing is hidden."""
    if by not in ("time", "events"):
        raise ValueError(f"time runs by 'time' or by 'events', not by {by!r}")
    return _Onlooker(threshold_of(events), by == "events").watch(events)


def threshold_of(events: Iterable[Event]) -> float:
    """The density, in seconds per byte, above which a result is dear: Otsu's threshold on log density, by bytes."""
    bins = [0.0] * BINS
    for event in events:
        if event.kind == "record" and event.value > 0 and event.bytes:
            bins[_bin(event.value / event.bytes)] += event.bytes
    total, moment = sum(bins), sum(place * weight for place, weight in enumerate(bins))
    weight = below = 0.0
    best, threshold = -1.0, -1
    for place in range(BINS - 1):
        weight += bins[place]
        below += place * bins[place]
        if not 0 < weight < total:
            continue
        gap = below / weight - (moment - below) / (total - weight)
        if (spread := weight * (total - weight) * gap * gap) > best:
            best, threshold = spread, place
    return 1e-13 * 2.0 ** ((threshold + 1) / 2) if threshold >= 0 else 0.0


def _bin(density: float) -> int:
    """Half octaves from 1e-13 s/B up."""
    return max(0, min(BINS - 1, int(2 * math.log2(density / 1e-13))))


@dataclass(slots=True)
class _Life:
    """What is known of a storage."""

    recorded: bool = False
    dear: bool = False
    held: bool = True

    @property
    def kind(self) -> Kind:
        if not self.recorded:
            return Kind.source
        if self.held:
            return Kind.dear if self.dear else Kind.cheap
        return Kind.dead_dear if self.dear else Kind.dead_cheap


class _Onlooker:
    def __init__(self, threshold: float, by_events: bool) -> None:
        self.threshold = threshold
        self.by_events = by_events
        self.seen = History()
        self.places: dict[int, Span] = {}
        self.lives: dict[int, _Life] = {}
        self.recorded: set[int] = set()
        self.now = 0.0

    def watch(self, events: Sequence[Event]) -> History:
        for event in events:
            if event.kind in ("search", "shortage"):
                continue
            self.now = self.now + 1 if self.by_events else event.time
            try:
                getattr(self, f"_{event.kind}")(event)
            except KeyError:
                raise ValueError(
                    f"a {event.kind} at offset {event.offset}, where nothing was: the events do not begin with the arena empty. "
                    "Tip: keep all that memory.events() gave since the scope began"
                ) from None
        self.now = self.now + 1 if self.by_events else max((event.time for event in events), default=0.0)
        self._find_passing(events)
        self.seen.last = [self.places[offset] for offset in sorted(self.places)]
        for span in self.seen.last:
            self._close(span)
        self.seen.end = self.now
        self.seen.recomputing = _union(self.seen.recomputing)
        return self.seen

    def _find_passing(self, events: Sequence[Event]) -> None:
        first = next((event.storage for event in events if event.kind == "record"), None)
        staying = {place.storage for place in self.places.values()}
        old = {0, *staying, *self.recorded}
        for event in events:
            if event.storage == first:
                break
            old.add(event.storage)
        for span in self.seen.spans:
            if span.kind is Kind.source and span.storage not in old:
                span.kind = Kind.passing

    def _close(self, span: Span) -> None:
        span.end = self.now
        self.seen.spans.append(span)

    def _become(self, offset: int, kind: Kind, storage: int) -> Span:
        """The block at that offset is something else from now on. Returns what it was."""
        before = self.places[offset]
        if (before.kind, before.storage) != (kind, storage):
            self._close(before)
            self.places[offset] = Span(kind, storage, offset, before.bytes, self.now, self.now)
        return before

    def _show(self, event: Event) -> None:
        if (place := self.places.get(event.offset)) and place.storage == event.storage:
            self._become(event.offset, self.lives[event.storage].kind, event.storage)

    def _place(self, event: Event) -> None:
        self.places[event.offset] = Span(Kind.raw, 0, event.offset, event.bytes, self.now, self.now)

    def _bind(self, event: Event) -> None:
        before = self.places[event.offset]
        if not event.storage:
            self._become(event.offset, Kind.raw, 0)
            return
        if before.storage and before.storage != event.storage:
            # Copy on write: the block stays with the old version, which takes over how the storage was made.
            heir = self.lives[before.storage]
            self.lives[event.storage] = _Life(heir.recorded, heir.dear, held=False)
            self.lives[before.storage] = _Life()
        life = self.lives.setdefault(event.storage, _Life())
        self._become(event.offset, life.kind, event.storage)

    def _record(self, event: Event) -> None:
        life = self.lives.setdefault(event.storage, _Life())
        life.recorded = True
        self.recorded.add(event.storage)
        life.dear = event.value <= 0 or not event.bytes or event.value / event.bytes >= self.threshold
        self._show(event)

    def _commit(self, event: Event) -> None:
        self.lives.setdefault(event.storage, _Life()).recorded = False
        self._show(event)

    def _die(self, event: Event) -> None:
        self.lives.setdefault(event.storage, _Life()).held = False
        self._show(event)

    def _evict(self, event: Event) -> None:
        self._close(self.places.pop(event.offset))
        if self.lives[event.storage].held:
            self.seen.marks.append(Mark("evict", self.now, event.offset, event.bytes))

    def _restore(self, event: Event) -> None:
        # One that was never seen before is the old version of something overwritten in place: made by some op, held by nobody.
        life = self.lives.setdefault(event.storage, _Life(recorded=True, dear=True, held=False))
        raw = self._become(event.offset, life.kind, event.storage)
        self.seen.recomputing.append((raw.start, self.now))
        self.seen.marks.append(Mark("restore", self.now, event.offset, event.bytes))

    def _move(self, event: Event) -> None:
        before = self.places.pop(int(event.value))
        self._close(before)
        self.places[event.offset] = Span(before.kind, before.storage, event.offset, event.bytes, self.now, self.now)
        self.seen.marks.append(Mark("move", self.now, event.offset, event.bytes, int(event.value)))

    def _free(self, event: Event) -> None:
        self._close(self.places.pop(event.offset))
        self.lives.pop(event.storage, None)


def _union(stretches: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(stretches):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined
