"""The reference's walk that brings storages back: which ops, in which order, under which pins.

Part of the specification in reference.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coop.simulate.reference_lineage import Op, Storage

if TYPE_CHECKING:
    from coop.simulate.reference_engine import Engine

PATIENCE = 1.0
"""Seconds on the clock, with a recomputation that goes round in circles."""
YIELDING = 2
"""Times as much as was missing: from then on, what is wanted stays if anything else can leave."""


@dataclass
class ShortageError(Exception):
    """No room."""

    needed: int
    in_circles: bool = False
    """There would be room for each storage in turn, but not for what is needed together."""


@dataclass
class Frame:
    """A storage that is on its way back, and what is pinned for its op meanwhile."""

    goal: Storage
    kept: list[Storage]


def hungriest_absent(storages: Iterable[Storage]) -> Storage | None:
    """The one that needs the most bytes to come back; the first of several."""
    absent = [storage for storage in storages if storage.evicted]
    return max(absent, key=lambda storage: storage.need, default=None)


class Walk:
    """Depth first: of several absent inputs the hungriest first. What is outside is read in, all else made again. What has come back for an op that still waits is pinned, and
    everything else that the missing ops will read is wanted.

    If an op finds no room: memory is packed; then emptied of what nobody waits for; then the walk lets go of all pins, for
    good, and everything leaves. Each time the walk goes on from where it is. A fourth failure in a row is a shortage.
    """

    def __init__(self, engine: "Engine", goals: Sequence[Storage], ops: list[Op]) -> None:
        self.engine = engine
        self.goals = goals
        self.ops = ops
        self.kept: list[Storage] = []  # for the callers: goals that are back
        self.frames: list[Frame] = []
        self.holding_on = True
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
        finally:
            self.engine.yielding = True
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
        if not frame.goal.evicted:
            self._release(frame.kept)
            self.frames.pop()
            if self.holding_on:
                self._pin(frame.goal, self.frames[-1].kept if self.frames else self.kept)
            return True
        op = None if frame.goal.page else frame.goal.producer
        if op and not op.waiting:  # what it makes has left meanwhile
            self.ops.append(op)
            self._wait(op)
        inputs = op.inputs if op else []
        absent = hungriest_absent(inputs)
        if absent:
            self.frames.append(Frame(absent, []))
            return True
        self._count(frame.goal)
        self._release(frame.kept)
        for storage in inputs:
            self._pin(storage, frame.kept)
        try:
            if op:
                self.engine.replay(op)
            else:
                self.engine.swap.miss(frame.goal)
        except ShortageError:
            self._rescue()
            return True
        self.rescues = 0
        self._release(frame.kept)
        if not op:
            return True
        self._wait_no_more(op)
        if not self.engine.options.keep_dead:
            for storage in op.inputs:
                if not storage.held and not storage.wanted:
                    self.engine.evict_eagerly(storage)
        return True

    def _count(self, goal: Storage) -> None:
        """What leaves on the way may be needed twice, and that must end."""
        self.returns += 1
        many, too_many = 64 + 32 * self.all, 64 + 256 * self.all
        impatient = self.engine.now - self.start > PATIENCE
        if self.returns > too_many or (self.returns > many and impatient):
            raise ShortageError(self.engine.arena.round(goal.bytes), in_circles=True)
        self.engine.yielding = self.returns <= YIELDING * self.all

    def _rescue(self) -> None:
        """Called while a shortage is handled: raises it again if nothing is left to try."""
        if not self.engine.options.rescue or self.rescues == 3:
            raise
        self.rescues += 1
        if self.rescues == 1:
            self.engine.pack()
        elif self.rescues == 2:
            self.engine.compact(wanted_too=False)
        else:
            self.holding_on = False
            for kept in [self.kept, *(frame.kept for frame in self.frames)]:
                self._release(kept)
            self.engine.compact()
        self._release(self.frames[-1].kept)
