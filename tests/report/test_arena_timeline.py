"""The arena as rebuilt from events is the engine's."""

import itertools

import pytest
import torch

import coop
from coop.events import Event
from coop.plan import solve
from coop.report.rebuild import rebuild, threshold_of
from coop.report.timeline import Kind
from coop.simulate import Player
from step_traces import convolutions, transformer

PLAYERS = {"transformer": Player(transformer()), "convolutions": Player(convolutions())}


@pytest.mark.parametrize("policy", ["coop", "coop-paper", "dtr", "dte", "lru"])
@pytest.mark.parametrize("network", PLAYERS)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_arena_rebuilt_from_events_equals_the_statistics(network, policy, steps):
    run = PLAYERS[network].play(0.6, policy, steps=steps, limit=9.0, events=True, rescue=True, record_backward=False)
    seen, stats = rebuild(run.events), run.stats
    assert run.status == "ok"
    assert sum(span.bytes for span in seen.last) == stats.budget // 64 * 64 - stats.free
    assert seen.count("evict") == stats.evictions > 0
    assert seen.count("restore") == stats.rematerialisations > 0
    assert seen.count("move") == stats.moves
    assert sum(end - start for start, end in seen.recomputing) == pytest.approx(stats.recompute_seconds)
    dead = sum(span.bytes for span in seen.last if span.kind in (Kind.dead_expensive, Kind.dead_cheap))
    assert dead == stats.cached


def test_blocks_never_overlap():
    run = PLAYERS["transformer"].play(0.5, events=True)
    spans = [span for span in rebuild(run.events).spans if span.end > span.start]
    for one, other in itertools.combinations(spans, 2):
        apart = one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
        assert apart or one.end <= other.start or other.end <= one.start


def test_products_are_expensive_and_elementwise_results_cheap():
    trace = transformer()
    run = Player(trace).play(2.0, events=True, keep_dead=False)
    costs = {op.cost * 1e-9: op.name for op in trace.ops}
    threshold = threshold_of(run.events)
    for event in run.events:
        if event.kind == "record" and event.bytes > 64:
            assert (event.value / event.bytes >= threshold) == costs[event.value].startswith("mm")


def test_gradients_are_passing_sources_and_parameters_stay():
    seen = rebuild(PLAYERS["transformer"].play(0.6, events=True).events)
    kinds = {span.kind for span in seen.spans}
    assert Kind.passing in kinds
    assert {span.kind for span in seen.spans if span.start == 0 and span.end == seen.end} == {Kind.source}


def test_time_may_run_by_events():
    run = PLAYERS["convolutions"].play(0.6, events=True)
    seen = rebuild(run.events, by="events")
    assert seen.end == sum(event.kind not in ("search", "shortage") for event in run.events) + 1
    assert all(span.end > span.start for span in seen.spans)
    with pytest.raises(ValueError, match="by 'time' or by 'events', not by 'weeks'"):
        rebuild(run.events, by="weeks")


def test_events_that_do_not_begin_with_an_empty_arena_are_refused():
    with pytest.raises(ValueError, match="the events do not begin with the arena empty"):
        rebuild([Event("evict", 1.0, 7, 64, 64, 0.0)])


def test_no_events_are_an_empty_rebuild():
    seen = rebuild([])
    assert (seen.spans, seen.marks, seen.end) == ([], [], 0.0)
    assert threshold_of([]) == 0.0


def test_a_live_run_can_be_rebuilt_too():
    with coop.budget("4MiB", events=True) as memory:
        model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)], torch.nn.ReLU(inplace=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1024, 128)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        stats = memory.stats()
        seen = rebuild(memory.events())
    assert sum(span.bytes for span in seen.last) == stats.budget // 64 * 64 - stats.free
    assert seen.count("evict") == stats.evictions > 0
    assert seen.count("restore") == stats.rematerialisations
    assert seen.count("move") == stats.moves


# --- transfers and plans -------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["coop", "delta"])
@pytest.mark.parametrize("network", PLAYERS)
@pytest.mark.parametrize("by", ["time", "events"])
def test_transfers_are_transfers_and_only_ops_that_ran_again_recompute(network, policy, by):
    run = PLAYERS[network].play(0.5, policy, steps=2, limit=9.0, events=True, swap=True)
    seen, stats = rebuild(run.events, by), run.stats
    assert seen.count("restore") == stats.rematerialisations
    assert seen.count("in") == stats.swaps_in > 0
    assert seen.count("evict") + seen.count("leave") == stats.evictions
    assert (seen.transferred("out"), seen.transferred("in")) == (stats.swapped_out, stats.swapped_in)
    assert sum(span.bytes for span in seen.last) == stats.budget // 64 * 64 - stats.free
    assert all(0 <= t.start <= t.end <= seen.end and t.waiting <= t.end for t in seen.transfers)
    if by == "time":
        again = sum(end - start for start, end in seen.recomputing)
        assert again <= stats.recompute_seconds + stats.waited_seconds + 1e-12
        assert sum(end - start for start, end in seen.waiting) <= stats.waited_seconds + 1e-12


def test_a_block_is_the_storages_own_while_it_is_written():
    """What is drawn as a transfer lies on one block, and what comes back lies on a raw one."""
    run = PLAYERS["transformer"].play(0.5, steps=2, events=True, swap=True)
    seen = rebuild(run.events)
    for transfer in seen.transfers:
        inside = [
            span
            for span in seen.spans
            if span.offset < transfer.offset + transfer.bytes
            and transfer.offset < span.offset + span.bytes
            and span.start < transfer.end
            and transfer.start < span.end
        ]
        assert all(span.offset == transfer.offset and span.bytes == transfer.bytes for span in inside)
        if transfer.direction == "in":
            assert {span.kind for span in inside} <= {Kind.arriving}


def test_what_leaves_with_a_copy_is_told_from_what_is_recomputed():
    """The mark follows from how the storage comes back, if it does: the copy of an overwritten
    storage is not valid."""
    place = [Event("place", 0.0, 0, 0, 64, 0.0), Event("bind", 0.0, 1, 0, 64, 0.0), Event("record", 1.0, 1, 0, 64, 1.0)]
    out = Event("out", 2.0, 1, 0, 64, 0.5, 0.25)
    gone = [Event("evict", 3.0, 1, 0, 64, 0.0), Event("place", 4.0, 0, 64, 64, 0.0)]

    def kinds(*events):
        return [mark.kind for mark in rebuild(events).marks]

    assert kinds(*place, out, *gone, Event("in", 5.0, 1, 64, 64, 1.0)) == ["leave", "in"]
    assert kinds(*place, out, *gone, Event("restore", 5.0, 1, 64, 64, 0.0)) == ["evict", "restore"]
    assert kinds(*place, out, gone[0]) == ["leave"]
    assert kinds(*place, gone[0]) == ["evict"]
    (written,) = rebuild([*place, out]).transfers
    assert (written.start, written.waiting, written.end) == (1.5, 1.75, 2.0)


def test_a_part_of_a_run_begins_with_what_was_there():
    run = PLAYERS["transformer"].play(0.5, steps=2, events=True, swap=True)
    whole = rebuild(run.events)
    part = rebuild(run.events, since=0.3 * whole.end, until=0.6 * whole.end)
    assert (part.start, part.end) == (0.3 * whole.end, 0.6 * whole.end)
    middle = 0.45 * whole.end

    def at(seen):
        spans = [span for span in seen.spans if span.start <= middle < span.end]
        return sorted((span.offset, span.bytes, span.storage) for span in spans)

    assert at(part) == at(whole)
    assert len(part.spans) < len(whole.spans)
    assert all(part.start <= mark.at <= part.end for mark in part.marks)
    assert rebuild(run.events, "events", since=0.3 * whole.end).end == rebuild(run.events, "events").end
    with pytest.raises(ValueError, match="there is nothing: the run ends at"):
        rebuild(run.events, since=2 * whole.end)
    with pytest.raises(ValueError, match="from 2 s to 1 s there is nothing"):
        rebuild(run.events, since=2.0, until=1.0)


def test_too_many_blocks_are_refused_with_a_tip(monkeypatch):
    monkeypatch.setattr("coop.report.rebuild.MOST_SPANS", 100)
    with pytest.raises(ValueError, match=r"more than 100 blocks came and went.*--from and --to"):
        rebuild(PLAYERS["transformer"].play(0.5, events=True).events)


def test_a_plan_is_seen_when_it_is_adopted_and_when_it_is_lost():
    plan = solve(PLAYERS["transformer"].trace, 0.8, "treewidth")
    run = PLAYERS["transformer"].play(1.0, plan=plan, events=True)
    assert [kind for kind, _ in rebuild(run.events).plans][:1] == ["plan_adopted"]
    lost = Event("plan_lost", 1.0, 0, 0, 0, 17.0)
    assert rebuild([*run.events[:1], lost]).plans[-1] == ("plan_lost", 1.0)
