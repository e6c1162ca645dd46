"""The reference's trails: the recorded ops behind a storage through storages that nobody holds.

Part of the specification in reference.py. A state that is carried from step to step leaves a trail as long as the program:
it is cut by committing a storage whose trail is too long for its size.
"""

from typing import TYPE_CHECKING

from reference.lineage import Storage

if TYPE_CHECKING:
    from reference.engine import Engine

RECORD = 1024
"""Bytes outside that a recorded op takes, about: a trail may take no more than its storage."""
SHORT = 64
"""No trail is too long up to here."""
LONG = 1024
"""Every trail is too long above this."""
OLD = 4096
"""Ops recorded since a trail began: a younger one is left alone, since it may end by itself."""
REACH = 64
"""Readers that the death of a storage is told to."""
PER_OP = 8
"""Ops that may be counted with each op that runs."""
MOST = 4096
"""Of these, as many may be saved up."""


class Trails:
    """Each op knows the oldest op behind it, as far as it was told. A held storage with an old trail is counted
    after the next op, if it is resident then and there is credit; if not, when it is considered again."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.to_count: list[Storage] = []
        self.credit = 0

    def died(self, storage: Storage) -> None:
        """What was made from it has its trail from now on. Breadth first, the newest readers first."""
        if not storage.producer:
            return
        oldest = storage.producer.oldest
        seen = 0
        dead = [storage]
        for one in dead:  # and those that are added meanwhile
            for op in one.consumers:
                if seen == REACH:
                    return
                seen += 1
                if op.oldest > oldest:
                    op.oldest = oldest
                    for output in op.made():
                        if output.held:
                            self.consider(output)
                        else:
                            dead.append(output)

    def consider(self, storage: Storage) -> None:
        """Its trail is longer than it was, or it has come back."""
        op = storage.producer
        if op and storage not in self.to_count and op.number - op.oldest >= OLD:
            self.to_count.append(storage)

    def remove(self, storage: Storage) -> None:
        """It is forgotten."""
        if storage in self.to_count:
            self.to_count.remove(storage)

    def tend(self) -> None:
        """Between ops."""
        self.credit = min(self.credit + PER_OP, MOST)
        for storage in self.to_count:
            if self.credit > 0 and storage.held and not storage.evicted:
                count = min(len(self.engine.lineage.trail(storage)), longest(storage) + 1)
                self.credit -= count
                if count > longest(storage):
                    self.engine.commit(storage)
        self.to_count.clear()


def longest(storage: Storage) -> int:
    """Ops that may lie behind it."""
    return max(SHORT, min(storage.bytes // RECORD, LONG))
