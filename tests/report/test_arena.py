"""The arena as rebuilt from events is the engine's."""

import itertools

import pytest
import torch

import coop
from coop.events import Event
from coop.report.arena import Kind, history, threshold_of
from coop.simulate import Player
from step_traces import convolutions, transformer

PLAYERS = {"transformer": Player(transformer()), "convolutions": Player(convolutions())}


@pytest.mark.parametrize("policy", ["coop", "coop-paper", "dtr", "dte", "lru"])
@pytest.mark.parametrize("network", PLAYERS)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_arena_rebuilt_from_events_equals_the_statistics(network, policy, steps):
    run = PLAYERS[network].play(0.6, policy, steps=steps, limit=9.0, events=True, rescue=True, record_backward=False)
    seen, stats = history(run.events), run.stats
    assert run.status == "ok"
    assert sum(span.bytes for span in seen.last) == stats.budget // 64 * 64 - stats.free
    assert seen.count("evict") == stats.evictions > 0
    assert seen.count("restore") == stats.rematerialisations > 0
    assert seen.count("move") == stats.moves
    assert sum(end - start for start, end in seen.recomputing) == pytest.approx(stats.recompute_seconds)
    dead = sum(span.bytes for span in seen.last if span.kind in (Kind.dead_dear, Kind.dead_cheap))
    assert dead == stats.cached


def test_blocks_never_overlap():
    run = PLAYERS["transformer"].play(0.5, events=True)
    spans = [span for span in history(run.events).spans if span.end > span.start]
    for one, other in itertools.combinations(spans, 2):
        apart = one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
        assert apart or one.end <= other.start or other.end <= one.start


def test_products_are_dear_and_elementwise_results_cheap():
    trace = transformer()
    run = Player(trace).play(2.0, events=True, keep_dead=False)
    costs = {op.cost * 1e-9: op.name for op in trace.ops}
    threshold = threshold_of(run.events)
    for event in run.events:
        if event.kind == "record" and event.bytes > 64:
            assert (event.value / event.bytes >= threshold) == costs[event.value].startswith("mm")


def test_gradients_are_passing_sources_and_parameters_stay():
    seen = history(PLAYERS["transformer"].play(0.6, events=True).events)
    kinds = {span.kind for span in seen.spans}
    assert Kind.passing in kinds
    assert {span.kind for span in seen.spans if span.start == 0 and span.end == seen.end} == {Kind.source}


def test_time_may_run_by_events():
    run = PLAYERS["convolutions"].play(0.6, events=True)
    seen = history(run.events, by="events")
    assert seen.end == sum(event.kind not in ("search", "shortage") for event in run.events) + 1
    assert all(span.end > span.start for span in seen.spans)
    with pytest.raises(ValueError, match="by 'time' or by 'events', not by 'weeks'"):
        history(run.events, by="weeks")


def test_events_that_do_not_begin_with_an_empty_arena_are_refused():
    with pytest.raises(ValueError, match="the events do not begin with the arena empty"):
        history([Event("evict", 1.0, 7, 64, 64, 0.0)])


def test_no_events_are_an_empty_history():
    seen = history([])
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
        seen = history(memory.events())
    assert sum(span.bytes for span in seen.last) == stats.budget // 64 * 64 - stats.free
    assert seen.count("evict") == stats.evictions > 0
    assert seen.count("restore") == stats.rematerialisations
    assert seen.count("move") == stats.moves
