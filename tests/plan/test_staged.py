"""The staged model finds the cheapest plan that there is, as a search over all states of memory finds it."""

import heapq
import itertools
import random

import pytest
from graphs import chain, layered

from coop.plan.graph import from_trace
from coop.plan.greedy import greedy
from coop.plan.plan import PlanError, floor
from coop.plan.schedule import places_of, plan_of, profile
from coop.plan.search import Search
from coop.plan.staged import everywhere, near, solve
from coop.trace import Op, Output, Release, Trace


def cheapest(graph, budget):
    """Dijkstra over what is done and what is in memory. None: no plan fits."""
    kept = {number for number, value in enumerate(graph.values) if value.kept}
    first = (0, frozenset())
    best, heap, order = {first: 0}, [(0, 0, first)], itertools.count(1)
    while heap:
        cost, _, state = heapq.heappop(heap)
        done, memory = state
        if cost > best[state]:
            continue
        if done == len(graph.nodes) and kept <= memory:
            return cost
        followers = [(0, (done, memory - {value})) for value in memory]
        for number in range(min(done + 1, len(graph.nodes))):
            node = graph.nodes[number]
            again = number < done
            if not memory.issuperset(node.inputs) or (again and not graph.repeatable(number, done)):
                continue
            after = (memory - set(node.overwritten())) | set(node.outputs)
            used = graph.base[done] + node.scratch + sum(graph.values[value].bytes for value in after)
            if used <= budget:
                followers.append((node.cost, (done + (not again), after)))
        for more, follower in followers:
            if cost + more < best.get(follower, float("inf")):
                best[follower] = cost + more
                heapq.heappush(heap, (cost + more, next(order), follower))
    return None


def small(seed):
    """A random step of seven ops, some of them in place."""
    chance = random.Random(seed)
    instructions, alive = [], []
    for tensor in range(7):
        inputs = tuple(chance.sample(alive, min(len(alive), chance.randint(1, 3))))
        if inputs and chance.random() < 0.25:
            instructions.append(Op("in_place_", inputs, (Output(tensor, 0, 0),), chance.randint(1, 9), writes=(0,)))
            instructions.append(Release(inputs[0]))
            alive.remove(inputs[0])
        else:
            size, once = 64 * chance.randint(1, 6), chance.random() < 0.1
            instructions.append(
                Op(
                    "op",
                    inputs,
                    (Output(tensor, size),),
                    chance.randint(1, 9),
                    scratch=64 * (tensor % 2),
                    replayable=not once,
                )
            )
        alive.append(tensor)
    instructions += [Release(value) for value in alive if chance.random() < 0.7]
    return from_trace(Trace(instructions))


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
    outcome = solve(search, near(graph) | places_of(start), start=start, seconds=20)
    found = plan_of(graph, outcome.sequence, budget, "staged").duration
    assert found < profile(graph, start).duration
    assert heard[-1] == found and heard == sorted(heard, reverse=True)


def test_what_no_place_can_help_is_refused():
    graph = chain(8)
    with pytest.raises(PlanError, match="no plan with these places fits into 4 bytes"):
        solve(Search(graph, 4), [], seconds=5)
    with pytest.raises(PlanError, match="node 1 alone needs 2 bytes, and the budget is 1"):
        solve(Search(graph, 1), [], seconds=5)
