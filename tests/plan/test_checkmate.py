"""Checkmate's program, its relaxation and its roundings."""

import pytest
from graphs import chain, layered, small
from oracle import cheapest

from coop.plan import PlanError, floor, peak_of, solve
from coop.plan.exact.checkmate import checkmate, relaxed
from coop.plan.search.search import Search


def test_the_published_chain():
    graph = chain(8)
    assert relaxed(Search(graph, 4), seconds=30) == pytest.approx(22, abs=1e-4)
    plan = solve(graph, 4, "checkmate", time_limit=60)
    assert plan.duration == 26 >= plan.bound >= 22 and plan.status == "optimal" and plan.planner == "checkmate"


@pytest.mark.parametrize("seed", range(12))
def test_it_finds_the_optimum_of_small_steps_in_place_and_all(seed):
    graph = small(seed)
    lowest, peak = floor(graph)[0], peak_of(graph)
    for budget in {lowest, (lowest + peak) // 2 // 64 * 64, peak}:
        best = cheapest(graph, budget)
        try:
            plan = solve(graph, budget, "checkmate", time_limit=20)
        except PlanError:
            assert best is None
            continue
        assert plan.duration == best and plan.status == "optimal"
        assert relaxed(Search(graph, budget), seconds=10) <= best + 1e-3


def test_roundings_fit_and_are_no_better_than_the_bound():
    graph = layered(40, 90, 5)
    plan = solve(graph, 0.75, "checkmate-lp", time_limit=30)
    assert plan.peak <= plan.budget and graph.cost <= plan.bound <= plan.duration


def test_a_graph_that_is_too_large_is_refused_at_once():
    graph = layered(2000, 5000, 1)
    with pytest.raises(PlanError, match=r"2000 nodes and 5000 edges has .* million coefficients.*auto"):
        checkmate(Search(graph, peak_of(graph) // 2))
