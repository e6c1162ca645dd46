"""Rebuilds the arena over time from the events alone.

A source is a storage that was never recorded, or was committed since. Recorded storages are
expensive or cheap by the density of their op's cost, with Otsu's threshold over all of them, as in
csrc/engine/density.h. The engine decides online and its histogram decays, so the two may differ on
storages near the threshold.
"""

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass

from coop.events import Event
from coop.report.timeline import Kind, Mark, Span, Timeline, Transfer, union

BINS = 96
MOST_SPANS = 1 << 21
"""The most spans that one timeline holds: no picture can show more."""


def rebuild(events: Iterable[Event], by: str = "time", since: float = 0.0, until: float = math.inf) -> Timeline:
    """`by` "time": on the engine's clock. "events": each change of the arena takes the same time,
    so that nothing is hidden. With `since` and `until`, seconds on the engine's clock, only that
    part is kept. The events must begin with an empty arena, and are iterated over twice."""
    if by not in ("time", "events"):
        raise ValueError(f"time runs by 'time' or by 'events', not by {by!r}")
    if not since < until:
        raise ValueError(f"from {since:g} s to {until:g} s there is nothing")
    return _Arena(threshold_of(events), by == "events", since, until).follow(events)


def threshold_of(events: Iterable[Event]) -> float:
    """The density, in seconds per byte, above which a result is expensive: Otsu's threshold on log
    density, by bytes."""
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
    return max(0, min(BINS - 1, int(2 * math.log2(density / 1e-13)))) if density > 1e-13 else 0


@dataclass(slots=True)
class _Known:
    """What is known of a storage."""

    recorded: bool = False
    expensive: bool = False
    held: bool = True
    copied: bool = False
    """As far as known, a copy is in the tier. No event says when it becomes invalid."""
    last_exit: Mark | None = None
    """The mark of its last eviction, if it was held then."""

    @property
    def kind(self) -> Kind:
        if not self.recorded:
            return Kind.source
        if self.held:
            return Kind.expensive if self.expensive else Kind.cheap
        return Kind.dead_expensive if self.expensive else Kind.dead_cheap


class _Arena:
    """The arena after the events so far, and the timeline up to there."""

    def __init__(self, threshold: float, by_events: bool, since: float, until: float) -> None:
        self.threshold = threshold
        self.by_events = by_events
        self.since, self.until = since, until
        self.made = Timeline()
        self.places: dict[int, Span] = {}
        self.blocks: dict[int, float] = {}
        """Since when each block is in its place."""
        self.freed: tuple[int, int, float, float] | None = None
        """The block that was freed last: its offset, its bytes, since when it was there, and when
        it was freed."""
        self.storages: dict[int, _Known] = {}
        self.recorded: set[int] = set()
        self.before_ops: dict[int, None] | None = {}
        """Storages in the order in which they appeared, until the first op is recorded."""
        self.old: set[int] = {0}
        self.now = self.time = 0.0
        self.times: list[float] = []
        """Times of the changes so far. Their number is the time, if `by` is "events"."""
        self.keeping = since <= 0

    def follow(self, events: Iterable[Event]) -> Timeline:
        for event in events:
            if event.time > self.until:
                self.time = self.until
                break
            self.time = event.time
            if not self.keeping and self.time >= self.since:
                self._begin()
            handle = getattr(self, f"_on_{event.kind}", None)
            if handle is None:  # it changes nothing in the arena
                continue
            self._tick(event)
            self._note_first(event)
            try:
                handle(event)
            except KeyError:
                raise ValueError(
                    f"a {event.kind} at offset {event.offset}, where nothing was: the events do not begin "
                    "with the arena empty. Tip: keep all that memory.events() gave since the scope began"
                ) from None
        return self._end()

    def _begin(self) -> None:
        """The part that is kept begins here."""
        self.keeping = True
        self.made.start = self.now if self.by_events else self.since
        self.times = [self.since] if self.by_events else []

    def _tick(self, event: Event) -> None:
        if not self.by_events:
            self.now = event.time
        elif not event.kind.startswith("plan"):
            self.now += 1
            if self.keeping:
                self.times.append(event.time)

    def _end(self) -> Timeline:
        made = self.made
        if not self.keeping:
            raise ValueError(f"from {self.since:g} s on there is nothing: the run ends at {self.time:g} s")
        self.now = self.now + 1 if self.by_events else self.time
        made.last = [self.places[offset] for offset in sorted(self.places)]
        for span in made.last:
            self._close(span)
        self._find_passing()
        made.end = self.now
        made.recomputing = union(made.recomputing)
        made.waiting = union([(t.waiting, t.end) for t in made.transfers if t.waiting < t.end])
        return made

    def _note_first(self, event: Event) -> None:
        """Sources from before the first recorded op, such as parameters."""
        if self.before_ops is None:
            return
        if event.kind != "record":
            self.before_ops.setdefault(event.storage)
            return
        for storage in self.before_ops:
            if storage == event.storage:
                break
            self.old.add(storage)
        self.before_ops = None

    def _find_passing(self) -> None:
        old = self.old | self.recorded | {place.storage for place in self.places.values()}
        if self.before_ops is not None:  # no op was recorded
            old |= set(self.before_ops)
        for span in self.made.spans:
            if span.kind is Kind.source and span.storage not in old:
                span.kind = Kind.passing

    def _earlier(self, seconds: float) -> float:
        """The moment so many seconds before this event."""
        if not self.by_events:
            return self.time - seconds
        if not seconds or not self.times:
            return self.now
        later = len(self.times) - bisect.bisect_right(self.times, self.time - seconds)
        return self.now - later

    def _close(self, span: Span) -> None:
        span.end = self.now
        if not self.keeping:
            return
        if len(self.made.spans) >= MOST_SPANS:
            raise ValueError(
                f"more than {MOST_SPANS:,} blocks came and went: too many for one picture. Tip: draw a part, "
                "with --from and --to, or since= and until= in Python"
            )
        span.start = max(span.start, self.made.start)
        self.made.spans.append(span)

    def _mark(self, kind: str, event: Event, origin: int = 0) -> Mark:
        mark = Mark(kind, self.now, event.offset, event.bytes, origin)
        if self.keeping:
            self.made.marks.append(mark)
        return mark

    def _become(self, offset: int, kind: Kind, storage: int) -> Span:
        """The block at that offset becomes something else. Returns what it was."""
        before = self.places[offset]
        if (before.kind, before.storage) != (kind, storage):
            self._close(before)
            self.places[offset] = Span(kind, storage, offset, before.bytes, self.now, self.now)
        return before

    def _show(self, event: Event) -> None:
        if (place := self.places.get(event.offset)) and place.storage == event.storage:
            self._become(event.offset, self.storages[event.storage].kind, event.storage)

    def _known(self, storage: int) -> _Known:
        return self.storages.setdefault(storage, _Known())

    # --- one for each kind of event -------------------------------------------------------------

    def _on_place(self, event: Event) -> None:
        self.places[event.offset] = Span(Kind.raw, 0, event.offset, event.bytes, self.now, self.now)
        # A block whose storage dies while it is written stays with the transfer.
        same = self.freed and self.freed[:2] == (event.offset, event.bytes) and self.freed[3] == self.time
        self.blocks[event.offset] = self.freed[2] if self.freed and same else self.now

    def _on_bind(self, event: Event) -> None:
        before = self.places[event.offset]
        if not event.storage:
            self._become(event.offset, Kind.raw, 0)
            return
        if before.storage and before.storage != event.storage:
            # Copy on write: the block stays with the old version, which takes over how the storage
            # was made.
            heir = self._known(before.storage)
            self.storages[event.storage] = _Known(heir.recorded, heir.expensive, held=False)
            self.storages[before.storage] = _Known()
        self._become(event.offset, self._known(event.storage).kind, event.storage)

    def _on_record(self, event: Event) -> None:
        known = self._known(event.storage)
        known.recorded, known.copied = True, False
        self.recorded.add(event.storage)
        known.expensive = event.value <= 0 or not event.bytes or event.value / event.bytes >= self.threshold
        self._show(event)

    def _on_commit(self, event: Event) -> None:
        self._known(event.storage).recorded = False
        self._show(event)

    def _on_die(self, event: Event) -> None:
        self._known(event.storage).held = False
        self._show(event)

    def _on_evict(self, event: Event) -> None:
        self._close(self.places.pop(event.offset))
        known = self._known(event.storage)
        known.last_exit = None
        if known.held:
            with_copy = known.copied or not known.recorded
            known.last_exit = self._mark("leave" if with_copy else "evict", event)

    def _on_restore(self, event: Event) -> None:
        # A storage that was never seen before is the old version of one that was overwritten in
        # place: an op made it, and nobody holds it.
        known = self.storages.setdefault(event.storage, _Known(recorded=True, expensive=True, held=False))
        raw = self._become(event.offset, known.kind, event.storage)
        if self.keeping:
            self.made.recomputing.append((max(raw.start, self.made.start), self.now))
        self._mark("restore", event)
        if known.last_exit:
            known.last_exit.kind = "evict"
        known.copied = False

    def _on_in(self, event: Event) -> None:
        known = self._known(event.storage)
        raw = self._become(event.offset, known.kind, event.storage)
        raw.kind = Kind.arriving
        self._transfer("in", event)
        self._mark("in", event)
        if known.last_exit:
            known.last_exit.kind = "leave"
        known.copied = True

    def _on_out(self, event: Event) -> None:
        if event.offset not in self.places:
            raise KeyError
        self._transfer("out", event)
        if event.storage:
            self._known(event.storage).copied = True

    def _transfer(self, direction: str, event: Event) -> None:
        if not self.keeping:
            return
        # Its seconds may be more than those of ops: the program did something else meanwhile.
        first = max(self.blocks[event.offset], self.made.start)
        start, waiting = self._earlier(event.value), self._earlier(event.waited)
        self.made.transfers.append(
            Transfer(direction, event.offset, event.bytes, max(start, first), self.now, max(waiting, self.made.start))
        )

    def _on_move(self, event: Event) -> None:
        origin = int(event.value)
        before = self.places.pop(origin)
        self._close(before)
        self.places[event.offset] = Span(before.kind, before.storage, event.offset, event.bytes, self.now, self.now)
        self.blocks.pop(origin, None)
        self.blocks[event.offset] = self.now
        self._mark("move", event, origin)

    def _on_free(self, event: Event) -> None:
        self._close(self.places.pop(event.offset))
        self.freed = event.offset, event.bytes, self.blocks.pop(event.offset, self.now), self.time
        self.storages.pop(event.storage, None)
        if not self.keeping:
            self.recorded.discard(event.storage)

    def _on_plan_adopted(self, event: Event) -> None:
        if self.keeping:
            self.made.plans.append((event.kind, self.now))

    _on_plan_lost = _on_plan_adopted
