"""poet: the least energy, as a search over all states of memory and storage finds it, and within
all its limits."""

import heapq
import itertools
import random
from dataclasses import replace

import pytest
from graphs import chain, layered, small

from coop import models
from coop.plan.model.check import check
from coop.plan.model.graph import from_trace, make
from coop.plan.model.plan import PlanError, floor
from coop.plan.planners import peak_of, solve
from coop.plan.poet.poet import poet
from coop.plan.search.search import Search
from coop.trace import Trace
from coop.trace.device import Device, load
from coop.trace.paging import Paging
from coop.trace.shapes import shape_trace
from random_traces import build
from step_traces import convolutions, transformer

CARD = Paging(in_latency=1e-9, in_bandwidth=100e9, out_latency=1e-9, out_bandwidth=50e9, watts=0.5)
TOY = Device("toy", False, 64, 1e-9, 1e9, {"float32": 1e9}, watts=2.0, paging=CARD)


def planned(graph, budget, seconds=5.0, device=TOY, **options):
    search = Search(graph, budget, seconds)
    poet(search, device=device, **options)
    plan = search.plan("poet")
    found = check(plan, graph, paging=search.paging)
    transfers = found.duration - found.computing
    joules = (device.watts * found.computing + device.paging.watts * transfers) / 1e9
    assert plan.about["joules"] == pytest.approx(joules) and plan.about["device"] == device.name
    assert plan.about["seconds"] == found.duration / 1e9
    assert plan.about["paged_bytes"] == found.paged_in + found.paged_out
    return plan


def least(graph, budget, *, limit=None, capacity=None, again=True, page=True):
    """Dijkstra by energy over what is done, in memory and in storage, and how long it took."""
    kept = {number for number, value in enumerate(graph.values) if value.kept}
    size = [value.bytes for value in graph.values]
    first = (0, frozenset(), frozenset())
    soonest, heap, order = {}, [(0.0, 0, 0, first)], itertools.count(1)
    while heap:
        joules, time, _, state = heapq.heappop(heap)
        done, memory, stored = state
        if time >= soonest.get(state, float("inf")) or (limit is not None and time > limit):
            continue
        soonest[state] = time if limit is not None else -1  # without a limit, time does not matter
        if done == len(graph.nodes) and kept <= memory:
            return joules / 1e9
        used = graph.base[done] + sum(size[value] for value in memory)
        followers = [(0, 0, (done, memory - {value}, stored)) for value in memory]
        for value in memory - stored if page else ():
            if capacity is None or sum(size[v] for v in stored) + size[value] <= capacity:
                followers.append((CARD.watts, CARD.out_time(size[value]), (done, memory, stored | {value})))
        for value in stored - memory:
            if used + size[value] <= budget:
                followers.append((CARD.watts, CARD.in_time(size[value]), (done, memory | {value}, stored)))
        for number in range(0 if again else done, min(done + 1, len(graph.nodes))):
            node = graph.nodes[number]
            if not memory.issuperset(node.inputs) or (number < done and not graph.repeatable(number, done)):
                continue
            after = (memory - set(node.overwritten())) | set(node.outputs)
            if graph.base[done] + node.scratch + sum(size[value] for value in after) <= budget:
                followers.append((TOY.watts, node.cost, (done + (number == done), after, stored)))
        for watts, more, follower in followers:
            heapq.heappush(heap, (joules + watts * more, time + more, next(order), follower))
    return None


LIMITS = [
    {},
    {"slowdown": 1.3},
    {"storage": 256},
    {"rematerialise": False},
    {"page": False},
    {"slowdown": 1.6, "storage": 320},
]


@pytest.mark.parametrize("options", LIMITS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_no_plan_takes_less_energy(seed, options):
    graph = small(seed)
    lowest, peak = floor(graph, paging=True)[0], peak_of(graph)
    limit = int(options["slowdown"] * graph.cost) if "slowdown" in options else None
    for budget in sorted({lowest, (lowest + peak) // 2}):
        best = least(
            graph,
            budget,
            limit=limit,
            capacity=options.get("storage"),
            again=options.get("rematerialise", True),
            page=options.get("page", True),
        )
        if best is None:
            with pytest.raises(ValueError, match="poet found no plan for"):
                planned(graph, budget, **options)
            continue
        plan = planned(graph, budget, **options)
        assert plan.about["joules"] == pytest.approx(best, rel=1e-6)
        assert limit is None or plan.duration <= limit


@pytest.mark.parametrize("seed", range(6))
def test_random_steps_stay_within_all_limits(seed):
    graph = from_trace(build(random.Random(seed).randbytes(240)))
    budget = (floor(graph, paging=True)[0] + peak_of(graph)) // 2
    for options in ({}, {"slowdown": 2.0, "storage": 1024}):
        try:
            plan = planned(graph, budget, seconds=1, **options)
        except ValueError as error:
            assert "poet found no plan" in str(error)
            continue
        assert plan.duration <= options.get("slowdown", 1e9) * graph.cost


GRAPHS = {
    "transformer": replace(from_trace(transformer(3)), about={}),
    "convolutions": replace(from_trace(convolutions(6)), about={}),
    "layered": layered(60, 150, 0),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_both_together_are_at_least_as_good_as_either(name):
    graph = GRAPHS[name]
    device = TOY if name == "layered" else replace(TOY, paging=Paging(1e-6, 5e9, 1e-6, 4e9, watts=2.0))
    budget = int(0.75 * peak_of(graph))
    both = planned(graph, budget, 2, device).about["joules"]
    for less in ({"page": False}, {"rematerialise": False}):
        assert both <= planned(graph, budget, 1, device, **less).about["joules"] * 1.0001


def test_a_limit_on_time_takes_paging_away_where_storage_is_slow():
    """The output of node 0 is read at the end. Paging it takes less energy than recomputing it, and
    more time."""
    graph = make([100, 1, 1, 1, 1], [64, 64, 256, 64, 64], [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    slow = replace(TOY, paging=Paging(1e-7, 1e12, 1e-7, 1e12, watts=0.5))
    assert planned(graph, 320, device=slow).about["paged_bytes"] == 128
    plan = planned(graph, 320, device=slow, slowdown=1.97)
    assert plan.about["paged_bytes"] == 0 and plan.sequence().count(0) == 2
    with pytest.raises(
        ValueError, match=r"no plan for 320 B of memory, 1\.5 times the run time\. Tip: more of any"
    ) as error:
        planned(graph, 320, device=slow, slowdown=1.5)
    assert not isinstance(error.value, PlanError)  # other planners are not tried: they have no such limits


def test_everything_stays_if_it_fits():
    plan = planned(chain(6), 100)
    assert (
        plan.increase == 0
        and plan.status == "optimal"
        and plan.about["joules"] == pytest.approx(plan.about["joules_base"])
    )


def test_a_trace_is_for_its_device():
    network, device = models.get("resnet18", small=True), load("cortex-m4f")
    trace = shape_trace(network, None, device)
    graph = from_trace(trace)
    assert graph.about["device"] == trace.device == "cortex-m4f"
    assert "resnet18" in models.registry.SMALL_NAMES and "resnet18" not in models.NAMES
    budget = (floor(graph, paging=True)[0] + peak_of(graph)) // 2
    plan = solve(trace, budget, "poet", time_limit=2, slowdown=1.5, storage="1MB")
    assert plan.about["joules"] > plan.about["joules_base"] == pytest.approx(graph.cost * device.watts / 1e9)
    assert plan.increase <= 0.5 and plan.about["paging"]["capacity"] == 10**6
    with pytest.raises(ValueError, match=r"are of 'cortex-m4f', and the device is 'mkr1000'.*with --device mkr1000"):
        solve(trace, budget, "poet", device="mkr1000")


@pytest.mark.parametrize("name", models.registry.SMALL_NAMES)
def test_networks_for_small_devices_are_trained_with_one_example_at_a_time(name):
    assert models.get(name).batch_size == 1
    graph = from_trace(shape_trace(models.get(name, small=True), None, load("raspberry-pi")))
    assert floor(graph)[0] < peak_of(graph)


@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ("", {}, "are of no device. Tip: trace it for a device that says, such as cortex-m4f, jetson-tx2"),
        ("measured", {}, "are of 'measured', of which it is not known how much energy"),
        ("a100", {}, r"the device 'a100' does not say watts"),
        ("", {"device": replace(TOY, paging=None)}, r"'toy' does not say \[paging\]"),
        ("", {"device": "no-such"}, "there is no device 'no-such'"),
        ("toy", {"device": TOY, "slowdown": 0.9}, "slowdown is 1 or more, not 0.9"),
        ("toy", {"device": TOY, "storage": "much"}, "'much' is not a size"),
    ],
)
def test_what_cannot_be_counted_is_refused(device, options, message):
    trace = replace(transformer(2), device=device)
    assert isinstance(trace, Trace)
    with pytest.raises(ValueError, match=message):
        solve(trace, "90%", "poet", time_limit=2, **options)
