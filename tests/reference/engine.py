"""The reference's engine: what happens around an op, how room is made, how storages come back.

Part of the specification in play.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from coop._C import Options
from coop.events import Event
from coop.trace.trace import Op as Instruction
from reference.ahead import follow
from reference.arena import FREE, HIGH, LOW, PACKED, RAW, USED, Arena, Block, Classes
from reference.figures import Counts, note_use
from reference.lineage import Lineage, Op, Storage
from reference.policy import Run, Scene, Terms, find_room, stays
from reference.swap import Swap
from reference.told import Told
from reference.walk import ShortageError, Walk

PORTION = 16
"""Records swept with each op."""


class Engine:
    """Lineage, arena and policy, for one budget. `rerun` is the driver's: it allocates what an op that runs again needs, and
    returns the raw blocks of its recorded outputs (without the one it works on in place). `told` is what the engine that is
    judged has told."""

    def __init__(self, options: Options, rerun: Callable[[Op], list[Block]], told: Told) -> None:
        self.options = options
        self.told = told
        self.rerun = rerun
        self.arena = Arena(options.budget, options.alignment, options.placement.name == "best_fit")
        self.lineage = Lineage(options, self._forget)
        self.classes = Classes()
        self.counts = Counts()
        self.now = 0.0
        self.side = LOW
        """Where the outputs of the op that runs next should go."""
        self.terms = Terms()
        self.move_seconds = 0.0
        self.free_shares: list[float] = []
        """Free bytes over capacity, after each request that had to make room."""
        self.swap = Swap(self)
        self.yielding = True
        """What is wanted may leave instead of what has to be written: not in a walk that has done its work twice over."""
        self.copying: Storage | None = None
        """The old version that an op in place, running again, works on a copy of."""

    def note(
        self, kind: str, storage: Storage | None, block: Block | None, value: float = 0.0, waited: float = 0.0
    ) -> None:
        offset, size = (block.offset, block.bytes) if block else (0, 0)
        self.told.expect(Event(kind, self.now, storage.number if storage else 0, offset, size, value, waited))

    def storage_told(self, ahead: int = 0) -> Storage:
        """The storage of the engine's next event."""
        number = getattr(self.told.next(ahead), "storage", 0)
        found = next((storage for storage in self.lineage.storages if storage.number == number), None)
        if not found:
            self.told.refuse("there is no such storage")
        return found

    # --- from inside kernels -------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> Block:
        """What is tiny always goes to the low side."""
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
        return self.classes.side(cost / max(size, 1)) if self.options.partition else LOW

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
        self._settle_in(storage, block)
        storage.held = True
        storage.last_access = self.now
        self.note("bind", storage, block)
        return storage

    def _settle_in(self, storage: Storage, block: Block) -> None:
        block.state, block.storage, storage.block = USED, storage, block

    def let_go(self, storage: Storage) -> None:
        """Nobody outside refers to it any more. What can be recomputed stays if that is wished and something held is
        evicted (else nothing will be recomputed soon)."""
        storage.held = False
        self.note("die", storage, storage.block)
        pressed = any(other.held and other.evicted for other in self.lineage.storages)
        if not (self.options.keep_dead and pressed):
            self.evict_eagerly(storage)
        self.lineage.reconsider(storage)

    def reconsider(self, storage: Storage) -> None:
        storage.in_hand = False
        self.lineage.reconsider(storage)

    def _forget(self, storage: Storage) -> None:
        if storage.evicted and storage.in_transit:
            self.swap.abandon(storage)
        if storage.block:
            self.note("free", storage, storage.block)
            self._release_block(storage)

    def _release_block(self, storage: Storage) -> Block:
        """It is the transfer's until that is done, if there is one that has begun."""
        block, storage.block = storage.block, None
        assert block
        if storage.in_transit and not self.swap.call_off(storage):
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
            self.classes.add(op.cost_from_scratch() / op.bytes, op.bytes)

    def too_deep(self, inputs: Iterable[Storage]) -> bool:
        return any(s.producer and s.producer.depth + 1 >= self.options.max_depth for s in inputs)

    def before_overwrite(self, storages: Sequence[Storage]) -> None:
        """Rule 5: whoever needs the old value of a source comes back and is committed. It may be another of these."""
        while [s for s in storages if not s.producer and self._settle(s)] and len(storages) > 1:
            pass

    def _settle(self, source: Storage) -> bool:
        """Whether there was anything to do."""
        dependents = self.lineage.held_dependents(source)
        self._bring_back(dependents)
        for dependent in dependents:
            self.commit(dependent)
        return bool(dependents)

    def split(self, storage: Storage) -> Storage:
        """It has been overwritten: the old version is evicted, and keeps the recipe and the consumers. The new one is a
        source until a record tells how it was made."""
        old = self.lineage.split(storage)
        old.in_hand = old.split_off = True
        old.page, storage.page = storage.page, False
        self._left(old)
        return old

    def copy_on_write(self, storage: Storage) -> Storage:
        """It moves to a copy, and the old version stays behind."""
        self.swap.still(storage)
        copy = self.take(storage.bytes, self.side)
        old = self.lineage.split(storage)
        old.in_hand = True
        old.page, storage.page = storage.page, False
        assert storage.block
        self._settle_in(old, storage.block)
        self._settle_in(storage, copy)
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

    def scene(self, side: str) -> Scene:
        return Scene(self.options, self.arena, self.lineage, side, self.now, self.terms, self.terms, self.yielding)

    def _make_room(self, size: int, side: str) -> Block:
        needed = self.arena.round(size)
        scene = self.scene(side)
        self.counts.searches += 1
        block: Block | None = None
        while not block:
            run: Run = []
            self.swap.read_prices(scene, needed)
            if needed <= self.arena.capacity:
                run, scene = find_room(scene, needed)
            self.told.expect(Event("search", self.now, 0, 0, needed, 0.0))
            if run:
                hole = self.clear(run, scene)
                block = self.arena.take(hole, needed, side) if hole.bytes >= needed else None
            elif self.swap.transfers:  # what is under way may be in the way
                self.swap.finish_all()
                scene.now = self.now
                block = self.arena.allocate(size, side)
            else:
                self.told.expect(Event("shortage", self.now, 0, 0, needed, 0.0))
                raise ShortageError(needed)
        # What is wanted has no price.
        self.terms = replace(scene.found, price=self.terms.price) if scene.wanted_too else scene.found
        self.free_shares.append(self.arena.free_bytes / self.arena.capacity)
        return block

    def clear(self, run: Run, scene: Scene) -> Block:
        """Empties a run: what does not stay leaves, then the rest slides to the low edge. Returns the hole."""
        storages = [block.storage for block in run if block.storage]
        leaving = [block.storage for block in run if block.storage and not stays(scene, block)]
        self.swap.clean(leaving)
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
        self._left(storage)
        return hole

    def _left(self, storage: Storage) -> None:
        """It has no block any more: it is outside, or has to be made again."""
        if not storage.page:
            self.lineage.join_component(storage)

    def evict_eagerly(self, storage: Storage) -> None:
        """What nobody holds, but ops read."""
        if storage.consumers and storage.producer and storage.evictable():
            self.note("evict", storage, storage.block)
            self._release_block(storage)
            self._left(storage)

    def _slide(self, storage: Storage) -> Block | None:
        """To the low edge of the hole just below it, if there is one. Returns the hole, now above it."""
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
        self.swap.read_prices(self.scene(LOW), 0)
        leaving = [storage for storage in self.arena.storages() if storage.evictable(wanted_too)]
        self.swap.clean(leaving)
        for storage in leaving:
            self._evict(storage)
        self.pack()

    # --- bringing back -------------------------------------------------------------------------------------------------

    def _bring_back(self, goals: Sequence[Storage]) -> None:
        """Runs ops again, and reads what is outside, until all goals are resident."""
        if any(goal.evicted for goal in goals):
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
            if output and output.evicted:
                self.swap.still(output)
            if output and output.evicted:
                self.restore(output, block, "restore")
                self.counts.rematerialisations += 1
            else:  # nobody's any more, or still here
                self.free(block)

    def _target_of(self, op: Op) -> Block:
        """The bytes an in-place op works on, as a raw block: the old version's own if nobody else waits for it, else a
        copy of them."""
        old = op.inputs[0]
        others_wait = old.pins > 1 or old.wanted > (1 if op.waiting else 0)
        if not others_wait and old.movable and not old.held and old.producer and old.block:
            block, old.block = old.block, None
            block.state, block.storage = RAW, None
            self._left(old)
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
        self._settle_in(storage, block)
        storage.last_access = self.now
        self.lineage.leave_component(storage)
        self.note(kind, storage, block, seconds, waited)
