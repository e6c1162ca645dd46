"""The reference's tier: storages that leave the arena with their bytes, and come back.

Part of the specification in reference.py. One link leads out and one back, each with one transfer at a time. On its way out a
storage is resident, and a wall. On its way in it has a raw block. What dies meanwhile leaves its block to the transfer.

What a transfer costs is what the program will notice of it: all of the writing, if there is no copy outside, and of the reading
as much as the last times; in any case what the ops beside it lose. The program is ahead of itself where the history tells what
comes next: what is worth the most outside is written, and what is used soon is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from reference.arena import FREE, LOW, RAW, Block
from reference.history import SHORTEST, History
from reference.lineage import Op, Storage
from reference.policy import choose, idle, stays

if TYPE_CHECKING:
    from reference.engine import Engine

WEIGHT = 0.2
"""Of the last transfer, in the speed of its link."""
REMEMBERING = 0.95
"""With each transfer, of how long those before took and were waited for."""
OWN_WEIGHT = 0.5
"""Of the last time, in what is learnt of one storage; and of all together:"""
USE_WEIGHT, LEAST_USE = 0.05, 0.1
MORE = 3
"""Where the program waits now and then, the link is full, and a transfer would be waited for longer than its share."""
AHEAD = 0.01
"""Seconds of writing, at a time."""
WORTHWHILE = 2
"""Times of being out and back, that a storage has to be idle for."""
NEWS = 64
"""Part of the budget that has come or left since it was last considered what to write."""
MOST = 8
"""Storages that are read ahead at a time."""
MARGIN, OPS = 1.25, 2
"""A storage is read ahead by so many times what it takes, and so many of the longest ops."""
IN_FLIGHT = 8
"""Part of the budget, at most."""
FAR = 64
"""Ops around a storage that are looked at for its sake."""
FORGETTING = 0.99
"""Of the longest op, with each op."""


@dataclass(eq=False)
class Transfer:
    storage: Storage | None
    """None: nobody wants it any more."""
    block: Block
    road: "Road"
    bytes: int
    asked: float
    end: float | None = None
    """None: it has not begun."""


@dataclass(eq=False)
class Road:
    """One direction."""

    bandwidth: float
    rate: float
    """As measured."""
    took: float = SHORTEST
    waited: float = 0.1 * SHORTEST
    free: float = 0.0
    """From when on."""
    queue: list[Transfer] = field(default_factory=list)
    """What has not begun."""

    def seconds(self, size: int) -> float:
        return size / self.rate

    def duration(self, transfer: Transfer) -> float:
        return transfer.bytes / self.bandwidth

    def run_until(self, now: float) -> None:
        while self.queue and max(self.free, self.queue[0].asked) < now:
            first = self.queue.pop(0)
            first.end = self.free = max(self.free, first.asked) + self.duration(first)

    def finish(self, transfer: Transfer, wait: bool, now: float) -> float | None:
        """How long it was waited for; None: it is not done. What is waited for goes before what has not begun."""
        self.run_until(now)
        if transfer.end is None and wait:
            self.queue.remove(transfer)
            transfer.end = self.free = max(self.free, now) + self.duration(transfer)
        if transfer.end is None or (transfer.end > now and not wait):
            return None
        return max(transfer.end - now, 0.0)

    def measure(self, transfer: Transfer, waited: float) -> None:
        seconds = max(self.duration(transfer), SHORTEST)
        self.rate += WEIGHT * (transfer.bytes / seconds - self.rate)
        self.took = REMEMBERING * self.took + seconds
        self.waited = REMEMBERING * self.waited + waited


class Swap:
    """All transfers of an engine."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.on = engine.options.swap
        self.foresees = self.on and engine.options.foresee
        self.out = Road(engine.options.swap_out, engine.options.swap_out)
        self.back = Road(engine.options.swap_in, engine.options.swap_in)
        self.transfers: list[Transfer] = []
        self.history = History()
        self.logged = False
        """The op that runs."""
        self.price = 0.0
        """Of a byte for a second, the most that searches have paid of late."""
        self.news = 0
        """Bytes that have come or left since it was last considered what to write."""
        self.useful = 0.5
        """Share of what was written ahead that left before it was overwritten."""
        self.longest_op = 0.0
        self.look_again = 0.0
        """When something has to be on its way back, as last found."""
        self.last_missed = 0

    def bytes_on(self, road: Road) -> int:
        return sum(transfer.bytes for transfer in self.transfers if transfer.road is road)

    # --- a transfer ----------------------------------------------------------------------------------------------------

    def transfer_of(self, storage: Storage) -> Transfer | None:
        return next((transfer for transfer in self.transfers if transfer.storage is storage), None)

    def _begin(self, storage: Storage, block: Block, road: Road) -> None:
        transfer = Transfer(storage, block, road, storage.bytes, self.engine.now)
        self.transfers.append(transfer)
        road.queue.append(transfer)
        storage.in_transit = True

    def _end(self, transfer: Transfer) -> None:
        """The last one takes its place."""
        self.transfers[self.transfers.index(transfer)] = self.transfers[-1]
        self.transfers.pop()
        if transfer.storage:
            transfer.storage.in_transit = False

    def begin_out(self, storage: Storage) -> None:
        if not storage.page and not storage.in_transit:
            assert storage.block
            self._begin(storage, storage.block, self.out)
            self.set_cost(storage)

    def miss(self, storage: Storage) -> None:
        """It is needed now."""
        engine = self.engine
        if not storage.in_transit:
            engine.counts.prefetch_misses += 1
            self.last_missed = storage.number
            storage.pins += 1
            try:
                block = engine.take(storage.bytes, LOW)
            finally:
                storage.pins -= 1
            self._begin(storage, block, self.back)
        self.still(storage)

    def still(self, storage: Storage) -> None:
        """Waits for its transfer."""
        if transfer := self.transfer_of(storage):
            self._finish(transfer, wait=True)

    def finish_all(self, wait: bool) -> None:
        at = 0
        while at < len(self.transfers):
            if not self._finish(self.transfers[at], wait):
                at += 1

    def _finish(self, transfer: Transfer, wait: bool) -> bool:
        engine, counts, storage = self.engine, self.engine.counts, transfer.storage
        out = transfer.road is self.out
        waited = transfer.road.finish(transfer, wait, engine.now)
        if waited is None:
            return False
        self._end(transfer)
        transfer.road.measure(transfer, waited)
        seconds = transfer.road.duration(transfer)
        engine.now += waited
        counts.transfer_seconds += seconds
        counts.waited_seconds += waited
        if out:
            counts.swaps_out += 1
            counts.swapped_out += transfer.bytes
            engine.note("out", storage, transfer.block, seconds, waited)
        else:
            counts.swaps_in += 1
            counts.swapped_in += transfer.bytes
        if not storage:
            engine.free(transfer.block)
        elif out:
            storage.page = True
            self.set_cost(storage)
        else:
            own = self.history.lesson(storage)
            if own and self.history.cursor is not None:
                late = min(waited / max(seconds, SHORTEST), 1.0)
                own.late = late if own.late is None else own.late + OWN_WEIGHT * (late - own.late)
            engine.restore(storage, transfer.block, "in", seconds, waited)
            self.set_cost(storage)
        return True

    def call_off(self, storage: Storage) -> bool:
        """A transfer out that has not begun."""
        transfer = self.transfer_of(storage)
        if not transfer or transfer.road is not self.out or transfer.end is not None:
            return False
        self.out.queue.remove(transfer)
        self._end(transfer)
        storage.ahead = False
        self.set_cost(storage)
        return True

    def abandon(self, storage: Storage) -> None:
        """Its transfer goes on without it."""
        transfer = self.transfer_of(storage)
        assert transfer
        transfer.storage, storage.in_transit = None, False

    # --- what leaves, and what it costs --------------------------------------------------------------------------------

    def cost_of_reading(self, storage: Storage) -> float:
        own = self.history.lesson(storage)
        late = own.late if own and own.late is not None else MORE * self.back.waited / self.back.took
        return self.back.seconds(storage.bytes) * min(max(late, self.engine.options.swap_load), 1.0)

    def set_cost(self, storage: Storage) -> None:
        """Of leaving with its bytes and coming back, as the speeds are now."""
        if self.on and storage.bytes >= self.engine.options.swap_least:
            writing = 0.0 if storage.page else self.out.seconds(storage.bytes)
            storage.swap_cost = writing + self.cost_of_reading(storage)

    def clean(self, leaving: Sequence[Storage]) -> None:
        """Those that take their bytes with them have them outside afterwards."""
        for storage in leaving:
            if not storage.page and self._swaps(storage):
                self.begin_out(storage)
                if own := self.history.lesson(storage):
                    own.useful = 1.0
        for storage in leaving:
            self.still(storage)

    def _swaps(self, storage: Storage) -> bool:
        """DELTA's director: whether it leaves with its bytes, or is made again."""
        if not storage.producer:
            return True
        return not storage.spare and storage.swap_cost <= self.engine.lineage.projected_cost(storage)

    def left(self, storage: Storage) -> None:
        """It has no block any more: it is outside, or has to be made again."""
        if storage.page:
            if self.foresees:
                self.expect_use(storage)
            self.look_again = 0.0
        else:
            self.engine.lineage.join_component(storage)
            if self.foresees:
                self._expect_need(storage)

    def learn_use(self, storage: Storage, useful: bool) -> None:
        """Was it worth while to write it ahead?"""
        if storage.ahead:
            storage.ahead = False
            self.useful = max(self.useful + USE_WEIGHT * (useful - self.useful), LEAST_USE)
            if own := self.history.lesson(storage):
                own.useful += OWN_WEIGHT * (useful - own.useful)

    def drop_page(self, storage: Storage) -> None:
        self.learn_use(storage, False)
        storage.page = False

    def overwriting(self, written: Sequence[Storage]) -> None:
        """A copy of what can be made again stays with the old version."""
        for storage in written:
            if not self.call_off(storage):
                self.still(storage)
            if not storage.producer:
                self.drop_page(storage)
                self.set_cost(storage)

    # --- ahead of the program ------------------------------------------------------------------------------------------

    def entering(self, inputs: Sequence[Storage]) -> None:
        """An op is about to use these, which may be absent."""
        if self.foresees and not self.logged:
            self.history.used(inputs, self.engine.counts.op_seconds)
            self.logged = True
        for storage in inputs:
            self.engine.counts.prefetch_hits += storage.fetched
            storage.fetched = False
            if self.foresees:
                self.expect_use(storage)
            self.set_cost(storage)

    def expect_use(self, storage: Storage) -> None:
        """By the program, or to make again what the program uses then."""
        ran = self.engine.counts.op_seconds
        time, used = self.history.next(storage)
        made = [output for op in storage.consumers[:FAR] for output in op.made() if output.missing]
        when = [ran + time] if time > 0 else []
        due = when if used else []
        self._set_next_use(
            storage,
            min(when + [other.next_use for other in made if other.next_use > ran], default=0.0),
            min(due + [other.due for other in made if other.due > ran], default=0.0),
        )

    def _expect_need(self, storage: Storage) -> None:
        """It has to be made again when it is used: what it is made from is needed then."""
        ran, when, due = self.engine.counts.op_seconds, storage.next_use, storage.due
        if not storage.missing or when <= ran:
            return
        ops: list[Op | None] = [storage.producer]
        for _ in range(FAR):
            op = ops.pop() if ops else None
            if not op:
                break
            for source in op.inputs:
                if not ran < source.next_use <= when:
                    self._set_next_use(source, when, due if due > ran else source.due)
                    if source.missing:
                        ops.append(source.producer)

    def _set_next_use(self, storage: Storage, when: float, due: float) -> None:
        storage.next_use, storage.due = when, due
        if storage.evicted and storage.page:
            self.look_again = 0.0

    def tend(self, cost: float) -> None:
        """Between ops."""
        self.logged = False
        self.longest_op = max(FORGETTING * self.longest_op, cost)
        self.finish_all(wait=False)
        self._clean_ahead()
        self._prefetch()

    def _clean_ahead(self) -> None:
        """A byte that is free for a second is worth what searches have paid for it, and no more than making it again would
        cost, or waiting until it is written."""
        engine = self.engine
        now, ran = engine.now, engine.counts.op_seconds
        if self.bytes_on(self.out) or self.price <= 0 or self.news < engine.options.budget // NEWS:
            return
        self.news = 0
        worthy = []
        for storage in engine.arena.storages():
            if not storage.evictable(wanted_too=False) or storage.page or storage.swap_cost == inf or storage.spare:
                continue
            writing, reading = self.out.seconds(storage.bytes), self.cost_of_reading(storage)
            value = min(self.price * storage.bytes * idle(storage, now, ran), writing + reading)
            if storage.producer:
                value = min(value, engine.lineage.projected_cost(storage))
            own = self.history.lesson(storage)
            gain = (own.useful if own else self.useful) * (value - reading) - engine.options.swap_load * writing
            if gain / storage.bytes > 0:
                worthy.append((gain / storage.bytes, storage.number, storage))
        for _, _, storage in sorted(worthy, reverse=True):
            if self.out.seconds(self.bytes_on(self.out)) >= AHEAD:
                break
            away = self.out.seconds(self.bytes_on(self.out) + storage.bytes) + self.back.seconds(storage.bytes)
            if idle(storage, now, ran) > WORTHWHILE * away:
                self.begin_out(storage)
                storage.ahead = True

    def _outside(self) -> list[Storage]:
        """Evicted, with a copy: in the order in which they are used next, those of which that is not known last."""
        outside = [storage for storage in self.engine.lineage.storages if storage.evicted and storage.page]
        return sorted(outside, key=lambda storage: (storage.due == 0, storage.due, storage.number))

    def _waiting(self) -> list[Storage]:
        """Of these, the ones that somebody will want."""
        return [storage for storage in self._outside() if not storage.in_transit and not storage.spare]

    def _prefetch(self) -> None:
        """What is used soon, in the order in which it is used. Where that is not known: a backward pass wants what was made
        before what it has just wanted."""
        if self.history.cursor is not None:
            for _ in range(MOST):
                ran, waiting = self.engine.counts.op_seconds, self._waiting()
                if not self._outside() or ran < self.look_again:
                    return
                if waiting and 0 < waiting[0].due <= ran:  # the program has done other things
                    self.expect_use(waiting[0])
                    continue
                self.look_again = self._latest_fetch(waiting)
                if ran < self.look_again or not waiting or not self._fetch_ahead(waiting[0]):
                    return
        elif self.last_missed:
            before = [storage for storage in self._waiting() if storage.number < self.last_missed]
            if before and self._fetch_ahead(last := max(before, key=lambda storage: storage.number)):
                self.last_missed = last.number

    def _latest_fetch(self, waiting: list[Storage]) -> float:
        """When the next has to be on its way, so that each is there in time, one after the other."""
        on_the_way, latest = self.back.seconds(self.bytes_on(self.back)), inf
        for storage in waiting:
            if storage.due:
                on_the_way += self.back.seconds(storage.bytes)
                latest = min(latest, storage.due - MARGIN * on_the_way - OPS * self.longest_op)
        return latest

    def _fetch_ahead(self, storage: Storage) -> bool:
        engine, flying = self.engine, self.bytes_on(self.back)
        if flying and flying + storage.bytes > engine.options.budget // IN_FLIGHT:
            return False
        if flying and self.back.seconds(flying) > self.longest_op:
            return False
        block = self._room_for(storage)
        if not block:
            return False
        engine.note("place", None, block)
        storage.fetched = True
        self._begin(storage, block, self.back)
        engine.note_use()
        return True

    def _room_for(self, storage: Storage) -> Block | None:
        """A hole, or the place of storages that can leave at once and are used later."""
        engine = self.engine
        if hole := engine.arena.allocate(storage.bytes, LOW):
            return hole
        if self.history.cursor is None:
            return None
        needed = engine.arena.round(storage.bytes)
        scene = engine.scene(LOW)
        run = choose(scene, needed)
        if not run:
            return None
        for block in run:
            there = block.storage
            if there and not (there.spare or (there.page and there.next_use > storage.due)):
                return None
            if there and stays(scene, block):
                return None
        beside = (engine.arena.below(run[0]), engine.arena.above(run[-1]))
        if sum(block.bytes for block in (*run, *beside) if block and (block in run or block.state == FREE)) < needed:
            return None
        hole = engine.clear(run, scene)
        return engine.arena.take(hole, needed, LOW) if hole.bytes >= needed else None

    def carried(self) -> int:
        """Raw bytes that belong to transfers."""
        return sum(transfer.block.bytes for transfer in self.transfers if transfer.block.state == RAW)
