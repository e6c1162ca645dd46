"""Chen's segments and treeverse: legal, in the budget, never better than the best, as good as their
papers say."""

import random

import pytest
from graphs import chain, in_place, layered, small
from oracle import cheapest

from coop.plan.heuristic.chen import Forward, greedy, sqrt
from coop.plan.heuristic.treeverse import treeverse
from coop.plan.heuristic.treewidth import treewidth
from coop.plan.model.graph import from_trace, make
from coop.plan.model.plan import PlanError, floor
from coop.plan.model.schedule import peak_of, plan_of
from coop.plan.search.search import Search
from coop.trace import Op, Output, Release, Trace
from random_traces import build
from step_traces import convolutions, transformer

TRACES = pytest.mark.parametrize("trace", [transformer(), convolutions()], ids=["transformer", "convolutions"])
PLANNERS = pytest.mark.parametrize("planner", [sqrt, greedy, treeverse])


def planned(planner, graph, budget):
    """The plan, which has passed the checker."""
    search = Search(graph, budget)
    planner(search)
    return search.plan(planner.__name__)


@pytest.mark.parametrize("layers", [9, 16, 25, 64, 100, 400])
def test_sqrt_of_a_chain_needs_two_roots_of_its_length_and_one_more_forward_pass(layers):
    plan = planned(sqrt, chain(layers), 10**9)
    assert plan.peak <= 2 * layers**0.5 + 3
    assert 0 < plan.duration - plan.base_duration <= layers
    assert all(plan.sequence().count(node) <= 2 for node in range(layers))


def test_the_forward_pass_of_a_chain_ends_with_its_loss():
    forward = Forward(chain(10))
    assert forward.end == 11
    assert forward.equal_cuts(2) == [6] and forward.crossing[5] == 1


def test_sqrt_says_what_it_would_need():
    with pytest.raises(
        PlanError, match=r"10 segments of the forward pass, of 101 nodes .* need 20 B, and the budget is 10 B. Tip"
    ):
        planned(sqrt, chain(100), 10)


@pytest.mark.parametrize("layers", [25, 64])
def test_greedy_costs_less_the_more_it_may_keep(layers):
    graph = chain(layers)
    peak = peak_of(graph)
    found = [planned(greedy, graph, int(peak * share)).increase for share in (1, 0.9, 0.7, 0.5)]
    assert found == sorted(found) and found[0] == 0 and found[-1] <= 0.35
    assert found[1] < 0.15  # a tenth less memory does not cost the whole forward pass
    assert planned(greedy, graph, int(2.2 * layers**0.5) + 3).increase <= 0.5


def test_greedy_says_what_it_would_need_at_best():
    with pytest.raises(PlanError, match=r"twice needs 2\d B at best, and the budget is 12 B. Tip: "):
        planned(greedy, chain(100), 12)


@TRACES
@pytest.mark.parametrize("planner", [greedy, treeverse])
def test_steps_fit(planner, trace):
    graph = from_trace(trace)
    found = [planned(planner, graph, int(share * peak_of(graph))) for share in (0.9, 0.7, 0.6)]
    assert all(0 < plan.increase < 0.35 and plan.peak <= plan.budget for plan in found)
    assert found[0].duration <= found[1].duration <= found[2].duration


@PLANNERS
def test_chains_of_in_place_nodes_are_made_again_as_a_whole(planner):
    graph = in_place(16)
    plan = planned(planner, graph, int(0.7 * peak_of(graph)))
    names = [graph.nodes[node].name for node in plan.sequence()]
    assert names.count("mm") == names.count("relu_") > 16


def test_no_cut_goes_between_a_value_and_who_overwrites_it():
    assert [cut is None for cut in Forward(in_place(16)).crossing[1:6]] == [True, False, True, False, True]


def test_what_cannot_be_run_again_is_kept():
    def op(number, inputs, once=False):
        return Op("once" if once else "op", inputs, (Output(number, 1 << 20),), 10, replayable=not once)

    instructions = [op(i, (i - 1,) if i else (), once=i % 5 == 2) for i in range(20)]
    instructions += [step for i in reversed(range(20)) for step in (Op("backward", (i,), (), 10), Release(i))]
    graph = from_trace(Trace(instructions))
    for planner in (greedy, treeverse):
        plan = planned(planner, graph, int(0.7 * peak_of(graph)))
        again = [graph.nodes[node].name for node in plan.sequence()]
        assert again.count("once") == 4 and again.count("op") > 16


@pytest.mark.parametrize(("budget", "duration"), [(4, 26), (5, 22), (6, 21)])
def test_treeverse_of_eight_equal_layers_is_optimal(budget, duration):
    assert planned(treeverse, chain(8), budget).duration == duration == cheapest(chain(8), budget)


@pytest.mark.parametrize("seed", range(6))
def test_treeverse_of_unequal_layers_is_near_the_optimum(seed):
    chance = random.Random(seed)
    costs, sizes = ([chance.randint(1, 9) for _ in range(11)] for _ in range(2))
    graph = make(costs, sizes, [(i, i + 1) for i in range(10)] + [(i, 10 - i) for i in range(5)])
    for share in (0.8, 0.7):
        budget = max(int(share * peak_of(graph)), floor(graph)[0])
        best = cheapest(graph, budget)
        assert best <= planned(treeverse, graph, budget).duration <= 1.1 * best


def test_treeverse_of_a_long_chain_takes_logarithmic_memory():
    assert planned(treeverse, chain(64), 9).increase < 1.5


def test_treeverse_refuses_what_is_no_chain():
    with pytest.raises(PlanError, match=r"the step is no chain: .* Tip: treewidth and auto"):
        planned(treeverse, layered(60, 150, 0), 10**6)


def test_treeverse_says_what_it_would_need():
    with pytest.raises(PlanError, match=r"recomputing 9 stages of the forward pass .* the budget is 2 B"):
        planned(treeverse, chain(8), 2)


@PLANNERS
@pytest.mark.parametrize("seed", range(25))
def test_none_is_better_than_the_best(planner, seed):
    graph = small(seed)
    for budget in {floor(graph)[0], (floor(graph)[0] + peak_of(graph)) // 2, peak_of(graph)}:
        try:
            plan = planned(planner, graph, budget)
        except PlanError:
            continue
        assert plan.duration >= cheapest(graph, budget)


@pytest.mark.parametrize("planner", [sqrt, greedy, treeverse, treewidth])
@pytest.mark.parametrize("seed", range(60))
def test_any_step_gets_a_legal_plan_or_a_reason(planner, seed):
    graph = from_trace(build(random.Random(seed).randbytes(600)))
    if not graph.nodes:
        return
    for share in (1.0, 0.8, 0.6):
        budget = max(int(share * peak_of(graph)), floor(graph)[0])
        try:
            assert planned(planner, graph, budget).peak <= budget
        except PlanError as error:
            assert "Tip: " in str(error)


def test_segments_of_any_graph_are_legal_and_some_are_computed_twice():
    """In as much memory as they need: segments of such graphs do not fit into tight budgets."""
    twice = 0
    graphs = [layered(60, 150, seed) for seed in range(5)]
    graphs += [from_trace(build(random.Random(seed).randbytes(600))) for seed in range(150)]
    for graph in graphs:
        if graph.nodes:
            forward = Forward(graph)
            for segments in (2, 3, 5, 8):
                sequence = forward.sequence(forward.equal_cuts(segments))
                twice += plan_of(graph, sequence, 1 << 60, "segments").duration > graph.cost  # checked
    assert twice > 50
