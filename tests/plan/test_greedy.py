"""The first plan: it fits, it is legal, and it is not far from what is known to be best."""

import pytest
from graphs import chain, in_place, layered

from coop.plan.model.graph import from_trace
from coop.plan.model.plan import PlanError, floor
from coop.plan.model.schedule import plan_of, profile, prune
from coop.plan.search.greedy import greedy
from coop.simulate import Player
from step_traces import convolutions, transformer


def planned(graph, ratio):
    budget = int(ratio * profile(graph, range(len(graph.nodes))).peak)
    return plan_of(graph, greedy(graph, budget), budget, "greedy")  # checked


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_fit(seed):
    graph = layered(60, 150, seed, reach=5)
    nine, eight = planned(graph, 0.9), planned(graph, 0.8)
    assert 0 < nine.increase <= eight.increase < 0.6
    assert planned(graph, 1.0).increase == 0


@pytest.mark.parametrize("ratio", [0.9, 0.7, 0.5])
@pytest.mark.parametrize("trace", [transformer(), convolutions()], ids=["transformer", "convolutions"])
def test_who_knows_the_future_does_not_do_worse_than_who_does_not(trace, ratio):
    online = Player(trace).play(ratio, limit=10.0)
    assert 0 < planned(from_trace(trace), ratio).increase < online.overhead - 1 + 0.005


def test_a_chain_in_half_of_its_memory_runs_little_more_than_its_forward_pass_twice():
    assert planned(chain(50), 0.5).increase < 0.3


def test_what_is_overwritten_is_made_again_before_it_is_overwritten_again():
    graph = in_place(8)
    plan = planned(graph, 0.5)
    again = [graph.nodes[node].name for node in plan.sequence()]
    assert again.count("relu_") > 8 and again.count("mm") > 8


def test_below_what_a_node_needs_there_is_none():
    graph = chain(8)
    with pytest.raises(PlanError, match="bytes too much are left while node"):
        greedy(graph, floor(graph)[0] - 1)


def test_what_is_computed_again_for_nobody_is_left_out():
    graph = chain(3)
    assert prune(graph, [0, 1, 2, 3, 4, 5, 0, 1, 6, 2]) == [0, 1, 2, 3, 4, 5, 0, 6]
    assert prune(graph, [0, 1, 2, 3, 4, 0, 1, 5, 6]) == [0, 1, 2, 3, 4, 0, 1, 5, 6]
