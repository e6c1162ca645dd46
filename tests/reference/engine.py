"""The reference's engine: what happens around an op, how room is made, how storages come back.

Part of the specification in play.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from coop._C import Options
from coop.events import Event
from coop.trace.trace import Op as Instruction
from reference.ahead import follow
from reference.arena import FREE, HIGH, LOW, PACKED, RAW, USED, Arena, Block, DensityClasses
from reference.event_stream import EventStream
from reference.figures import Counts, note_use
from reference.lineage import Lineage, Op, Storage
from reference.policy import Run, SearchContext, SearchPrice, find_room, moves_aside
from reference.swap import Swap
from reference.walk import ShortageError, Walk

PORTION = 16
"""Records swept with each op."""


class Engine:
    """Lineage, arena and policy, for one budget. The driver gives `rerun`: it allocates what an op
    that runs again needs, and returns the raw blocks of its recorded outputs (without the one it
    works on in place). `stream` has the events of the engine that is judged."""

    def __init__(self, options: Options, rerun: Callable[[Op], list[Block]], stream: EventStream) -> None:
        self.options = options
        self.stream = stream
        self.rerun = rerun
        self.arena = Arena(options.budget, options.alignment, options.placement.name == "best_fit")
        self.lineage = Lineage(options, self._forget)
        self.density_classes = DensityClasses()
        self.counts = Counts()
        self.now = 0.0
        self.side = LOW
        """Where the outputs of the op that runs next should go."""
        self.price = SearchPrice()
        self.move_seconds = 0.0
        self.free_shares: list[float] = []
        """Free bytes over capacity, after each request that had to make room."""
        self.swap = Swap(self)
        self.may_take_wanted = True
        """A wanted storage may leave instead of a source that has to be written. False in a walk
        that has done its work twice."""
        self.copying: Storage | None = None
        """The old version of which an in-place op that runs again gets a copy."""

    def note(
        self, kind: str, storage: Storage | None, block: Block | None, value: float = 0.0, waited: float = 0.0
    ) -> None:
        offset, size = (block.offset, block.bytes) if block else (0, 0)
        self.stream.expect(Event(kind, self.now, storage.number if storage else 0, offset, size, value, waited))

    def next_storage(self, ahead: int = 0) -> Storage:
        """The storage of the engine's next event."""
        number = getattr(self.stream.next(ahead), "storage", 0)
        found = next((storage for storage in self.lineage.storages if storage.number == number), None)
        if not found:
            self.stream.refuse("there is no such storage")
        return found

    # --- from inside kernels -------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> Block:
        """Tiny requests always go to the low side."""
        block = self.take(size, LOW if size <= self.options.tiny and self.side == HIGH else self.side)
        self.counts.allocations += 1
        return block

    def free(self, block: Block) -> None:
        self.note("free", None, block)
        self.arena.release(block)

    def take(self, size: int, side: str) -> Block:
        block = self.arena.allocate(size, side) or self._make_room(size, LOW if side == PACKED else side)
        note_use(self)
        self.note("place", None, block)
        return block

    # --- around an op --------------------------------------------------------------------------------------------------

    def side_of(self, cost: float, size: int) -> str:
        return self.density_classes.side(cost / max(size, 1)) if self.options.partition else LOW

    def enter(self, inputs: Sequence[Storage]) -> None:
        for storage in inputs:
            storage.last_access = self.now
        if self.swap.on:
            self.swap.entering(inputs)
        self._bring_back(inputs)
        for storage in inputs:
            storage.locks += 1

    def leave(self, inputs: Iterable[Storage]) -> None:
        for storage in inputs:
            storage.locks -= 1
            self.lineage.reconsider(storage)

    def ran(self, cost: float) -> None:
        self.counts.ops += 1
        self.counts.op_seconds += cost
        self.now += cost
        follow(self, cost)
        self.lineage.sweep(PORTION)

    # --- storages ------------------------------------------------------------------------------------------------------

    def bind(self, block: Block, size: int) -> Storage:
        """A raw block becomes a held storage: a source, until an op is recorded that makes it."""
        storage = self.lineage.make_storage(size)
        self._give_block(storage, block)
        storage.held = True
        storage.last_access = self.now
        self.note("bind", storage, block)
        return storage

    def _give_block(self, storage: Storage, block: Block) -> None:
        block.state, block.storage, storage.block = USED, storage, block

    def let_go(self, storage: Storage) -> None:
        """The program no longer refers to it. With `keep_dead`, a recomputable storage stays while
        something held is absent. (Otherwise nothing will be recomputed soon.)"""
        storage.held = False
        self.note("die", storage, storage.block)
        pressed = any(other.held and other.absent for other in self.lineage.storages)
        if not (self.options.keep_dead and pressed):
            self.evict_early(storage)
        self.lineage.reconsider(storage)

    def reconsider(self, storage: Storage) -> None:
        storage.driver_refers = False
        self.lineage.reconsider(storage)

    def _forget(self, storage: Storage) -> None:
        if storage.absent and storage.in_transit:
            self.swap.abandon(storage)
        if storage.block:
            self.note("free", storage, storage.block)
            self._release_block(storage)

    def _release_block(self, storage: Storage) -> Block:
        """If a transfer of the storage has begun, it keeps the block until it is done."""
        block, storage.block = storage.block, None
        assert block
        if storage.in_transit and not self.swap.cancel(storage):
            self.swap.abandon(storage)
            block.state, block.storage = RAW, None
            self.note("place", None, block)
            return block
        return self.arena.release(block)

    # --- lineage -------------------------------------------------------------------------------------------------------

    def record(
        self, instruction: Instruction, cost: float, inputs: list[Storage], outputs: list[Storage], in_place: bool
    ) -> None:
        op = self.lineage.make_op(instruction, cost, inputs, outputs, in_place)
        self.counts.recorded_ops += 1
        for output in outputs:
            self.note("record", output, output.block, cost)
        if op.bytes:
            self.density_classes.add(op.cost_from_scratch() / op.bytes, op.bytes)

    def too_deep(self, inputs: Iterable[Storage]) -> bool:
        return any(s.producer and s.producer.depth + 1 >= self.options.max_depth for s in inputs)

    def before_overwrite(self, storages: Sequence[Storage]) -> None:
        """Rule 5: everything that needs the old value of a source comes back and is committed. That
        may be another of these storages."""
        while [s for s in storages if not s.producer and self._commit_dependents(s)] and len(storages) > 1:
            pass

    def _commit_dependents(self, source: Storage) -> bool:
        """Whether there was something to commit."""
        dependents = self.lineage.held_dependents(source)
        self._bring_back(dependents)
        for dependent in dependents:
            self.commit(dependent)
        return bool(dependents)

    def split(self, storage: Storage) -> Storage:
        """It has been overwritten. The old version is absent, and keeps the recipe and the
        consumers. The new one is a source until the op that made it is recorded."""
        old = self.lineage.split(storage)
        old.driver_refers = old.split_off = True
        old.page, storage.page = storage.page, False
        self._became_absent(old)
        return old

    def copy_on_write(self, storage: Storage) -> Storage:
        """The storage moves to a copy, and the old version keeps its block."""
        self.swap.wait_for(storage)
        copy = self.take(storage.bytes, self.side)
        old = self.lineage.split(storage)
        old.driver_refers = True
        old.page, storage.page = storage.page, False
        assert storage.block
        self._give_block(old, storage.block)
        self._give_block(storage, copy)
        self.note("bind", old, old.block)
        self.note("bind", storage, storage.block)
        note_use(self)
        return old

    def commit(self, storage: Storage) -> None:
        if storage.producer:
            self.lineage.commit(storage)
            note_use(self)
            self.counts.commits += 1
            self.note("commit", storage, storage.block)

    def pin(self, storage: Storage) -> None:
        storage.last_access = self.now
        self._bring_back([storage])
        storage.pins += 1

    def unpin(self, storage: Storage) -> None:
        storage.pins -= 1
        self.lineage.reconsider(storage)

    # --- making room ---------------------------------------------------------------------------------------------------

    def context(self, side: str) -> SearchContext:
        return SearchContext(
            self.options, self.arena, self.lineage, side, self.now, self.price, self.price, self.may_take_wanted
        )

    def _make_room(self, size: int, side: str) -> Block:
        needed = self.arena.round(size)
        context = self.context(side)
        self.counts.searches += 1
        block: Block | None = None
        while not block:
            run: Run = []
            self.swap.read_prices(context, needed)
            if needed <= self.arena.capacity:
                run, context = find_room(context, needed)
            self.stream.expect(Event("search", self.now, 0, 0, needed, 0.0))
            if run:
                hole = self.clear(run, context)
                block = self.arena.take(hole, needed, side) if hole.bytes >= needed else None
            elif self.swap.transfers:  # a transfer may block the window
                self.swap.finish_all()
                context.now = self.now
                block = self.arena.allocate(size, side)
            else:
                self.stream.expect(Event("shortage", self.now, 0, 0, needed, 0.0))
                raise ShortageError(needed)
        # Wanted storages have no price.
        self.price = replace(context.found, per_byte=self.price.per_byte) if context.wanted_too else context.found
        self.free_shares.append(self.arena.free_bytes / self.arena.capacity)
        return block

    def clear(self, run: Run, context: SearchContext) -> Block:
        """Empties a run: what may leave is evicted, and the rest slides to the low edge. Returns
        the hole."""
        storages = [block.storage for block in run if block.storage]
        leaving = [block.storage for block in run if block.storage and not moves_aside(context, block)]
        self.swap.write_back(leaving)
        hole = run[0]
        for storage in leaving:
            hole = self._evict(storage)
        for storage in storages:
            if storage not in leaving:
                hole = self._slide(storage) or hole
        return hole

    def _evict(self, storage: Storage) -> Block:
        if storage.held:
            self.counts.evictions += 1
            self.counts.evicted_bytes += storage.bytes
        self.note("evict", storage, storage.block)
        storage.fetched = False
        hole = self._release_block(storage)
        self._became_absent(storage)
        return hole

    def _became_absent(self, storage: Storage) -> None:
        """It has lost its block. If it has no copy, it has to be recomputed."""
        if not storage.page:
            self.lineage.join_component(storage)

    def evict_early(self, storage: Storage) -> None:
        """Evicts a storage that nobody holds but ops read, before its room is needed."""
        if storage.consumers and storage.producer and storage.evictable():
            self.note("evict", storage, storage.block)
            self._release_block(storage)
            self._became_absent(storage)

    def _slide(self, storage: Storage) -> Block | None:
        """Moves it to the low edge of the hole just below it, if there is one. Returns the hole,
        now above it."""
        block = storage.block
        assert block
        below = self.arena.below(block)
        if not below or below.state != FREE:
            return None
        before = block.offset
        hole = self.arena.slide_down(block)
        self.counts.moves += 1
        self.counts.moved_bytes += storage.bytes
        self.move_seconds += storage.bytes / self.options.copy_bandwidth
        self.note("move", storage, block, float(before))
        return hole

    def pack(self) -> None:
        """Slides everything down, the lowest first."""
        self.swap.finish_all()
        for storage in self.arena.storages():
            if not storage.locks:
                self._slide(storage)

    def compact(self, wanted_too: bool = True) -> None:
        """Evicts all that may leave, and packs the rest."""
        self.swap.finish_all()
        self.swap.read_prices(self.context(LOW), 0)
        leaving = [storage for storage in self.arena.storages() if storage.evictable(wanted_too)]
        self.swap.write_back(leaving)
        for storage in leaving:
            self._evict(storage)
        self.pack()

    # --- bringing back -------------------------------------------------------------------------------------------------

    def _bring_back(self, goals: Sequence[Storage]) -> None:
        """Runs ops again, and reads swapped storages, until all goals are resident."""
        if any(goal.absent for goal in goals):
            ops = self.lineage.missing(goals)
            self.lineage.find_needs(ops)
            Walk(self, goals, ops).run()

    def replay(self, op: Op, side: str) -> None:
        """Runs an op again. Its inputs are resident, and pinned once by the walk."""
        before, self.side = self.side, side
        locked = op.inputs[1:] if op.in_place else list(op.inputs)
        for storage in locked:
            storage.locks += 1
        target = None
        try:
            target = self._target_of(op) if op.in_place else None
            blocks = self.rerun(op)
        except ShortageError:
            if target:
                self.free(target)
            raise
        finally:
            self.side = before
            for storage in locked:
                storage.locks -= 1
        self.now += op.cost
        self.counts.recompute_seconds += op.cost
        self.counts.replays += 1
        for storage in op.inputs:
            storage.last_access = self.now
        for output, block in zip(op.outputs, ([target] if target else []) + blocks, strict=True):
            if output and output.absent:
                self.swap.wait_for(output)
            if output and output.absent:
                self.restore(output, block, "restore")
                self.counts.rematerialisations += 1
            else:  # forgotten, or still resident
                self.free(block)

    def _target_of(self, op: Op) -> Block:
        """The raw block that an in-place op works on: that of the old version if nothing else waits
        for it, else a copy."""
        old = op.inputs[0]
        others_wait = old.pins > 1 or old.wanted > (1 if op.waiting else 0)
        if not others_wait and old.movable and not old.held and old.producer and old.block:
            block, old.block = old.block, None
            block.state, block.storage = RAW, None
            self._became_absent(old)
            note_use(self)
            self.note("bind", None, block)
            return block
        old.locks += 1
        self.copying = old
        try:
            return self.take(old.bytes, self.side)
        finally:
            old.locks -= 1
            self.copying = None

    def restore(self, storage: Storage, block: Block, kind: str, seconds: float = 0.0, waited: float = 0.0) -> None:
        """Its op has run again, or a transfer has ended."""
        self._give_block(storage, block)
        storage.last_access = self.now
        self.lineage.leave_component(storage)
        self.note(kind, storage, block, seconds, waited)
