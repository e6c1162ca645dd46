"""What the engine may commit between ops. The engine chooses when, and how long it searches.

Part of the specification in play.py. A commit makes a recomputable storage a source, and so cuts a
lineage. There are two reasons. An orphan is a source that nobody holds and recorded ops read: a
gradient that the optimizer has read, or a batch of which only a prediction is left. It can be
forgotten when all that depends on it is committed. A trail is the ops behind a storage through
storages that nobody holds. The trail of a state that is carried from step to step becomes as long
as the program.
"""

from typing import TYPE_CHECKING

from reference.figures import in_use
from reference.lineage import Storage

if TYPE_CHECKING:
    from reference.engine import Engine

NOT_MUCH = 2
"""Dependents may be committed if they are at most this many times as large as the orphan."""
GOOD_PART = 8
"""There are many orphans if they are more than this part of the bytes in use. Then the dependents
of one may be as large as all orphans together."""
RECORD, SHORT, LONG = 1024, 64, 1024
"""A trail may have one op for each RECORD bytes of its storage, but always SHORT ops, and never
more than LONG."""


def follow_commit(engine: "Engine") -> None:
    """The next event is a commit."""
    for storage in committed_together(engine):
        engine.commit(storage)


def committed_together(engine: "Engine") -> list[Storage]:
    """All that depends on one orphan, or one storage with a long trail."""
    stream, lineage = engine.stream, engine.lineage
    orphans = [source for source in lineage.storages if not source.producer and not source.held and source.consumers]
    for orphan in orphans:
        dependents = lineage.held_dependents(orphan)
        numbers = [getattr(stream.next(at), "storage", 0) for at in range(len(dependents))]
        if numbers == [dependent.number for dependent in dependents] and may_go(engine, orphan, dependents, orphans):
            return dependents
    storage = engine.next_storage()
    if storage.absent or not storage.held or not storage.producer:
        stream.refuse("what is committed is resident, held and recomputable")
    if len(lineage.trail(storage)) <= min(max(storage.bytes // RECORD, SHORT), LONG):
        stream.refuse("it is not among what an orphan can be given up for, and its trail is short")
    return [storage]


def may_go(engine: "Engine", orphan: Storage, dependents: list[Storage], orphans: list[Storage]) -> bool:
    """Whether all that depends on the orphan is resident and not much larger than it. Where there
    are many orphans, not larger than all of them."""
    size, most = sum(dependent.bytes for dependent in dependents), sum(other.bytes for other in orphans)
    small = size <= NOT_MUCH * orphan.bytes or (most > in_use(engine) // GOOD_PART and size <= most)
    return bool(dependents) and small and not any(dependent.absent for dependent in dependents)
