"""Bounds are below every plan, at any moments. The plan of a cut is legal, whether it fits or
not."""

import itertools
import random

import pytest
from graphs import chain, layered, small
from oracle import cheapest

from coop.plan import floor, graph_of, peak_of
from coop.plan.model.graph import make
from coop.plan.model.schedule import plan_of, profile
from coop.plan.search.bounds import bound, moments
from coop.plan.search.cut import cut
from coop.plan.search.search import Search
from random_traces import build
from step_traces import convolutions, transformer

AMPLE = 1 << 60
SLACK = 1e-5  # of the graph's cost: the solver's tolerance


def budgets(graph):
    lowest, peak = floor(graph)[0], peak_of(graph)
    return sorted({lowest, (lowest + peak) // 2 // 64 * 64, peak - 64})


def least(graph, budget, at, whole=False):
    found = bound(Search(graph, budget), at, seconds=20, whole=whole)
    assert found is not None
    return found


def legal(graph, sequence):
    """Passes the checker, in as much memory as it needs."""
    plan = plan_of(graph, sequence, AMPLE, "cut")
    assert plan.peak == profile(graph, sequence).peak
    return plan


@pytest.mark.parametrize("seed", range(60))
def test_no_bound_is_above_the_optimum_or_below_the_step_itself(seed):
    graph = small(seed)
    everywhere = range(len(graph.nodes))
    for budget in budgets(graph):
        best = cheapest(graph, budget)
        for at in (moments(graph, 1), moments(graph, 2), moments(graph, 4), everywhere):
            relaxed, whole = (least(graph, budget, at, whole) for whole in (False, True))
            assert (1 - SLACK) * graph.cost <= relaxed <= whole + SLACK * graph.cost
            assert best is None or whole <= best


def test_most_bounds_of_small_steps_are_reached():
    """A bound that is always the graph's own cost would pass the test above."""
    reached = above = 0
    for seed in range(20):
        graph = small(seed)
        for budget in budgets(graph):
            best = cheapest(graph, budget)
            if best is not None and best > graph.cost:
                found = least(graph, budget, range(len(graph.nodes)), whole=True)
                above += found > graph.cost
                reached += found >= best - 1e-3
    assert above >= 20 and reached >= 0.8 * above


def test_where_no_plan_exists_the_bound_is_infinite():
    graph = chain(8)
    assert least(graph, floor(graph)[0] - 1, range(17)) == float("inf")
    assert least(graph, floor(graph)[0], range(17)) < float("inf")


@pytest.mark.parametrize("seed", range(5))
def test_more_moments_are_no_worse(seed):
    """This holds for integer programs, and for relaxations up to the solver's tolerance."""
    graph, chance = layered(24, 50, seed), random.Random(seed)
    budget = max(int(0.75 * peak_of(graph)), floor(graph)[0])
    order = chance.sample(range(24), 24)
    found = [least(graph, budget, order[:count]) for count in (1, 2, 4, 8, 16, 24)]
    assert all(b >= a - SLACK * graph.cost for a, b in itertools.pairwise(found))
    assert found[-1] > found[0]


@pytest.mark.parametrize("share", [0.9, 0.7])
@pytest.mark.parametrize("trace", [transformer(), convolutions()], ids=["transformer", "convolutions"])
def test_of_training_steps_the_cut_meets_its_bound(trace, share):
    graph = graph_of(trace)
    budget = int(share * peak_of(graph))
    lowest = least(graph, budget, moments(graph, 1), whole=True)
    *_, sequence = cut(Search(graph, budget), seconds=20)
    plan = legal(graph, sequence)
    assert plan.peak <= budget and graph.cost < lowest <= plan.duration <= 1.02 * lowest


def test_moments_are_where_memory_is_shortest_and_never_twice():
    graph = layered(60, 150, 2)
    levels = profile(graph, range(60)).memory
    for count in (1, 4, 16, 64):
        found = moments(graph, count)
        assert found == sorted(set(found)) and 0 < len(found) <= min(count, 60)
        assert levels.index(max(levels)) in found
    assert set(moments(graph, 4)) <= set(moments(graph, 16))


def test_bounds_of_costs_as_they_are_recorded_are_below_the_optimum_too():
    """Costs of millions of nanoseconds, and some of zero: a solver's tolerance must not raise the
    bound."""
    for seed in range(8):
        chance = random.Random(seed)
        costs = [chance.choice([0, 1, 10**4, 10**7, 3 * 10**8]) + chance.randrange(9) for _ in range(9)]
        sizes = [chance.randint(1, 1 << 30) for _ in range(9)]
        graph = make(costs, sizes, {(chance.randrange(i), i) for i in range(1, 9) for _ in range(2)}, kept=[8])
        lowest, peak = floor(graph)[0], peak_of(graph)
        for budget in {lowest, (lowest + peak) // 2}:
            best = cheapest(graph, budget)
            for whole in (False, True):
                found = least(graph, budget, range(9), whole)
                assert best is None or (1 - SLACK) * graph.cost <= found <= best


@pytest.mark.parametrize("seed", range(60))
def test_cuts_of_small_steps_are_legal_and_never_better_than_the_best(seed):
    graph = small(seed)
    for budget in budgets(graph):
        best = cheapest(graph, budget)
        for sequence in cut(Search(graph, budget), seconds=5):
            plan = legal(graph, sequence)
            assert plan.peak > budget or plan.duration >= best


@pytest.mark.parametrize("seed", range(40))
def test_cuts_of_any_step_are_legal(seed):
    graph = graph_of(build(random.Random(seed).randbytes(400)))
    for share in (0.9, 0.7, 0.5):
        for sequence in cut(Search(graph, max(int(share * peak_of(graph)), floor(graph)[0])), seconds=5):
            legal(graph, sequence)


@pytest.mark.parametrize(("layers", "budget"), [(10, 436207616), (10, 327155712)])
def test_plans_that_fill_the_budget_are_not_below_the_bound(layers, budget):
    graph = graph_of(transformer(layers))
    *_, sequence = cut(Search(graph, budget + 63), seconds=20)  # all sizes are multiples of 64 bytes
    plan = plan_of(graph, sequence, budget, "cut")
    assert least(graph, budget, moments(graph, 1), whole=True) <= plan.duration


def test_a_cut_ends_when_it_is_told_to():
    graph = layered(150, 400, 1)
    search = Search(graph, int(0.7 * peak_of(graph)))
    search.stop()
    assert list(cut(search, seconds=60)) == []
