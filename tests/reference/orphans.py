"""The reference's orphans: resident sources that nobody holds, kept because recorded ops read them.

Part of the specification in reference.py. A gradient is one once the optimizer has read it, or a batch of which only a
prediction is left. They cannot be evicted, so they must not pile up.
"""

from typing import TYPE_CHECKING

from reference.lineage import Storage

if TYPE_CHECKING:
    from reference.engine import Engine

PER_OP = 4
"""Ops that may be looked at with each op that runs."""
MOST = 4096
"""Of these, as many may be saved up, and looked at for one orphan."""
SHORT = 64
"""As many are looked at for a new orphan, for nothing. What a longer look takes beyond the credit has to be saved up."""
NOT_MUCH = 2
"""Dependents up to so many times as large as the orphan take its place."""
GOOD_PART = 8
"""Orphans are many above this part of all that is in use."""


class Orphans:
    """After each op, every new orphan is looked at, then the others in turn as far as the credit goes, each at most once.
    The turn goes on with the next op where it ended with this one."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.all: list[Storage] = []
        """Not in the order of their age: the last one takes the place of one that goes."""
        self.young = 0
        """So many at the end of the list have not been looked at."""
        self.turn = 0
        """Orphans looked at in turn so far: the next one's place, modulo their number."""
        self.credit = 0

    def adopt(self, storage: Storage) -> None:
        """If it is one: told of all that the program, or the op that overwrote it, has let go of."""
        orphan = storage.block and not storage.producer and not storage.held and storage.consumers
        if orphan and storage not in self.all:
            self.all.append(storage)
            self.young += 1

    def remove(self, storage: Storage) -> None:
        """It is forgotten."""
        if storage in self.all:
            self.all[self.all.index(storage)] = self.all[-1]
            self.all.pop()
            self.young = min(self.young, len(self.all))

    def tend(self) -> None:
        """Between ops: what a running op reads or overwrites must not change. No orphan goes meanwhile, since the records
        that read it are swept later."""
        if not self.all:
            return
        for orphan in self.all[len(self.all) - self.young :]:
            self._settle_if_cheap(orphan, SHORT)
        self.young = 0
        self.credit = min(self.credit + PER_OP, MOST)
        for _ in self.all:
            if self.credit <= 0:
                break
            seen = self._settle_if_cheap(self.all[self.turn % len(self.all)], MOST)
            self.turn += 1
            self.credit = self.credit - seen if seen > SHORT else max(self.credit - seen, 0)

    def _settle_if_cheap(self, orphan: Storage, most: int) -> int:
        """Commits what depends on it, so that it can go, if all of that is resident, and not much larger than it; or, where
        orphans are many, not larger than all of them together. Returns how many ops it looked at: with too many, it gives up."""
        dependents, seen = self.engine.lineage.held_dependents(orphan)
        if seen > most:
            return most + 1
        if any(dependent.evicted for dependent in dependents):
            return seen
        size = sum(dependent.bytes for dependent in dependents)
        orphans = sum(storage.bytes for storage in self.all)
        many = orphans > self.engine.in_use // GOOD_PART
        if size <= NOT_MUCH * orphan.bytes or (many and size <= orphans):
            for dependent in dependents:
                self.engine.commit(dependent)
        return seen
