"""The tree of separators is one, and plans by it fit, are legal and not far from the best."""

import pytest
from graphs import chain, layered, small
from oracle import cheapest

from coop.plan.heuristic.treewidth import Separators, taken_back, treewidth
from coop.plan.model.graph import from_trace, make
from coop.plan.model.plan import PlanError, floor
from coop.plan.model.schedule import peak_of, profile
from coop.plan.search.search import Search
from step_traces import convolutions, transformer


def planned(graph, budget, seconds=20):
    """The plan, which has passed the checker."""
    search = Search(graph, budget, seconds)
    treewidth(search)
    return search.plan("treewidth")


@pytest.mark.parametrize("graph", [chain(20), layered(60, 150, 0), make([1] * 4, [1] * 4, [(0, 1)])])
def test_what_a_node_reads_is_made_above_or_below_it(graph):
    tree = Separators(graph)
    for node, parents in enumerate(graph.parents):
        assert all(tree.above(node, parent) or tree.above(parent, node) for parent in parents)
        assert tree.above(node, node)


def test_the_tree_of_a_chain_is_narrow_and_flat():
    tree = Separators(chain(500))
    assert tree.width == 2 and tree.depth <= 11


@pytest.mark.parametrize(
    ("layers", "budget", "most"), [(8, 3, 45), (8, 4, 28), (8, 5, 23), (8, 10, 17), (50, 8, 190), (50, 26, 130)]
)
def test_chains(layers, budget, most):
    assert planned(chain(layers), budget).duration <= most


def test_a_long_chain_fits_into_very_little():
    plan = planned(chain(200), 10)
    assert plan.peak <= 10 and plan.increase < 2


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_fit(seed):
    graph = layered(60, 150, seed, reach=5)
    peak = peak_of(graph)
    found = [planned(graph, int(share * peak)).increase for share in (1.0, 0.9, 0.8, 0.6)]
    assert found[0] == 0 and 0 < found[1] < 0.15 and found[2] < 0.3 and found[3] < 2


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
@pytest.mark.parametrize("trace", [transformer(), convolutions()], ids=["transformer", "convolutions"])
def test_steps_fit(trace, share):
    graph = from_trace(trace)
    budget = max(int(share * peak_of(graph)), floor(graph)[0])
    plan = planned(graph, budget)
    assert 0 < plan.increase < 0.3 and plan.about["width"] < 10


@pytest.mark.parametrize("seed", range(25))
def test_it_is_never_better_than_the_best_and_seldom_much_worse(seed):
    graph = small(seed)
    for budget in {floor(graph)[0], (floor(graph)[0] + peak_of(graph)) // 2, peak_of(graph)}:
        best = cheapest(graph, budget)
        try:
            duration = planned(graph, budget).duration
        except PlanError:
            assert best is None or budget < peak_of(graph)
            continue
        assert best <= duration <= 3 * best


def test_what_fits_in_after_all_is_not_made_again():
    graph = chain(4)
    wasteful = [0, 1, 2, 3, 4, 5, 0, 1, 2, 6, 0, 1, 7, 0, 8]
    *_, best = taken_back(graph, wasteful, peak_of(graph))
    assert best == list(range(9))
    tight = profile(graph, wasteful).peak
    for sequence in taken_back(graph, wasteful, tight):
        assert profile(graph, sequence).peak <= tight and len(sequence) < len(wasteful)


def test_below_what_a_node_needs_it_says_where():
    with pytest.raises(
        PlanError, match=r"2 B are needed while node 1 runs before node 1 does, .* the budget is 1 B. Tip"
    ):
        planned(chain(8), 1)


def test_it_ends_when_it_is_told_to():
    search = Search(chain(200), 8)
    search.stop()
    with pytest.raises(PlanError, match=r"was given up\. Tip: a larger budget or a longer time limit"):
        treewidth(search)
