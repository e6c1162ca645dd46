"""Addresses of a plan: found once, kept in its file, checked when it is read, and used as they
are."""

import gzip
import random
from dataclasses import replace

import pytest

import coop
from coop.plan import PlanError, graph_of, read, solve, write
from coop.plan.model.addresses import Addresses, Interval, most_at_once, overlap
from coop.plan.model.check import check_addresses
from coop.plan.running import follow, packing
from coop.plan.running.follow import planned
from coop.simulate import Player
from step_traces import transformer

TRACE = transformer(2)


@pytest.fixture(scope="module")
def plan():
    found = solve(graph_of(TRACE), 0.8, "treewidth")
    assert found.addresses is not None and len(found.addresses.intervals) > 30
    return found


@pytest.fixture
def no_solving(monkeypatch):
    def solving(*_, **__):
        raise AssertionError("addresses are solved")

    monkeypatch.setattr(follow, "assign", solving)
    monkeypatch.setattr(packing, "run_cp", solving)


def test_solve_gives_a_plan_addresses_for_all_that_is_not_tiny(plan):
    check_addresses(plan)
    assert plan.addresses.needed <= packing.room_in(plan, plan.budget)
    placed = {(i.begin, i.first) for i in plan.addresses.intervals}
    lives = packing.timeline_of(plan).intervals()
    assert placed == {(i.begin, i.first) for i in lives if i.bytes > packing.tiny()}


def test_a_file_keeps_them_and_who_follows_the_plan_solves_nothing(plan, tmp_path, no_solving):
    write(plan, path := tmp_path / "step.plan")
    known = read(path)
    assert known == plan and known.addresses == plan.addresses
    for live in (False, True):
        planned(known, plan.budget, live=live)
    assert Player(TRACE).play(plan.budget, plan=known).status == "ok"
    with coop.budget(plan.budget, plan=path):
        pass


def test_a_file_of_version_1_has_none_and_they_are_solved_when_it_is_followed(plan, tmp_path, monkeypatch):
    write(replace(plan, addresses=None), path := tmp_path / "step.plan")
    text = gzip.decompress(path.read_bytes()).decode()
    assert '"addresses"' not in text
    path.write_bytes(gzip.compress(text.replace('"version":2', '"version":1', 1).encode()))
    known = read(path)
    assert known == replace(plan, addresses=None)
    rooms = []
    monkeypatch.setattr(
        follow, "assign", lambda *a, room, **k: rooms.append(room) or packing.assign(*a, room=room, **k)
    )
    assert Player(TRACE).play(plan.budget, plan=known).status == "ok"
    assert rooms == [packing.room_in(plan, plan.budget)]


def test_they_are_solved_anew_for_a_budget_that_has_less_room_than_they_need(plan, monkeypatch):
    top = max(plan.addresses.intervals, key=lambda i: i.top)
    moved = tuple(
        replace(i, offset=plan.budget - i.bytes) if i == top else i for i in plan.addresses.intervals
    )  # nothing lies above
    high = replace(plan, addresses=Addresses(moved))
    check_addresses(high)
    asked = []
    monkeypatch.setattr(follow, "assign", lambda *a, **k: asked.append(k["room"]) or packing.assign(*a, **k))
    planned(high, plan.budget, live=False)
    assert not asked  # they were solved for that budget
    planned(high, plan.peak, live=False)
    assert asked == [packing.room_in(plan, plan.peak)]
    planned(high, 2 * plan.budget, live=False)
    assert len(asked) == 1


def moved(text, change):
    """The file with one address changed. `change`: from the lines of addresses to new ones."""
    lines = text.splitlines()
    count = int(lines[-1].split('"addresses":')[1].rstrip("}"))
    rows = [[int(part) for part in line.strip("[]").split(",")] for line in lines[-1 - count : -1]]
    rows = change(rows)
    made = [str(row).replace(" ", "") for row in rows]
    return "\n".join(
        [*lines[: -1 - count], *made, lines[-1].replace(f'"addresses":{count}', f'"addresses":{len(made)}'), ""]
    )


def one(row):
    return lambda rows: [row(*rows[0]), *rows[1:]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (one(lambda begin, value, offset: [begin, value, 1 << 50]), r"takes \d+ bytes at \d+, and the budget is \d+"),
        (one(lambda begin, value, offset: [begin, value, -1]), "not an address"),
        (one(lambda begin, value, offset: [begin, value]), "not an address"),
        (one(lambda begin, value, offset: [10**6, value, offset]), "address for value .* have no such thing in memory"),
        (one(lambda begin, value, offset: [begin, 10**6, offset]), "address for value 1000000 from step 0 on"),
        (one(lambda begin, value, offset: [10**6, -1, offset]), "address for scratch from step 1000000 on"),
        (lambda rows: [rows[0], *rows], "or it has two of them"),
        (lambda rows: [[begin, value, 0] for begin, value, _ in rows], r"at step \d+, .* at 0 and .* at 0 overlap"),
    ],
    ids=["outside", "negative", "short", "step", "value", "scratch", "twice", "overlap"],
)  # fmt: skip
def test_a_file_with_addresses_that_are_wrong_is_refused(plan, change, why, tmp_path):
    write(plan, path := tmp_path / "step.plan")
    text = moved(gzip.decompress(path.read_bytes()).decode(), change)
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(PlanError, match=rf"step\.plan.*{why}"):
        read(path)


def test_a_file_may_have_places_for_a_part_only(plan, tmp_path, no_solving):
    half = replace(plan, addresses=Addresses(plan.addresses.intervals[::2]))
    write(half, path := tmp_path / "step.plan")
    assert read(path) == half
    assert Player(TRACE).play(plan.budget, plan=half).status == "ok"


def test_addresses_of_other_steps_are_refused(plan):
    with pytest.raises(PlanError, match="its steps have no such thing in memory"):
        planned(replace(plan, steps=solve(TRACE, 1.0, "keep-all").steps), 2 * plan.budget, live=False)


@pytest.mark.parametrize("seed", range(200))
def test_overlaps_are_found_as_by_comparing_all_pairs(seed):
    chance = random.Random(seed)
    intervals = []
    for number in range(chance.randint(1, 12)):
        begin, offset = chance.randrange(20), chance.randrange(40)
        end = begin + chance.randint(1, 6)
        intervals.append(Interval(number, chance.randint(0, 8), begin, end, number, offset))

    def meet(one, other):
        in_time = one.begin < other.end and other.begin < one.end
        return in_time and max(one.offset, other.offset) < min(one.top, other.top)

    pairs = [{a.value, b.value} for i, a in enumerate(intervals) for b in intervals[:i] if meet(a, b)]
    found = overlap(intervals)
    assert (found is None) == (not pairs)
    assert found is None or {found[0].value, found[1].value} in pairs
    most, when = most_at_once(intervals)
    alive = [sum(i.bytes for i in intervals if i.begin <= at < i.end) for at in range(30)]
    assert most == max(alive) == alive[when]
