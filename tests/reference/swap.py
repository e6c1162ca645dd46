"""The reference's tier: which transfers are legal, how long they take, and what swapping may cost.

Part of the specification in play.py. There is one link out and one in. Each carries one transfer at
a time. On its way out a storage is resident, and a wall for searches. On its way in it has a raw
block. If a storage dies meanwhile, the transfer keeps its block until it is done.

What is written and read ahead is the engine's choice (ahead.py). So is its forecast: before each
search, its events give the price of swapping each storage and its idle time. The reference checks
that both are within bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from coop.events import Event
from reference.arena import LOW, RAW, Block
from reference.lineage import Storage
from reference.policy import SHORTEST, SearchContext, staleness

if TYPE_CHECKING:
    from reference.engine import Engine

ROUNDING = 1e-6
"""A share of a price."""


@dataclass(eq=False)
class Transfer:
    storage: Storage | None
    """None: it has died."""
    block: Block
    link: "Link"
    bytes: int
    asked: float
    end: float | None = None
    """None: it has not begun."""


@dataclass(eq=False)
class Link:
    """One direction."""

    bandwidth: float
    slowest: float
    """The lowest speed that the engine can have measured. No transfer counts as shorter than
    SHORTEST."""
    free: float = 0.0
    """The time from which the link is idle."""
    queue: list[Transfer] = field(default_factory=list)
    """Transfers that have not begun."""

    def duration(self, transfer: Transfer) -> float:
        return transfer.bytes / self.bandwidth

    def run_until(self, now: float) -> None:
        while self.queue and max(self.free, self.queue[0].asked) < now:
            first = self.queue.pop(0)
            first.end = self.free = max(self.free, first.asked) + self.duration(first)

    def finish(self, transfer: Transfer, wait: bool, now: float) -> float | None:
        """How long the program waited for it; None: it is not done. A transfer that is waited for
        overtakes those that have not begun."""
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
        self.out = Link(options.swap_out, options.swap_out)
        self.back = Link(options.swap_in, options.swap_in)
        self.transfers: list[Transfer] = []

    # --- a transfer ----------------------------------------------------------------------------------------------------

    def transfer_of(self, storage: Storage) -> Transfer | None:
        return next((transfer for transfer in self.transfers if transfer.storage is storage), None)

    def _begin(self, storage: Storage, block: Block, link: Link) -> None:
        transfer = Transfer(storage, block, link, storage.bytes, self.engine.now)
        self.transfers.append(transfer)
        link.queue.append(transfer)
        storage.in_transit = True
        self.engine.note("write" if link is self.out else "read", storage, block)

    def begin_out(self, storage: Storage) -> None:
        """Begins to write a storage that is resident, has no copy and is not in transit."""
        if not storage.page and not storage.in_transit:
            assert storage.block
            self._begin(storage, storage.block, self.out)

    def begin_in(self, storage: Storage, block: Block) -> None:
        assert storage.absent and storage.page and block.state == RAW
        self._begin(storage, block, self.back)

    def read_now(self, storage: Storage) -> None:
        """An op needs it: it is read in, and the program waits."""
        engine = self.engine
        if not storage.in_transit:
            engine.counts.prefetch_misses += 1
            storage.pins += 1
            try:
                block = engine.take(storage.bytes, LOW)
            finally:
                storage.pins -= 1
            self.begin_in(storage, block)
        self.wait_for(storage)

    def wait_for(self, storage: Storage) -> None:
        """Waits for its transfer, if there is one."""
        if transfer := self.transfer_of(storage):
            self._finish(transfer, wait=True)

    def finish_all(self) -> None:
        """Waits for all, in the order of the engine's events."""
        while self.transfers:
            self._finish(self._next_to_end(), wait=True)

    def finish_done(self) -> None:
        """The next event is the end of a transfer that nobody waited for."""
        if not self._finish(self._next_to_end(), wait=False):
            self.engine.stream.refuse("that transfer is not done")

    def check_none_is_done(self) -> None:
        for transfer in self.transfers:
            if transfer.link.finish(transfer, False, self.engine.now) is not None:
                self.engine.stream.refuse(f"a transfer of {transfer.bytes} bytes is done, and no event says so")

    def _next_to_end(self) -> Transfer:
        """The transfer that the next event ends. If its storage has died while it was read, that
        event frees its block."""
        event = self.engine.stream.next()
        found = [transfer for transfer in self.transfers if event and self._ends_with(transfer, event)]
        if not found:
            self.engine.stream.refuse("no transfer under way ends so")
        return found[0]

    def _ends_with(self, transfer: Transfer, event: Event) -> bool:
        number = transfer.storage.number if transfer.storage else 0
        kind = "out" if transfer.link is self.out else "in" if transfer.storage else "free"
        return (kind, number, transfer.block.offset) == (event.kind, event.storage, event.offset)

    def _finish(self, transfer: Transfer, wait: bool) -> bool:
        engine, counts, storage = self.engine, self.engine.counts, transfer.storage
        waited = transfer.link.finish(transfer, wait, engine.now)
        if waited is None:
            return False
        self._end(transfer)
        transfer.link.measure(transfer)
        seconds = transfer.link.duration(transfer)
        engine.now += waited
        counts.transfer_seconds += seconds
        counts.waited_seconds += waited
        if transfer.link is self.out:
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

    def cancel(self, storage: Storage) -> bool:
        """Cancels a transfer out that has not begun. False: there is none."""
        transfer = self.transfer_of(storage)
        if not transfer or transfer.link is not self.out or transfer.end is not None:
            return False
        self.out.queue.remove(transfer)
        self._end(transfer)
        return True

    def abandon(self, storage: Storage) -> None:
        """The storage dies, and its transfer continues."""
        transfer = self.transfer_of(storage)
        assert transfer
        transfer.storage, storage.in_transit = None, False

    def carried(self) -> int:
        """Bytes of raw blocks that belong to transfers."""
        return sum(transfer.block.bytes for transfer in self.transfers if transfer.block.state == RAW)

    # --- copies --------------------------------------------------------------------------------------------------------

    def write_back(self, leaving: Sequence[Storage]) -> None:
        """Writes those of these storages that leave with their bytes, and waits for all transfers
        of these storages."""
        for storage in leaving:
            if not storage.page and self._leaves_with_bytes(storage):
                self.begin_out(storage)
        for storage in leaving:
            self.wait_for(storage)

    def _leaves_with_bytes(self, storage: Storage) -> bool:
        """DELTA's director: whether it is swapped out, or recomputed later."""
        if not storage.producer:
            return True
        return not storage.droppable and storage.swap_cost <= self.engine.lineage.projected_cost(storage)

    def overwriting(self, written: Sequence[Storage]) -> None:
        """The copy of a source is no longer valid. The copy of a recomputable storage stays with
        its old version."""
        for storage in written:
            if not self.cancel(storage):
                self.wait_for(storage)
            if not storage.producer:
                storage.page = False

    def entering(self, inputs: Sequence[Storage]) -> None:
        """An op is about to use these. They may be absent."""
        for storage in inputs:
            self.engine.counts.prefetch_hits += storage.fetched
            storage.fetched = storage.split_off = False

    # --- prices --------------------------------------------------------------------------------------------------------

    def read_prices(self, context: SearchContext, needed: int) -> None:
        """To be called before a choice. `needed` is 0 if everything is to leave."""
        if not self.on:
            return
        engine, stream = self.engine, self.engine.stream
        stream.expect(Event("price", engine.now, 0, 0, needed, 0.0))
        for storage in engine.arena.storages():
            event = stream.next()
            if not event or event.storage != storage.number or event.kind not in ("price", "idle"):
                stream.refuse(f"the price of storage {storage.number} has to follow")
            storage.idle = event.waited
            storage.swap_cost = event.value if event.kind == "price" else inf
            self._check_price(context, storage)
            engine.note(event.kind, storage, storage.block, event.value, event.waited)

    def _check_price(self, context: SearchContext, storage: Storage) -> None:
        """Without a forecast, the idle time is the time since the last use. Reading costs at least
        what the ops beside it lose, and at most all of its time. Writing costs all of its time,
        unless there is a copy. A storage without a price is small, or was overwritten and not used
        since."""
        stream, options = self.engine.stream, context.options
        stale = staleness(context, storage)
        if storage.idle != stale and not (options.foresee and storage.idle >= SHORTEST):
            stream.refuse(f"it has not been used for {stale} s")
        if storage.swap_cost == inf:
            if storage.bytes >= options.swap_least and not storage.split_off:
                stream.refuse("it can leave with its bytes")
            return
        if storage.bytes < options.swap_least:
            stream.refuse("it is too small to leave with its bytes")
        writing = 0 if storage.page else storage.bytes
        reading = storage.bytes * (1 if storage.wanted and storage.page else min(options.swap_load, 1))
        least = writing / self.out.bandwidth + reading / self.back.bandwidth
        most = writing / self.out.slowest + storage.bytes / self.back.slowest
        if not (1 - ROUNDING) * least <= storage.swap_cost <= (1 + ROUNDING) * most:
            stream.refuse(f"leaving with its bytes costs between {least} and {most} s")
