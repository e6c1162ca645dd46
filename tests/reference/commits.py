"""What the engine may commit between ops. When it does, and after how much looking, is its own choice.

Part of the specification in play.py. A commit makes a source of what could be recomputed, and so cuts a lineage. There are two
reasons. An orphan is a source that nobody holds and recorded ops read: a gradient once the optimizer has read it, or a batch
of which only a prediction is left. It can go when all that depends on it is committed. A trail is the ops behind a storage through
storages that nobody holds: a state that is carried from step to step leaves one that is as long as the program.
"""

from typing import TYPE_CHECKING

from reference.figures import in_use
from reference.lineage import Storage

if TYPE_CHECKING:
    from reference.engine import Engine

NOT_MUCH = 2
"""Dependents up to so many times as large as the orphan may take its place."""
GOOD_PART = 8
"""Orphans are many above this part of all that is in use: then their dependents may be as large as all of them."""
RECORD, SHORT, LONG = 1024, 64, 1024
"""A trail may have an op for so many bytes of its storage; but always so many ops, and never more than so many."""


def follow_commit(engine: "Engine") -> None:
    """The next event is a commit."""
    for storage in committed_together(engine):
        engine.commit(storage)


def committed_together(engine: "Engine") -> list[Storage]:
    """All that depends on an orphan, in one go; or one storage with a long trail."""
    told, lineage = engine.told, engine.lineage
    orphans = [source for source in lineage.storages if not source.producer and not source.held and source.consumers]
    for orphan in orphans:
        dependents = lineage.held_dependents(orphan)
        numbers = [getattr(told.next(at), "storage", 0) for at in range(len(dependents))]
        if numbers == [dependent.number for dependent in dependents] and may_go(engine, orphan, dependents, orphans):
            return dependents
    storage = engine.storage_told()
    if storage.evicted or not storage.held or not storage.producer:
        told.refuse("what is committed is resident, held and recomputable")
    if len(lineage.trail(storage)) <= min(max(storage.bytes // RECORD, SHORT), LONG):
        told.refuse("it is not among what an orphan can be given up for, and its trail is short")
    return [storage]


def may_go(engine: "Engine", orphan: Storage, dependents: list[Storage], orphans: list[Storage]) -> bool:
    """If all that depends on it is resident, and not much larger than it; or, where orphans are many, than all of them."""
    size, most = sum(dependent.bytes for dependent in dependents), sum(other.bytes for other in orphans)
    small = size <= NOT_MUCH * orphan.bytes or (most > in_use(engine) // GOOD_PART and size <= most)
    return bool(dependents) and small and not any(dependent.evicted for dependent in dependents)
