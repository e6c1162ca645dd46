"""The reference refuses wrong events. Right events are made wrong here, one at a time."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import reference
from coop.events import Event
from coop.simulate import Player
from coop.trace.trace import Op, Output, Release, Source, Trace
from random_steps import random_trace

Events = list[Event]
MICROSECOND = 1000
"""What an op costs, in nanoseconds."""
SMALL = 128
"""Bytes that are not worth a transfer."""


class Game:
    """A trace, and what the engine did."""

    def __init__(self, instructions: Sequence[Any], budget: int, policy: str = "coop", **options: Any) -> None:
        self.player = Player(Trace(list(instructions)), 64)
        self.budget, self.policy, self.options = budget, policy, options
        result = self.player.play(budget, policy, events=True, checks=2, **options)
        self.status = result.status
        self.events = list(result.events)
        self.judge(self.events)

    def judge(self, events: Events) -> None:
        peak = self.player.peak
        reference.play(self.player.trace, self.budget, self.policy, events, peak, alignment=64, **self.options)

    def refuses(self, events: Events, why: str) -> None:
        assert events != self.events
        with pytest.raises(reference.RefereeError, match=why):
            self.judge(events)

    def at(self, kind: str, storage: int | None = None, after: int = 0) -> int:
        """Where the first of these events is."""
        return next(
            at
            for at, event in enumerate(self.events)
            if at >= after and event.kind == kind and storage in (None, event.storage)
        )

    def changed(self, at: int, **fields: Any) -> Events:
        return [*self.events[:at], dataclasses.replace(self.events[at], **fields), *self.events[at + 1 :]]

    def with_more(self, at: int, *more: tuple[str, int]) -> Events:
        """Events of these storages, before another event. Offsets and times are those of the
        stream."""
        new = []
        for kind, storage in more:
            known = [event for event in self.events[:at] if event.storage == storage and event.bytes]
            place = known[-1] if known else self.events[at]
            new.append(Event(kind, self.events[at].time, storage, place.offset, place.bytes, 0.0))
        return [*self.events[:at], *new, *self.events[at:]]

    def without(self, *gone: int) -> Events:
        return [event for at, event in enumerate(self.events) if at not in gone]

    def last_ran(self) -> int:
        return max(at for at, event in enumerate(self.events) if event.kind == "ran")


def op(inputs: tuple[int, ...], tensor: int, size: int, cost: int = MICROSECOND) -> Op:
    return Op("op", inputs, (Output(tensor, size),), cost)


# --- commits -----------------------------------------------------------------------------------------------------------


def orphan(size: int, held: bool = False) -> Game:
    """Tensor 0 is storage 1, and is read by the op that makes storage 2."""
    program = [Source(0, 1024), op((0,), 1, size), *([] if held else [Release(0)]), op((), 2, 512)]
    return Game(program, 65536)


def test_a_commit_of_what_is_no_orphans_dependent_is_refused() -> None:
    game = orphan(1024, held=True)
    game.refuses(game.with_more(game.last_ran(), ("commit", 2)), "not among what an orphan")


def test_a_commit_for_an_orphan_that_is_much_smaller_is_refused() -> None:
    game = Game([Source(0, 1024), Source(1, 30_000), op((0,), 2, 4096), Release(0), op((), 3, 512)], 65536)
    game.refuses(game.with_more(game.last_ran(), ("commit", 3)), "not among what an orphan")


def test_a_commit_of_a_source_is_refused() -> None:
    game = orphan(1024)
    game.refuses(game.with_more(game.last_ran(), ("commit", 1)), "resident, held and recomputable")


def test_a_commit_of_what_nobody_knows_is_refused() -> None:
    game = orphan(1024)
    game.refuses(game.with_more(game.last_ran(), ("commit", 99)), "no such storage")


def test_one_of_two_dependents_of_an_orphan_is_not_committed_alone() -> None:
    game = Game([Source(0, 2048), op((0,), 1, 1024), op((0,), 2, 1024), Release(0), op((), 3, 512)], 65536)
    commits = [at for at, event in enumerate(game.events) if event.kind == "commit"]
    assert len(commits) == 2
    game.refuses(game.without(commits[1]), "not among what an orphan")


def test_a_commit_that_the_engine_leaves_out_is_its_own_choice() -> None:
    """Until the orphan is swept and forgotten."""
    game = orphan(1024)
    freed = game.at("free", 1)
    game.judge(game.without(game.at("commit", 2), freed))


# --- the choice of what leaves -----------------------------------------------------------------------------------------


def three_results(**options: Any) -> Game:
    """Storage 1 is cheap to recompute, 2 and 3 are expensive. One has to leave."""
    costs = (1, 1000, 1000)
    program = [op((), number, 1024, cost * MICROSECOND) for number, cost in enumerate(costs)]
    return Game([*program, op((), 3, 1024), op((1, 2), 4, 64)], 3072 + 64, **options)


@pytest.mark.parametrize("policy", ["coop", "dtr"])
def test_a_window_that_is_not_the_cheapest_is_refused(policy: str) -> None:
    game = three_results(policy=policy)
    at = game.at("evict")
    assert game.events[at].storage == 1
    other = game.events[game.at("bind", 2)]
    game.refuses(game.changed(at, storage=2, offset=other.offset), "reference  Event.kind='evict'.* storage=1")


def swapping(policy: str = "coop", **options: Any) -> Game:
    """Sources 1 to 3, each in turn, where two have room beside a small one. 4,096 bytes take 4.096
    us on the link."""
    sources = [Source(number, 4096, "parameter") for number in range(3)] + [Source(3, SMALL, "parameter")]
    reads = [Op("read", (number,), (Output(4 + at, 64),), 50 * MICROSECOND) for at, number in enumerate((0, 1, 2) * 3)]
    kept = [part for read in reads for part in (read, Release(read.outputs[0].tensor))]
    tier = {"swap": True, "swap_in": 1e9, "swap_out": 1e9, "swap_least": 1024, "foresee": False} | options
    return Game([*sources, *kept], 2 * 4096 + SMALL + 128, policy, **tier)


def test_a_window_that_is_not_the_cheapest_by_the_prices_told_is_refused() -> None:
    """Of two equal storages the lower one has left. Its price is changed to the higher one, which
    is legal by itself."""
    game = swapping()
    first, second = (game.at("price", storage) for storage in (1, 2))
    assert game.events[first].value == game.events[second].value and game.events[game.at("evict")].storage == 1
    dearer = 1.1 * game.events[first].value
    game.refuses(game.changed(first, value=dearer), "storage=1.*\n  reference  Event.kind='write'.* storage=2")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"value": 1.0}, "costs between"),
        ({"value": 0.0}, "costs between"),
        ({"waited": 12.0}, "it has not been used for"),
        ({"kind": "idle", "value": 0.0}, "it can leave with its bytes"),
        ({"storage": 77}, "the price of storage . has to follow"),
    ],
)
def test_a_price_out_of_bounds_is_refused(fields: dict[str, Any], why: str) -> None:
    game = swapping()
    at = next(at for at, event in enumerate(game.events) if event.kind == "price" and event.storage)
    game.refuses(game.changed(at, **fields), why)


def test_a_price_of_what_is_too_small_to_swap_is_refused() -> None:
    game = swapping()
    at = game.at("idle")
    game.refuses(game.changed(at, kind="price", value=1e-7), "too small")


# --- transfers ---------------------------------------------------------------------------------------------------------


def test_a_source_that_leaves_without_a_copy_is_refused() -> None:
    game = swapping()
    write = game.at("write")
    storage = game.events[write].storage
    out = game.at("out", storage)
    game.refuses(game.without(write, out), "engine     Event.kind='evict'.*\n  reference  Event.kind='write'")


@pytest.mark.parametrize("kind", ["out", "in"])
@pytest.mark.parametrize("field", ["value", "waited"])
def test_a_transfer_at_another_speed_than_the_links_is_refused(kind: str, field: str) -> None:
    game = swapping()
    at = game.at(kind)
    game.refuses(game.changed(at, **{field: 0.5 * game.events[at].value}), f"kind='{kind}'")


def ahead() -> Game:
    """After one step, the engine can write and read ahead of the program."""
    return swapping(foresee=True, steps=4)


def between_ops(game: Game, kind: str, wanted: Callable[[Event], bool] = lambda _: True) -> int:
    """The position of an event of this kind that is the engine's own choice: between it and the end
    of the op are only such events, and those of searches for room."""
    own = {"write", "read", "place", "out", "in", "commit", "evict", "price", "idle", "free"}
    for at, event in enumerate(game.events):
        if event.kind == kind and event.waited == 0 and wanted(event):
            rest = next(e.kind for e in game.events[at:] if e.kind not in own)
            if rest == "ran":
                return at
    raise AssertionError(f"no {kind} between ops")


def test_writes_and_reads_ahead_are_found_right() -> None:
    game = ahead()
    assert between_ops(game, "write") and between_ops(game, "read")


def test_a_write_of_what_has_a_copy_is_refused() -> None:
    game = swapping()
    game.refuses(
        game.with_more(game.at("ran", after=game.at("in")), ("write", copied(game))), "a copy of it is outside"
    )


def copied(game: Game) -> int:
    return game.events[game.at("in")].storage


def outside(game: Game, at: int) -> int:
    """The storage that left last."""
    return [event for event in game.events[:at] if event.kind == "evict"][-1].storage


def test_a_write_of_what_is_not_there_is_refused() -> None:
    game = swapping()
    at = game.at("ran")
    game.refuses(game.with_more(at, ("write", outside(game, at))), "is resident")


def test_a_write_of_what_is_too_small_is_refused() -> None:
    game = swapping()
    small = game.events[game.at("idle")].storage
    game.refuses(game.with_more(game.at("ran"), ("write", small)), "does not leave with its bytes")


def test_a_write_without_a_tier_is_refused() -> None:
    game = orphan(1024, held=True)
    game.refuses(game.with_more(game.last_ran(), ("write", 2)), "does not leave with its bytes")


def test_a_read_of_what_is_resident_is_refused() -> None:
    game = swapping()
    at = game.at("ran")
    game.refuses(game.with_more(at, ("place", 0), ("read", 1)), "is not outside")


def test_a_read_without_a_hole_is_refused() -> None:
    game = swapping()
    at = game.at("ran")
    game.refuses(game.with_more(at, ("place", 0), ("read", outside(game, at))), "no hole for it")


def test_room_taken_between_ops_for_nothing_is_refused() -> None:
    game = swapping()
    game.refuses(game.with_more(game.at("ran"), ("place", 0)), "nothing is read into it")


def test_a_transfer_that_ends_before_its_time_is_refused() -> None:
    """The link is busy until after the op with which the transfer began."""
    game = ahead()
    at = between_ops(game, "write")
    storage = game.events[at].storage
    early = game.with_more(at + 1, ("out", storage))
    game.refuses(early, "that transfer is not done")


def test_a_transfer_that_is_done_and_not_told_is_refused() -> None:
    game = ahead()
    at = between_ops(game, "out")
    game.refuses(game.without(at), "is done, and no event says so")


def test_the_end_of_a_transfer_that_never_began_is_refused() -> None:
    game = ahead()
    out = between_ops(game, "out")
    write = max(at for at in range(out) if game.events[at].kind == "write")
    game.refuses(game.without(write), "no transfer under way ends so")


def test_what_leaves_between_ops_is_what_can_leave_at_once() -> None:
    game = swapping()
    game.refuses(game.with_more(game.at("ran"), ("evict", 1)), "nothing of the kind follows")


def look_for_room(game: Game) -> tuple[int, int]:
    """The positions where the engine searches for room to read into, and where a storage leaves for
    that."""
    for at, event in enumerate(game.events):
        if event.kind == "price" and not event.storage:
            follows = next(i for i in range(at + 1, len(game.events)) if game.events[i].kind not in ("price", "idle"))
            if game.events[follows].kind == "evict":
                return at, follows
    raise AssertionError("nothing leaves for what is read ahead")


def test_a_look_for_room_between_ops_has_to_be_for_something_outside() -> None:
    game = ahead()
    at, _ = look_for_room(game)
    size = game.events[at].bytes
    game.refuses(game.changed(at, bytes=size + 64), "nothing of that size is outside")
    game.refuses(game.changed(at, bytes=64), "there is a hole for it")


def test_what_is_read_ahead_goes_where_room_was_made() -> None:
    game = ahead()
    _, evict = look_for_room(game)
    place = game.at("place", after=evict)
    assert game.events[place + 1].kind == "read"
    game.refuses(game.changed(place, offset=game.events[place].offset + 64), "reference  Event.kind='place'")
    game.refuses(game.without(place), "nothing is read into it")
    game.refuses(game.changed(evict, storage=game.events[evict].storage % 3 + 1), "reference  Event.kind='evict'")


# --- on random traces --------------------------------------------------------------------------------------------------

CHOSEN = {"commit", "write", "price", "idle"}
"""Kinds of events that may be missing, or different, in another legal run."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_event_that_does_not_follow_is_refused(seed: int) -> None:
    """The event is left out, or gets another storage, offset or time."""
    rng = random.Random(seed)
    trace = random_trace(rng)
    tier = {"swap": True, "swap_in": 1e9, "swap_out": 1e9, "swap_least": 1} if seed % 2 else {}
    peak = Player(trace, 64).peak
    game = Game(trace.instructions, int(0.8 * peak), limit=1e9, steps=2, **tier)
    for at in rng.sample(range(len(game.events)), min(len(game.events), 25)):
        event = game.events[at]
        if event.kind not in CHOSEN:
            game.refuses(game.without(at), "event")
            game.refuses(game.changed(at, storage=event.storage + 1), "event")
            game.refuses(game.changed(at, offset=event.offset + 64), "event")
        game.refuses(game.changed(at, time=event.time + 1.0), "event")


# --- the end -----------------------------------------------------------------------------------------------------------


def test_events_that_are_missing_or_left_over_are_refused() -> None:
    game = three_results()
    game.refuses(game.events[:-1], "event .*None")
    game.refuses([*game.events, game.events[-1]], "nothing has to follow")
