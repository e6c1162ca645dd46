"""moccasin: legal, never better than the optimum, and optimal once a value may have enough
intervals."""

import random

import pytest
from graphs import chain, in_place, layered, small
from oracle import cheapest

from coop.plan.exact import moccasin as module
from coop.plan.exact.moccasin import HOST, moccasin
from coop.plan.model.check import check
from coop.plan.model.graph import from_trace, make
from coop.plan.model.plan import PlanError, floor
from coop.plan.model.schedule import peak_of
from coop.plan.search.search import Search
from coop.trace.paging import Paging
from random_traces import build
from step_traces import convolutions, transformer


def planned(graph, budget, seconds=5.0, **options):
    search = Search(graph, budget, seconds)
    moccasin(search, **options)
    plan = search.plan("moccasin")
    assert check(plan, graph, paging=search.paging).duration == plan.duration
    return plan


def budgets(graph, paging=False):
    lowest, peak = floor(graph, paging=paging)[0], peak_of(graph)
    return sorted({lowest, (lowest + peak) // 2, peak})


@pytest.mark.parametrize("seed", range(4))
def test_with_enough_intervals_it_is_exact_and_with_two_never_better(seed):
    graph = small(seed)
    for budget in budgets(graph):
        best = cheapest(graph, budget)
        if best is None:
            with pytest.raises(PlanError, match="found no plan"):
                planned(graph, budget, intervals=8)
            continue
        plan = planned(graph, budget, intervals=8)
        assert plan.duration == best
        assert (
            plan.status == "optimal" or plan.about["optimal"] == "among plans with at most 8 intervals for each value"
        )
        try:
            assert planned(graph, budget).duration >= best
        except PlanError as error:
            assert "at most 2 intervals" in str(error)


def test_checkmates_chain_of_eight_layers_in_four_units():
    plan = planned(chain(8), 4, seconds=20, intervals=4)
    assert plan.duration == plan.about["model_bound"] == 26
    assert plan.bound == 17 and plan.status == "feasible"  # the model says nothing of plans with more intervals


@pytest.mark.parametrize(
    ("trace", "paging"), [(transformer(3), None), (convolutions(6), True)], ids=["transformer", "convolutions"]
)
def test_training_steps(trace, paging):
    graph = from_trace(trace)
    plan = planned(graph, int(0.75 * peak_of(graph)), seconds=2, paging=paging)
    assert 0 < plan.increase < 0.25


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("paging", [None, True])
def test_random_steps(seed, paging):
    graph = from_trace(build(random.Random(seed).randbytes(160)))
    if not graph.nodes:
        return
    for budget in budgets(graph, paging=bool(paging)):
        try:
            planned(graph, budget, seconds=1, paging=paging, intervals=3)
        except PlanError as error:
            assert "found no plan" in str(error)


def test_a_hundred_nodes_are_better_than_the_first_plan_and_offered_one_by_one():
    graph = layered(100, 240, 0)
    budget = int(0.9 * peak_of(graph))
    search, heard = Search(graph, budget, 2), []
    offer = search.offer_steps
    search.offer_steps = lambda steps: offer(steps) and heard.append(search.duration)
    moccasin(search)
    assert len(heard) > 1 and heard == sorted(heard, reverse=True)
    assert search.plan("moccasin").duration == heard[-1] < heard[0]


def test_memory_comes_first_if_there_is_no_plan_to_start_from(monkeypatch):
    def fails(graph, budget):
        raise PlanError("no")

    monkeypatch.setattr(module, "greedy", fails)
    graph = layered(30, 75, 0)
    assert 0 < planned(graph, int(0.8 * peak_of(graph)), seconds=3).increase < 0.5


def test_nodes_that_make_nothing_are_not_run_again():
    graph = in_place(4)
    budget = (floor(graph)[0] + peak_of(graph)) // 2
    assert graph.nodes[-1].outputs == () and graph.repeatable(len(graph.nodes) - 1, len(graph.nodes))
    assert planned(graph, budget).duration == cheapest(graph, budget)


def test_everything_stays_if_it_fits():
    plan = planned(chain(8), 100, seconds=5)
    assert plan.status == "optimal" and plan.increase == 0 and plan.sequence() == list(range(17))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", [None, 256])
def test_with_paging_too(seed, capacity):
    graph = small(seed)
    paging = Paging(1e-9, 100e9, 1e-9, 200e9, capacity=capacity)
    for budget in budgets(graph, paging=True)[:-1]:
        best = cheapest(graph, budget, paging)
        if best is None:
            with pytest.raises(PlanError, match="found no plan"):
                planned(graph, budget, intervals=6, paging=paging)
        else:
            assert planned(graph, budget, intervals=6, paging=paging).duration == best


@pytest.mark.parametrize(("capacity", "duration"), [(64, 1003 + 4), (63, 2003)])
def test_what_is_dear_to_make_is_paged_unless_storage_is_full(capacity, duration):
    """Node 0 is read at the end. In between there is no room for its output."""
    graph = make([1000, 1, 1, 1], [64, 64, 128, 64], [(0, 1), (1, 2), (2, 3), (0, 3)])
    paging = Paging(1e-9, 64e9, 1e-9, 64e9, capacity=capacity)
    for way in (paging, None):
        assert planned(graph, 320, paging=way).increase == 0
    graph = make([1000, 1, 1, 1, 1], [64, 64, 256, 64, 64], [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    assert planned(graph, 320, paging=paging).duration == duration + 1


def test_paging_is_to_host_memory_if_nothing_is_said():
    search = Search(chain(4), 3, 5)
    moccasin(search, paging=True)
    assert search.paging == HOST and search.plan("moccasin").about["paging"]["in_bandwidth"] == 1.2e10


def test_no_interval_is_too_few():
    with pytest.raises(ValueError, match="at least 1 interval, not 0"):
        moccasin(Search(chain(4), 3, 5), intervals=0)
