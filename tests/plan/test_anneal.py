"""Annealing keeps plans that fit, and finds the optimum where it is known."""

import random

import pytest
from graphs import chain, layered, small
from oracle import cheapest

from coop.plan.exact.staged import near, solve
from coop.plan.model.graph import from_trace
from coop.plan.model.plan import PlanError, floor
from coop.plan.model.schedule import plan_of, profile, reruns_of, sequence_of
from coop.plan.search.anneal import anneal
from coop.plan.search.greedy import greedy
from coop.plan.search.search import Search
from random_traces import build


@pytest.mark.parametrize("seed", range(20))
def test_small_steps_in_place_and_all_find_the_optimum(seed):
    graph = small(seed)
    lowest, peak = floor(graph)[0], profile(graph, range(len(graph.nodes))).peak
    for budget in {(lowest + peak) // 2 // 64 * 64, peak}:
        try:
            start = greedy(graph, budget)
        except PlanError:
            continue
        found = anneal(Search(graph, budget), start, seconds=0.1, seed=seed)
        assert plan_of(graph, found, budget, "anneal").duration == cheapest(graph, budget)


def test_it_comes_near_to_what_the_staged_model_proves_and_tells_of_it():
    graph = layered(60, 180, 3)
    budget = int(0.8 * profile(graph, range(60)).peak)
    start = greedy(graph, budget)
    best = solve(Search(graph, budget), near(graph) | reruns_of(start), start=start, seconds=20)
    search = Search(graph, budget)
    found = anneal(search, start, seconds=2)
    duration = plan_of(graph, found, budget, "").duration
    assert search.duration == duration <= 1.005 * profile(graph, best.sequence).duration
    assert duration < profile(graph, start).duration


def test_the_same_seed_makes_the_same_moves():
    from coop import _C
    from coop.plan.search.anneal import _graph

    graph = layered(60, 180, 3)
    budget = int(0.8 * profile(graph, range(60)).peak)
    start = sorted(reruns_of(greedy(graph, budget)))
    found = []
    for _ in range(2):
        search = _C.PlanSearch(_graph(graph), budget, start, 7)
        search.run(20_000, 20.0, 0.1)
        found.append((search.best_cost, sorted(search.best)))
    assert found[0] == found[1] and found[0][0] > 0


def test_it_may_start_from_what_does_not_fit():
    found = anneal(Search(chain(8), 5), range(17), seconds=1, hot=1.0)
    assert found is not None and profile(chain(8), found).peak <= 5
    assert anneal(Search(chain(8), 1), range(17), seconds=0.1) is None  # nor does anything else
    assert anneal(Search(chain(8), 10), range(17), seconds=0.1) == list(range(17))


@pytest.mark.parametrize("seed", range(25))
def test_the_books_that_are_kept_from_move_to_move_are_right(seed):
    from coop import _C
    from coop.plan.search.anneal import _graph

    for graph in (small(seed), layered(40, 90, seed), from_trace(build(random.Random(seed).randbytes(400)))):
        budget = int(0.8 * profile(graph, range(len(graph.nodes))).peak)
        search = _C.PlanSearch(_graph(graph), budget, [], seed)
        for _ in range(60):
            search.run(25, 1e9, 1e9)  # hot: every legal move is taken
            search.check()
        search.run(2000, float(graph.cost), 1.0)
        search.check()
        if search.best is not None:
            found = sequence_of(graph, search.best)
            assert profile(graph, found).peak <= budget
            assert profile(graph, found).duration == graph.cost + search.best_cost
