"""The staged model finds the cheapest plan that there is, as a search over all states of memory
finds it."""

import pytest
from graphs import chain, layered, small
from oracle import cheapest

from coop.plan.exact.staged import everywhere, near, solve
from coop.plan.model.plan import PlanError, floor
from coop.plan.model.schedule import plan_of, profile, reruns_of
from coop.plan.search.greedy import greedy
from coop.plan.search.search import Search


@pytest.mark.parametrize("seed", range(30))
def test_with_all_places_it_is_exact(seed):
    graph = small(seed)
    lowest, peak = floor(graph)[0], profile(graph, range(len(graph.nodes))).peak
    for budget in sorted({lowest - 64, lowest, (lowest + peak) // 2 // 64 * 64, peak}):
        best = cheapest(graph, budget)
        try:
            outcome = solve(Search(graph, budget), everywhere(graph), seconds=5)
        except PlanError:
            assert best is None
            continue
        assert outcome.optimal and outcome.sequence is not None
        assert plan_of(graph, outcome.sequence, budget, "staged").duration == best


def test_checkmates_chain_of_eight_layers_in_four_units():
    graph = chain(8)
    outcome = solve(Search(graph, 4), everywhere(graph), start=greedy(graph, 4), seconds=30)
    assert outcome.optimal and len(outcome.sequence) == 26


def test_it_starts_from_a_plan_and_tells_each_better_one():
    graph = layered(50, 130, 1)
    budget = int(0.8 * profile(graph, range(50)).peak)
    start = greedy(graph, budget)
    heard = []

    class Listening(Search):
        def offer_steps(self, steps):
            better = super().offer_steps(steps)
            heard.append(self.duration)
            return better

    search = Listening(graph, budget)
    outcome = solve(search, near(graph) | reruns_of(start), start=start, seconds=20)
    found = plan_of(graph, outcome.sequence, budget, "staged").duration
    assert found < profile(graph, start).duration
    assert heard[-1] == found and heard == sorted(heard, reverse=True)


def test_what_no_place_can_help_is_refused():
    graph = chain(8)
    with pytest.raises(PlanError, match="no plan with these places fits into 4 bytes"):
        solve(Search(graph, 4), [], seconds=5)
    with pytest.raises(PlanError, match="node 1 alone needs 2 bytes, and the budget is 1"):
        solve(Search(graph, 1), [], seconds=5)
