"""The reference's tier: which transfers are legal, how long they take, and what leaving with its bytes may cost.

Part of the specification in play.py. One link leads out and one back, each with one transfer at a time. On its way out a
storage is resident, and a wall. On its way in it has a raw block. What dies meanwhile leaves its block to the transfer.

What is written and read before anybody asks is the engine's choice (ahead.py). So is what it thinks of the future: before each
choice it tells what leaving with its bytes costs a storage, and how long nobody will miss it. Both have bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from coop.events import Event
from reference.arena import LOW, RAW, Block
from reference.lineage import Storage
from reference.policy import SHORTEST, Scene, staleness

if TYPE_CHECKING:
    from reference.engine import Engine

ROUNDING = 1e-6
"""Share of a price."""


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
    slowest: float
    """Speed that the engine can have measured: no transfer counts as shorter than the shortest time."""
    free: float = 0.0
    """From when on."""
    queue: list[Transfer] = field(default_factory=list)
    """What has not begun."""

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

    def measure(self, transfer: Transfer) -> None:
        self.slowest = min(self.slowest, transfer.bytes / max(self.duration(transfer), SHORTEST))


class Swap:
    """All transfers of an engine."""

    def __init__(self, engine: "Engine") -> None:
        options = engine.options
        self.engine = engine
        self.on = options.swap
        self.out = Road(options.swap_out, options.swap_out)
        self.back = Road(options.swap_in, options.swap_in)
        self.transfers: list[Transfer] = []

    # --- a transfer ----------------------------------------------------------------------------------------------------

    def transfer_of(self, storage: Storage) -> Transfer | None:
        return next((transfer for transfer in self.transfers if transfer.storage is storage), None)

    def _begin(self, storage: Storage, block: Block, road: Road) -> None:
        transfer = Transfer(storage, block, road, storage.bytes, self.engine.now)
        self.transfers.append(transfer)
        road.queue.append(transfer)
        storage.in_transit = True
        self.engine.note("write" if road is self.out else "read", storage, block)

    def begin_out(self, storage: Storage) -> None:
        """What is there, without a copy, and nobody moves."""
        if not storage.page and not storage.in_transit:
            assert storage.block
            self._begin(storage, storage.block, self.out)

    def begin_in(self, storage: Storage, block: Block) -> None:
        assert storage.evicted and storage.page and block.state == RAW
        self._begin(storage, block, self.back)

    def miss(self, storage: Storage) -> None:
        """It is needed now."""
        engine = self.engine
        if not storage.in_transit:
            engine.counts.prefetch_misses += 1
            storage.pins += 1
            try:
                block = engine.take(storage.bytes, LOW)
            finally:
                storage.pins -= 1
            self.begin_in(storage, block)
        self.still(storage)

    def still(self, storage: Storage) -> None:
        """Waits for its transfer."""
        if transfer := self.transfer_of(storage):
            self._finish(transfer, wait=True)

    def finish_all(self) -> None:
        """Waits for all, in the order that the engine likes."""
        while self.transfers:
            self._finish(self._told_to_end(), wait=True)

    def finish_done(self) -> None:
        """The next event is the end of one, and nobody has waited."""
        if not self._finish(self._told_to_end(), wait=False):
            self.engine.told.refuse("that transfer is not done")

    def check_none_is_done(self) -> None:
        for transfer in self.transfers:
            if transfer.road.finish(transfer, False, self.engine.now) is not None:
                self.engine.told.refuse(f"a transfer of {transfer.bytes} bytes is done, and nothing was told of it")

    def _told_to_end(self) -> Transfer:
        """What nobody wants any more and has been read is told by its block, which is free."""
        event = self.engine.told.next()
        found = [transfer for transfer in self.transfers if event and self._ends_with(transfer, event)]
        if not found:
            self.engine.told.refuse("no transfer under way ends so")
        return found[0]

    def _ends_with(self, transfer: Transfer, event: Event) -> bool:
        number = transfer.storage.number if transfer.storage else 0
        kind = "out" if transfer.road is self.out else "in" if transfer.storage else "free"
        return (kind, number, transfer.block.offset) == (event.kind, event.storage, event.offset)

    def _finish(self, transfer: Transfer, wait: bool) -> bool:
        engine, counts, storage = self.engine, self.engine.counts, transfer.storage
        waited = transfer.road.finish(transfer, wait, engine.now)
        if waited is None:
            return False
        self._end(transfer)
        transfer.road.measure(transfer)
        seconds = transfer.road.duration(transfer)
        engine.now += waited
        counts.transfer_seconds += seconds
        counts.waited_seconds += waited
        if transfer.road is self.out:
            counts.swaps_out += 1
            counts.swapped_out += transfer.bytes
            engine.note("out", storage, transfer.block, seconds, waited)
            if storage:
                storage.page = True
        else:
            counts.swaps_in += 1
            counts.swapped_in += transfer.bytes
            if storage:
                storage.split_off = False
                engine.restore(storage, transfer.block, "in", seconds, waited)
        if not storage:
            engine.free(transfer.block)
        return True

    def _end(self, transfer: Transfer) -> None:
        self.transfers.remove(transfer)
        if transfer.storage:
            transfer.storage.in_transit = False

    def call_off(self, storage: Storage) -> bool:
        """A transfer out that has not begun."""
        transfer = self.transfer_of(storage)
        if not transfer or transfer.road is not self.out or transfer.end is not None:
            return False
        self.out.queue.remove(transfer)
        self._end(transfer)
        return True

    def abandon(self, storage: Storage) -> None:
        """Its transfer goes on without it."""
        transfer = self.transfer_of(storage)
        assert transfer
        transfer.storage, storage.in_transit = None, False

    def carried(self) -> int:
        """Raw bytes that belong to transfers."""
        return sum(transfer.block.bytes for transfer in self.transfers if transfer.block.state == RAW)

    # --- copies --------------------------------------------------------------------------------------------------------

    def clean(self, leaving: Sequence[Storage]) -> None:
        """Those that take their bytes with them have them outside afterwards."""
        for storage in leaving:
            if not storage.page and self._swaps(storage):
                self.begin_out(storage)
        for storage in leaving:
            self.still(storage)

    def _swaps(self, storage: Storage) -> bool:
        """DELTA's director: whether it leaves with its bytes, or is made again."""
        if not storage.producer:
            return True
        return not storage.spare and storage.swap_cost <= self.engine.lineage.projected_cost(storage)

    def overwriting(self, written: Sequence[Storage]) -> None:
        """What is outside are not the bytes of a source any more. A copy of what can be made again stays with the old version."""
        for storage in written:
            if not self.call_off(storage):
                self.still(storage)
            if not storage.producer:
                storage.page = False

    def entering(self, inputs: Sequence[Storage]) -> None:
        """An op is about to use these, which may be absent."""
        for storage in inputs:
            self.engine.counts.prefetch_hits += storage.fetched
            storage.fetched = storage.split_off = False

    # --- prices --------------------------------------------------------------------------------------------------------

    def read_prices(self, scene: Scene, needed: int) -> None:
        """Before a choice. Nothing needed: everything is to leave."""
        if not self.on:
            return
        engine, told = self.engine, self.engine.told
        told.expect(Event("price", engine.now, 0, 0, needed, 0.0))
        for storage in engine.arena.storages():
            event = told.next()
            if not event or event.storage != storage.number or event.kind not in ("price", "idle"):
                told.refuse(f"the price of storage {storage.number} has to follow")
            storage.idle = event.waited
            storage.swap_cost = event.value if event.kind == "price" else inf
            self._check_price(scene, storage)
            engine.note(event.kind, storage, storage.block, event.value, event.waited)

    def _check_price(self, scene: Scene, storage: Storage) -> None:
        """Who foresees nothing goes by the time since the last use. Reading costs what the ops beside it lose, or up to all of
        its time; writing all of it, unless there is a copy. What has no price is small, or was overwritten and not used since."""
        told, options = self.engine.told, scene.options
        stale = staleness(scene, storage)
        if storage.idle != stale and not (options.foresee and storage.idle >= SHORTEST):
            told.refuse(f"it has not been used for {stale} s")
        if storage.swap_cost == inf:
            if storage.bytes >= options.swap_least and not storage.split_off:
                told.refuse("it can leave with its bytes")
            return
        if storage.bytes < options.swap_least:
            told.refuse("it is too small to leave with its bytes")
        writing = 0 if storage.page else storage.bytes
        reading = storage.bytes * (1 if storage.wanted and storage.page else min(options.swap_load, 1))
        least = writing / self.out.bandwidth + reading / self.back.bandwidth
        most = writing / self.out.slowest + storage.bytes / self.back.slowest
        if not (1 - ROUNDING) * least <= storage.swap_cost <= (1 + ROUNDING) * most:
            told.refuse(f"leaving with its bytes costs between {least} and {most} s")
