"""Coarsening: plans of the coarse graph are plans of the fine one."""

import random

import pytest
from graphs import chain, layered, small

from coop.plan import check, floor, graph_of, make_graph, peak_of, solve
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import plan_of, profile
from coop.plan.search.coarse import coarsen
from coop.plan.search.greedy import greedy
from random_traces import build
from step_traces import convolutions, transformer


def expand(graph, budget):
    """A plan of the coarse graph, in the fine one; None: there is none."""
    coarse = coarsen(graph)
    try:
        sequence = greedy(coarse.graph, budget)
    except PlanError:
        return None
    plan = plan_of(graph, coarse.fine(sequence), budget, "coarse")
    check(plan, graph)
    assert plan.duration == profile(coarse.graph, sequence).duration
    assert plan.peak <= profile(coarse.graph, sequence).peak
    return plan


@pytest.mark.parametrize("seed", range(40))
def test_a_coarse_plan_is_legal_and_needs_no_more_than_it_says(seed):
    for graph in (small(seed), layered(60, 90, seed), graph_of(build(random.Random(seed).randbytes(240)))):
        coarse = coarsen(graph)
        assert [node for group in coarse.groups for node in group] == list(range(len(graph.nodes)))
        assert coarse.graph.cost == graph.cost and floor(coarse.graph)[0] >= floor(graph)[0]
        for share in (1.0, 0.9, 0.8):
            expand(graph, max(int(share * peak_of(coarse.graph)), floor(coarse.graph)[0]))


@pytest.mark.parametrize("trace", [convolutions(), transformer()], ids=["convolutions", "transformer"])
def test_real_steps_get_smaller_and_are_still_planned(trace):
    graph = graph_of(trace)
    assert len(coarsen(graph).graph.nodes) < 0.9 * len(graph.nodes)
    assert expand(graph, int(0.8 * peak_of(graph))) is not None


def test_what_is_smaller_than_what_is_made_of_it_may_be_kept():
    sizes = [9, 9, 2, 9, 9, 9, 1]  # 0 and 1 fuse with 2, which is small; that stays apart from 3
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (3, 6), (4, 5), (5, 6)]
    assert list(coarsen(make_graph([1] * 7, sizes, edges)).groups[0]) == [0, 1, 2]


def test_planners_of_small_graphs_plan_large_ones_in_the_coarse_and_say_so():
    graph = chain(100)
    plan = solve(graph, 0.5, "checkmate-lp", time_limit=5)
    assert plan.peak <= plan.budget and plan.bound > graph.cost
    wide = graph_of(transformer())
    plan = solve(wide, 0.8, "moccasin", time_limit=5)
    assert plan.peak <= plan.budget and ("coarse" in plan.about) == (len(wide.nodes) > 150)
