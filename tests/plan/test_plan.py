"""The graph, the plan type, its file and the checker."""

import gzip
import random
from dataclasses import replace

import pytest
from graphs import chain

from coop.plan.model.addresses import Interval
from coop.plan.model.check import check
from coop.plan.model.file import read, write
from coop.plan.model.graph import NONE, from_trace, make
from coop.plan.model.plan import PlanError, Step, floor
from coop.plan.model.schedule import plan_of, profile
from coop.plan.running.packing import _packed, assign
from coop.simulate import Player
from coop.trace import Op, Output, Release, Source, Trace
from coop.trace.paging import Paging
from random_traces import build
from step_traces import convolutions, transformer

AMPLE = 1 << 50


def keep_all(graph, budget=AMPLE):
    return plan_of(graph, range(len(graph.nodes)), budget, "keep-all")


@pytest.mark.parametrize("trace", [transformer(), convolutions()], ids=["transformer", "convolutions"])
def test_without_recomputation_a_graph_needs_what_its_trace_needs(trace):
    graph = from_trace(trace)
    plan, player = keep_all(graph), Player(trace)
    assert plan.duration == plan.bound == graph.cost and plan.status == "optimal" and plan.increase == 0
    assert plan.peak == pytest.approx(player.peak, rel=0.01)
    bytes_needed, setter = floor(graph)
    assert 0 < bytes_needed <= plan.peak and 0 <= setter <= len(graph.nodes)


def test_views_are_their_storage_and_writes_make_values_in_its_place():
    trace = Trace(
        [
            Source(0, 64),
            Op("make", (0,), (Output(1, 128),), 10),
            Op("view", (1,), (Output(2, 0, 0),), 0),
            Op("read", (2,), (Output(3, 64),), 10),
            Op("write", (2, 3), (Output(4, 0, 0),), 10, writes=(0,)),
            Op("update", (0, 4), (Output(5, 0, 0),), 10, "optimizer", writes=(0,)),
        ]
    )
    graph = from_trace(trace)
    make_, read_, write_, update = graph.nodes
    assert [node.op for node in graph.nodes] == [0, 2, 3, 4]
    assert read_.inputs == make_.outputs
    assert write_.inputs == (*make_.outputs, *read_.outputs) and write_.over == make_.outputs
    # A held value that was made from a source has to be in memory when the source is overwritten.
    assert update.inputs == (*write_.outputs, *read_.outputs) and update.outputs == ()
    # The source that `make` has read is overwritten by the last node: until then it can be run
    # again.
    assert make_.last == update.op - 1 == 3 and read_.last is None and update.last == 3
    assert [value.kept for value in graph.values] == [False, True, True]
    assert graph.base == (64,) * 5


def test_sources_count_while_they_are_held():
    trace = Trace([Source(0, 64), Source(1, 128), Op("a", (0,), (Output(2, 64),), 1), Release(1), Op("b", (0,), (), 1)])
    assert from_trace(trace).base == (192, 64, 64)


def test_a_sequence_decides_what_is_freed_and_what_it_costs():
    graph = chain(3)
    plan = plan_of(graph, [0, 1, 2, 3, 4, 0, 1, 5, 6], AMPLE, "by hand")
    assert plan.duration == 9 and plan.increase == pytest.approx(2 / 7)
    steps = [f"{step.kind} {step.number}" for step in plan.steps]
    assert steps.index("free 0") < steps.index("compute 2") and steps.count("compute 1") == 2
    assert keep_all(graph).peak == 5 and plan.peak == 4
    assert profile(graph, plan.sequence()).peak == plan.peak


def test_what_an_op_overwrites_is_gone_and_its_bytes_serve_again():
    trace = Trace([Op("make", (), (Output(0, 64),), 1), Op("relu_", (0,), (Output(1, 0, 0),), 1, writes=(0,))])
    graph = from_trace(trace)
    plan = keep_all(graph)
    assert plan.peak == 64
    addresses = assign(plan)
    assert [(i.value, i.begin, i.end) for i in addresses.intervals] == [(1, 0, 2)]


STORAGE = Paging(in_latency=1e-9, in_bandwidth=64e9, out_latency=2e-9, out_bandwidth=32e9)
GOOD = [("compute", 0), ("compute", 1), ("free", 0), ("compute", 2), ("free", 1)]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([*GOOD[:3], ("compute", 2), ("compute", 1)], "rule 1: value 0 is not in memory"),
        ([("compute", 1)], "rule 2: the program has only come to node 0"),
        (GOOD[:3], "rule 2: node 2 is never computed"),
        ([*GOOD, ("compute", 0), ("compute", 1)], "rule 3: 6 bytes are in memory, and the budget is 4"),
        ([*GOOD[:3], ("free", 0)], "rule 4: it is not in memory"),
        ([*GOOD, ("in", 0)], "rule 4: it was never paged out"),
        ([("compute", 0), ("out", 0), ("in", 0)], "rule 4: it is in memory"),
        ([*GOOD, ("free", 2)], "rule 5: value 2 is not in memory at the end"),
        ([("compute", 9)], "there is no node 9"),
        ([("free", -1)], "there is no value -1"),
        ([("eat", 0)], "no such kind of step"),
    ],
)
def test_the_checker_refuses_what_is_not_legal(steps, why):
    graph = make([1, 1, 1], [2, 2, 2], [(0, 1), (1, 2)], kept=[2])
    legal = plan_of(graph, [0, 1, 2], 4, "by hand")
    assert check(legal, graph).peak == 4
    with pytest.raises(PlanError, match=why):
        check(replace(legal, steps=tuple(Step(*step) for step in steps)), graph, paging=STORAGE)


def test_the_checker_knows_what_cannot_be_run_again_and_what_storage_holds():
    trace = Trace(
        [
            Source(0, 64),
            Op("once", (0,), (Output(1, 64),), 1, replayable=False),
            Op("read", (0, 1), (Output(2, 64),), 1),
            Op("update", (0, 2), (Output(3, 0, 0),), 1, writes=(0,)),
        ]
    )
    graph = from_trace(trace)
    plan = keep_all(graph)
    assert floor(graph) == (192, 1)
    for again in (0, 2):
        with pytest.raises(PlanError, match="rule 2: it cannot be run again"):
            check(replace(plan, steps=(*plan.steps, Step("compute", again))), graph)
    before = [Step("compute", 0), Step("compute", 1), Step("compute", 1), Step("compute", 2)]
    assert check(replace(plan, steps=tuple(before)), graph).duration == 4
    with pytest.raises(PlanError, match="rule 2: it cannot be run again"):
        check(replace(plan, steps=(*before, Step("compute", 1))), graph)
    paged = (Step("compute", 0), Step("out", 0), Step("free", 0), Step("in", 0), *before[1:])
    found = check(replace(plan, steps=paged), graph, paging=STORAGE)
    assert (found.paged_out, found.paged_in, found.stored) == (64, 64, 64)
    assert (found.computing, found.duration) == (4, 4 + 2 + 4)  # latency and bytes, in and out
    with pytest.raises(PlanError, match="there is no storage to page to"):
        check(replace(plan, steps=paged), graph)
    with pytest.raises(PlanError, match="storage would hold 64 bytes, and has 63"):
        check(replace(plan, steps=paged), graph, paging=replace(STORAGE, capacity=63))


def test_a_plan_for_another_step_is_refused():
    plan = keep_all(chain(3))
    with pytest.raises(PlanError, match="for another step"):
        check(plan, chain(4))
    other = make([7] * 7, [1] * 7, [(i, i + 1) for i in range(6)])
    assert other.fingerprint != chain(3).fingerprint
    slower = replace(chain(3), nodes=tuple(replace(node, cost=5) for node in chain(3).nodes))
    assert slower.fingerprint == chain(3).fingerprint


@pytest.mark.parametrize("seed", range(40))
def test_random_sequences_of_random_traces_are_legal_and_find_addresses(seed):
    chance = random.Random(seed)
    graph = from_trace(build(chance.randbytes(240)))
    sequence = []
    for number in range(len(graph.nodes)):
        for again in sorted(chance.sample(range(number), min(number, 2))):
            if graph.repeatable(again, number):
                sequence += _again(graph, again, number, [])
        sequence.append(number)
    try:
        plan = plan_of(graph, sequence, AMPLE, "at random")
    except PlanError as error:
        assert "is read after it was overwritten" in str(error)  # by a repetition, at random
        return
    assert plan.duration >= graph.cost and profile(graph, sequence).peak == plan.peak
    with pytest.raises(PlanError, match="rule 3"):
        check(plan, graph, budget=plan.peak - 1)
    addresses = assign(plan)
    assert addresses.used <= addresses.needed
    assert_apart(addresses.intervals)


def _again(graph, node, at, done):
    """The node and all that it is made from."""
    for parent in graph.parents[node]:
        if parent not in done and graph.repeatable(parent, at):
            _again(graph, parent, at, done)
    done.append(node)
    return done


def test_a_plan_survives_a_file(tmp_path):
    plan = replace(keep_all(chain(3)), seconds=1.5, about={"hops": 2})
    write(plan, tmp_path / "step.plan")
    assert read(tmp_path / "step.plan") == plan


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-20], "cut off|not a plan"),
        (lambda data: b"nonsense", "not a plan"),
        (lambda data: gzip.compress(b'{"format": "coop-trace"}\n'), "format 'coop-plan'"),
        (
            lambda data: _edited(data, '"version":2', '"version":9'),
            "version 9, and this coop reads versions 1 to 2. Tip",
        ),
        (lambda data: _edited(data, '["compute",2]\n', ""), "cut off"),
        (lambda data: _edited(data, '["compute",2]', '["compute","2"]'), "line 11: not a step"),
        (lambda data: _edited(data, '"peak":5', '"peak":"5"'), "header says '5' for peak"),
    ],
)
def test_a_damaged_file_is_refused(damage, why, tmp_path):
    write(keep_all(chain(3)), tmp_path / "step.plan")
    (tmp_path / "step.plan").write_bytes(damage((tmp_path / "step.plan").read_bytes()))
    with pytest.raises(PlanError, match=why):
        read(tmp_path / "step.plan")


def _edited(data, old, new):
    text = gzip.decompress(data).decode()
    assert old in text
    return gzip.compress(text.replace(old, new, 1).encode())


def test_make_refuses_edges_that_go_backward():
    with pytest.raises(ValueError, match="from 2 to 1 does not go forward"):
        make([1, 1, 1], [1, 1, 1], [(2, 1)])
    assert make([1, 1], [1, 1], [(0, 1)]).nodes[1].over == () and NONE == -1


@pytest.mark.parametrize("seed", range(6))
def test_what_no_order_places_well_is_packed_by_the_solver(seed):
    """Blocks cut from a full rectangle fit into it again."""
    chance = random.Random(seed)
    room, pieces = 1 << 20, [(0, 1 << 20, 0, 60)]
    while len(pieces) < 40:
        low, high, begin, end = pieces.pop(chance.randrange(len(pieces)))
        if (chance.random() < 0.5 and end - begin > 1) or high - low < 1 << 13:
            middle = chance.randint(begin + 1, end - 1) if end - begin > 1 else end
            parts = (
                [(low, high, begin, middle), (low, high, middle, end)] if middle < end else [(low, high, begin, end)]
            )
        else:
            middle = chance.randrange(low + (1 << 12), high, 1 << 12)
            parts = [(low, middle, begin, end), (middle, high, begin, end)]
        pieces += parts
    lives = [Interval(n, high - low, begin, end) for n, (low, high, begin, end) in enumerate(pieces)]
    packed = _packed(lives, room)
    assert sorted(i.value for i in packed) == list(range(len(lives)))
    assert all(i.offset >= 0 and i.offset + i.bytes <= room for i in packed)
    assert_apart(packed)


def assert_apart(intervals):
    for i, one in enumerate(intervals):
        for other in intervals[:i]:
            apart_in_time = one.end <= other.begin or other.end <= one.begin
            assert apart_in_time or one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
