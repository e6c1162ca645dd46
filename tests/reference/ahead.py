"""What the engine does between two ops. The reference follows it, and checks that it is legal.

Part of the specification in play.py. The engine commits (commits.py), finishes transfers that are
done, writes ahead what may have to leave, and reads ahead what may be used. These are guesses. The
reference does not judge which of them the engine makes, or when.
"""

from typing import TYPE_CHECKING

from coop.events import Event
from reference.arena import FREE, LOW, Block
from reference.commits import follow_commit
from reference.figures import note_use
from reference.lineage import Storage
from reference.policy import Run, SearchContext, choose, moves_aside

if TYPE_CHECKING:
    from reference.engine import Engine


def follow(engine: "Engine", cost: float) -> None:
    """Follows the events after an op that took `cost` seconds, up to the last."""
    stream = engine.stream
    while stream.kind() != "ran":
        match stream.kind():
            case "commit":
                follow_commit(engine)
            case "out" | "in" | "free":
                engine.swap.finish_done()
            case "write":
                write_ahead(engine)
            case "place":
                read_ahead(engine, None)
            case "price":
                read_ahead_with_room_made(engine)
            case _:
                stream.refuse("nothing of the kind follows from an op")
    engine.swap.check_none_is_done()
    stream.expect(Event("ran", engine.now, 0, 0, 0, cost))


def write_ahead(engine: "Engine") -> None:
    """Only a storage that could leave, is large enough, has no copy, and is not droppable."""
    storage, stream = engine.next_storage(), engine.stream
    if not engine.swap.on or storage.bytes < engine.options.swap_least:
        stream.refuse("it does not leave with its bytes")
    if not storage.movable or storage.pins or storage.wanted:
        stream.refuse("what is written ahead is resident, and nobody keeps it where it is")
    if storage.page:
        stream.refuse("a copy of it is outside")
    if storage.droppable:
        stream.refuse("nobody will ask for it")
    engine.swap.begin_out(storage)


def read_ahead(engine: "Engine", room: Block | None) -> None:
    """Reads a storage that is in the tier and not droppable, into room that was made for it, or
    into a hole."""
    stream = engine.stream
    if stream.kind(1) != "read":
        stream.refuse("room is taken between ops, and nothing is read into it")
    storage = engine.next_storage(1)
    if not waits(storage):
        stream.refuse(f"storage {storage.number} is not outside, or nobody will ask for it")
    if room and engine.arena.round(storage.bytes) != room.bytes:
        stream.refuse(f"room was made for {room.bytes} bytes")
    block = room or engine.arena.allocate(storage.bytes, LOW)
    if not block:
        stream.refuse("there is no hole for it")
    engine.note("place", None, block)
    storage.fetched = True
    engine.swap.begin_in(storage, block)
    note_use(engine)


def waits(storage: Storage) -> bool:
    return storage.absent and storage.page and not storage.in_transit and not storage.droppable


def read_ahead_with_room_made(engine: "Engine") -> None:
    """If there is no hole, the policy is asked. The engine may still decide not to read."""
    stream, arena, context = engine.stream, engine.arena, engine.context(LOW)
    header = stream.next()
    needed = header.bytes if header else 0
    if arena.largest_free >= needed:
        stream.refuse("there is a hole for it")
    if not any(waits(storage) and arena.round(storage.bytes) == needed for storage in engine.lineage.storages):
        stream.refuse("nothing of that size is outside")
    engine.swap.read_prices(context, needed)
    run = choose(context, needed)
    if stream.kind() != "evict":
        return
    if not run or not all(leaves_at_once(context, block) for block in run) or gain(engine, run) < needed:
        stream.refuse("for what is read ahead, only what can leave at once does, and only if that is enough")
    hole = engine.clear(run, context)
    read_ahead(engine, arena.take(hole, needed, LOW))


def leaves_at_once(context: SearchContext, block: Block) -> bool:
    there = block.storage
    return not there or ((there.droppable or there.page) and not moves_aside(context, block))


def gain(engine: "Engine", run: Run) -> int:
    beside = (engine.arena.below(run[0]), engine.arena.above(run[-1]))
    return sum(block.bytes for block in run) + sum(b.bytes for b in beside if b and b.state == FREE)
