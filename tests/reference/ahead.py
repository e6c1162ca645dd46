"""What the engine does of its own accord between two ops: the reference follows it, and checks that it is legal.

Part of the specification in play.py. It commits (commits.py), notices which transfers are done, writes ahead what may have to
leave, and reads ahead what may be used. All of these are guesses: which of them it makes, and when, the reference does not ask.
"""

from typing import TYPE_CHECKING

from coop.events import Event
from reference.arena import FREE, LOW, Block
from reference.commits import follow_commit
from reference.figures import note_use
from reference.lineage import Storage
from reference.policy import Run, Scene, choose, stays

if TYPE_CHECKING:
    from reference.engine import Engine


def follow(engine: "Engine", cost: float) -> None:
    """To the end of what follows from an op that took so long."""
    told = engine.told
    while told.kind() != "ran":
        match told.kind():
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
                told.refuse("nothing of the kind follows from an op")
    engine.swap.check_none_is_done()
    told.expect(Event("ran", engine.now, 0, 0, 0, cost))


def write_ahead(engine: "Engine") -> None:
    """What could leave, is large enough, has no copy, and somebody needs."""
    storage, told = engine.storage_told(), engine.told
    if not engine.swap.on or storage.bytes < engine.options.swap_least:
        told.refuse("it does not leave with its bytes")
    if not storage.movable or storage.pins or storage.wanted:
        told.refuse("what is written ahead is resident, and nobody keeps it where it is")
    if storage.page:
        told.refuse("a copy of it is outside")
    if storage.spare:
        told.refuse("nobody will ask for it")
    engine.swap.begin_out(storage)


def read_ahead(engine: "Engine", room: Block | None) -> None:
    """What is outside, and somebody needs: into room that was made for it, or a hole."""
    told = engine.told
    if told.kind(1) != "read":
        told.refuse("room is taken between ops, and nothing is read into it")
    storage = engine.storage_told(1)
    if not waits(storage):
        told.refuse(f"storage {storage.number} is not outside, or nobody will ask for it")
    if room and engine.arena.round(storage.bytes) != room.bytes:
        told.refuse(f"room was made for {room.bytes} bytes")
    block = room or engine.arena.allocate(storage.bytes, LOW)
    if not block:
        told.refuse("there is no hole for it")
    engine.note("place", None, block)
    storage.fetched = True
    engine.swap.begin_in(storage, block)
    note_use(engine)


def waits(storage: Storage) -> bool:
    return storage.evicted and storage.page and not storage.in_transit and not storage.spare


def read_ahead_with_room_made(engine: "Engine") -> None:
    """Where there is no hole, the policy is asked. The engine may leave it at that."""
    told, arena, scene = engine.told, engine.arena, engine.scene(LOW)
    header = told.next()
    needed = header.bytes if header else 0
    if arena.largest_free >= needed:
        told.refuse("there is a hole for it")
    if not any(waits(storage) and arena.round(storage.bytes) == needed for storage in engine.lineage.storages):
        told.refuse("nothing of that size is outside")
    engine.swap.read_prices(scene, needed)
    run = choose(scene, needed)
    if told.kind() != "evict":
        return
    if not run or not all(leaves_at_once(scene, block) for block in run) or gain(engine, run) < needed:
        told.refuse("for what is read ahead, only what can leave at once does, and only if that is enough")
    hole = engine.clear(run, scene)
    read_ahead(engine, arena.take(hole, needed, LOW))


def leaves_at_once(scene: Scene, block: Block) -> bool:
    there = block.storage
    return not there or ((there.spare or there.page) and not stays(scene, block))


def gain(engine: "Engine", run: Run) -> int:
    beside = (engine.arena.below(run[0]), engine.arena.above(run[-1]))
    return sum(block.bytes for block in run) + sum(b.bytes for b in beside if b and b.state == FREE)
