"""The reference's walk that brings storages back: which ops, in which order, under which pins.

Part of the specification in play.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference.arena import PACKED
from reference.lineage import Op, Storage

if TYPE_CHECKING:
    from reference.engine import Engine

PATIENCE = 1.0
"""Seconds on the clock that are allowed for a recomputation that may never end."""
TWICE = 2
"""After this many times as many returns as were missing, wanted storages leave only as a last
resort."""


@dataclass
class ShortageError(Exception):
    """No room."""

    needed: int
    in_circles: bool = False
    """There is room for each storage in turn, but not for those that are needed together."""


@dataclass
class Frame:
    """A storage that is brought back, and the storages that are pinned for its op."""

    goal: Storage
    kept: list[Storage]


def hungriest_absent(storages: Iterable[Storage]) -> Storage | None:
    """The one that needs the most bytes to come back. On a tie, the first."""
    absent = [storage for storage in storages if storage.absent]
    return max(absent, key=lambda storage: storage.need, default=None)


class Walk:
    """Depth first: of several absent inputs, the one that needs the most bytes comes first. Swapped
    storages are read in, evicted ones recomputed. A storage that was brought back for a waiting op
    is pinned. Everything else that the missing ops will read is wanted.

    If an op finds no room, memory is packed. If that fails, everything leaves that is not wanted.
    If that fails too, the walk gives up its pins and everything leaves; then a simple schedule
    takes over if it fits. Otherwise the walk starts anew, and the second time it pins nothing but
    operands. A fourth failure in a row is a shortage.
    """

    def __init__(self, engine: "Engine", goals: Sequence[Storage], ops: list[Op]) -> None:
        self.engine = engine
        self.goals = goals
        self.ops = ops
        self.kept: list[Storage] = []  # goals that are back
        self.frames: list[Frame] = []
        self.holding_on = True
        self.frugal = False
        self.anew = False
        """It has started anew, with everything evicted."""
        self.rescues = 0
        self.all = len(ops) + sum(goal.page for goal in goals)
        self.returns = 0
        self.start = engine.now

    def run(self) -> None:
        for op in self.ops:
            self._wait(op)
        for goal in self.goals:
            goal.wanted += 1
        try:
            while self._advance():
                pass
            if self.frugal:
                for op in self.ops:
                    self._wait_no_more(op)
                Frugal(self.engine, self.goals).run()
        finally:
            self.engine.may_take_wanted = True
            for frame in self.frames:
                self._release(frame.kept)
            self._release(self.kept)
            for op in self.ops:
                self._wait_no_more(op)
            for goal in self.goals:
                goal.wanted -= 1

    def _wait(self, op: Op) -> None:
        op.waiting = True
        for storage in op.inputs:
            storage.wanted += 1

    def _wait_no_more(self, op: Op) -> None:
        if op.waiting:
            op.waiting = False
            for storage in op.inputs:
                storage.wanted -= 1

    def _pin(self, storage: Storage, kept: list[Storage]) -> None:
        storage.pins += 1
        kept.append(storage)

    def _release(self, kept: list[Storage]) -> None:
        for storage in kept:
            storage.pins -= 1
        kept.clear()

    def _advance(self) -> bool:
        """One step. False when all goals are back."""
        if not self.frames:
            goal = hungriest_absent(self.goals)
            if goal is None:
                return False
            self.frames.append(Frame(goal, []))
        frame = self.frames[-1]
        if not frame.goal.absent:
            self._release(frame.kept)
            self.frames.pop()
            if self.holding_on:
                self._pin(frame.goal, self.frames[-1].kept if self.frames else self.kept)
            return True
        op = None if frame.goal.page else frame.goal.producer
        if op and not op.waiting:  # its output has left meanwhile
            self.ops.append(op)
            self._wait(op)
        inputs = op.inputs if op else []
        absent = hungriest_absent(inputs)
        if absent:
            self.frames.append(Frame(absent, []))
            return True
        self._count(frame.goal)
        if self._goes_in_circles():
            return not self.frugal
        self._release(frame.kept)
        for storage in inputs:
            self._pin(storage, frame.kept)
        try:
            if op:
                self.engine.replay(op, self.engine.side_of(op.cost, op.bytes))
            else:
                self.engine.swap.read_now(frame.goal)
        except ShortageError:
            self._rescue()
            return not self.frugal
        self.rescues = 0
        self._release(frame.kept)
        if not op:
            return True
        self._wait_no_more(op)
        if not self.engine.options.keep_dead:
            for storage in op.inputs:
                if not storage.held and not storage.wanted:
                    self.engine.evict_early(storage)
        return True

    def _count(self, goal: Storage) -> None:
        """Counts returns. A storage that leaves during the walk may have to come back twice, so
        there is a limit."""
        self.returns += 1
        many, too_many = 64 + 32 * self.all, 64 + 256 * self.all
        impatient = self.engine.now - self.start > PATIENCE
        if self.returns > too_many or (self.returns > many and impatient):
            raise ShortageError(self.engine.arena.round(goal.bytes), in_circles=True)

    def _goes_in_circles(self) -> bool:
        """Whether the walk may be going in circles: then everything leaves, once."""
        if self.returns == 16 + 4 * self.all and self.engine.options.rescue:
            self._start_anew()
            return True
        self.engine.may_take_wanted = self.returns <= TWICE * self.all
        return False

    def _rescue(self) -> None:
        """Called while a shortage is handled. Raises it again if nothing is left to try."""
        if not self.engine.options.rescue or self.rescues == 3:
            raise
        self.rescues += 1
        if self.rescues == 1:
            self.engine.pack()
        elif self.rescues == 2:
            self.engine.compact(wanted_too=False)
        else:
            self.holding_on = not self.anew
            self._start_anew()
        if self.frames:
            self._release(self.frames[-1].kept)

    def _start_anew(self) -> None:
        """Everything leaves. A simple schedule takes over if there is room for it."""
        for kept in [self.kept, *(frame.kept for frame in self.frames)]:
            self._release(kept)
        self.frames.clear()
        self.engine.compact()
        self.frugal = Frugal(self.engine, self.goals).most() <= self.engine.arena.free_bytes
        self.anew = True
        if not self.frugal:
            self.engine.lineage.find_needs(self.engine.lineage.missing(self.goals))


class Frugal:
    """A simple schedule: each missing op runs once, depth first; of several, the one that needs the
    most room comes first. A storage is kept until the last op that reads it has run, a goal to the
    end. A swapped storage is read for each op that needs it, swapped goals at the end. Before each
    op, and each read, everything else leaves and the rest is packed."""

    def __init__(self, engine: "Engine", goals: Sequence[Storage]) -> None:
        self.engine = engine
        self.goals = goals
        ops = engine.lineage.missing(goals)
        for op in ops:
            op.need = self._need_to_run(op)
        self.order: list[Op] = []
        for goal in sorted(goals, key=self._need, reverse=True):
            self._add(goal)
        self.uses: dict[Storage, int] = {}
        for storage in [*(storage for op in self.order for storage in op.inputs), *goals]:
            self.uses[storage] = self.uses.get(storage, 0) + 1

    def _round(self, size: int) -> int:
        alignment: int = self.engine.options.alignment
        return -(-size // alignment) * alignment

    def _need(self, storage: Storage) -> int:
        return storage.producer.need if storage.evicted and storage.producer else self._round(storage.bytes)

    def _need_to_run(self, op: Op) -> int:
        missing = [(self._need(storage), self._round(storage.bytes)) for storage in op.inputs if storage.absent]
        kept = most = 0
        for need, size in sorted(missing, reverse=True):
            most = max(most, kept + need)
            kept += size
        return max(most, kept + self._round(op.bytes))

    def _add(self, storage: Storage) -> None:
        """Adds the op that makes it, after the ops that make its inputs."""
        op = storage.producer
        if not storage.evicted or not op or op in self.order:
            return
        for other in sorted(op.inputs, key=self._need, reverse=True):
            self._add(other)
        self.order.append(op)

    def most(self) -> int:
        """The bytes that it needs at once, each output in a block of its own."""
        alignment = self.engine.options.alignment
        left, made = dict(self.uses), set()
        kept = most = 0
        for op in self.order:
            read = sum(self._round(storage.bytes) for storage in op.inputs if storage.absent and storage.page)
            fresh = self._round(op.bytes) + alignment * len(op.outputs)
            if op.in_place and left[op.inputs[0]] == 1 and op.inputs[0] in made and not op.inputs[0].held:
                fresh -= self._round(op.inputs[0].bytes)
            most = max(most, kept + read + fresh)
            for output in op.made():
                if output in left and output.evicted and output not in made:
                    made.add(output)
                    kept += self._round(output.bytes)
            for storage in op.inputs:
                left[storage] -= 1
                if not left[storage] and storage in made:
                    kept -= self._round(storage.bytes)
        outside = sum(self._round(goal.bytes) for goal in self.goals if goal.absent and goal.page)
        return max(most, kept + outside)

    def run(self) -> None:
        kept: list[Storage] = []
        pinned: list[Storage] = []
        done: dict[Storage, int] = {}
        try:
            for op in self.order:
                for storage in op.inputs:
                    if not storage.absent:
                        self._pin(storage, pinned)
                for storage in op.inputs:
                    if storage.absent:
                        self._read(storage, pinned)
                for storage in op.inputs:
                    done[storage] = done.get(storage, 0) + 1
                    if done[storage] == self.uses[storage] and storage in kept:
                        kept.remove(storage)
                        storage.pins -= 1
                self.engine.compact()
                self.engine.replay(op, PACKED)
                self._release(pinned)
                for output in op.made():
                    if self.uses.get(output, 0) > done.get(output, 0):
                        self._pin(output, kept)
            for goal in self.goals:
                if goal.absent:
                    self._read(goal, kept)
        finally:
            self._release(pinned)
            self._release(kept)

    def _pin(self, storage: Storage, pinned: list[Storage]) -> None:
        storage.pins += 1
        pinned.append(storage)

    def _release(self, pinned: list[Storage]) -> None:
        for storage in pinned:
            storage.pins -= 1
        pinned.clear()

    def _read(self, storage: Storage, pinned: list[Storage]) -> None:
        self.engine.compact()
        self.engine.swap.read_now(storage)
        self._pin(storage, pinned)
