"""The ideal simulator keeps the rules of DTR's own: a worked example, and a plain reference on
random traces."""

import math
from dataclasses import asdict
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ideal_reference import reference

from coop import _C
from coop.simulate import ideal
from coop.simulate.ideal import POLICIES
from coop.trace import Hold, Op, Output, Release, Source, Trace
from coop.trace.dtr_log import end_order
from random_traces import build, traces

pytestmark = pytest.mark.slow

SHARES = (0.8, 0.6, 0.4)
on_random_traces = settings(
    derandomize=True, database=None, deadline=None, max_examples=80, suppress_health_check=list(HealthCheck)
)


def worked_example() -> Trace:
    """Of the page that describes DTR's logs: three layers, forward and backward, and a step of the
    optimizer."""
    w, x1, x2, v2, x3, g2, g1, gw, w_new = range(9)
    return Trace([
        Source(w, 4),
        Op("a", (w,), (Output(x1, 10),), 5),
        Op("b", (x1,), (Output(x2, 10),), 7),
        Op("view", (x2,), (Output(v2, 0, alias=0),), 1),
        Op("c", (v2,), (Output(x3, 10),), 3),
        Op("c_backward", (x3, x2), (Output(g2, 10),), 2, "backward"),
        Release(x3), Release(v2), Release(x2),
        Op("b_backward", (g2, x1), (Output(g1, 10),), 2, "backward"),
        Release(g2), Release(x1),
        Op("a_backward", (g1, w), (Output(gw, 4),), 2, "backward"),
        Release(g1),
        Op("sgd_", (w, gw), (Output(w_new, 0, alias=0),), 1, "optimizer", writes=(0,)),
        Release(w), Release(gw),
    ])  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_the_worked_example_costs_what_its_page_says(policy):
    trace = worked_example()
    for budget in range(60):
        result = ideal(trace, budget, policy)
        assert (result.baseline_cost, result.baseline_peak) == (23, 44)
        assert asdict(result) == reference(trace, end_order(trace), budget, policy)
        if budget <= 33:
            assert result.status == "out_of_memory"
        else:
            assert result.status == "ok"
            assert result.overhead == (1 + (28 if budget < 44 else 23)) / 23
            assert result.rematerialisations == (1 if budget < 44 else 0)


def agree(trace, shares=SHARES, reading="kept", policies=POLICIES):
    order = end_order(trace)
    for policy in policies:
        for share in shares:
            assert asdict(ideal(trace, share, policy, limit=3.0)) == reference(
                trace, order, share, policy, limit=3.0, reading=reading
            )


@on_random_traces
@given(traces())
def test_agrees_with_the_reference(trace):
    agree(trace)


@on_random_traces
@given(traces(large=True), st.sampled_from(SHARES))
def test_agrees_with_the_reference_where_numbers_do_not_fit_a_double(trace, share):
    agree(trace, (share,))


@on_random_traces
@given(traces(after_release=True), st.sampled_from(SHARES))
def test_agrees_with_the_reference_where_ops_read_what_nobody_holds(trace, share):
    agree(trace, (share,))


@on_random_traces
@given(traces(views_of_several=True), st.sampled_from(SHARES))
def test_agrees_with_the_reference_on_views_of_several_storages(trace, share):
    agree(trace, (share,))


@on_random_traces
@given(traces(fan_in=1, view_cost=False))
def test_what_is_kept_about_neighbours_is_what_a_walk_finds(trace):
    agree(trace, (0.8, 0.5), reading="walked", policies=("dtr", "msps"))


def test_a_view_of_an_evicted_storage_counts_where_its_neighbours_are_walked_again():
    a, s, cheap, last, dear, filler, view = range(1, 8)
    trace = Trace([
        Source(0, 0),
        Op("a", (0,), (Output(a, 8),), 10),
        Op("s", (a,), (Output(s, 0),), 10),
        Op("cheap", (0,), (Output(cheap, 4),), 1),
        Op("last", (s, cheap), (Output(last, 4),), 2),
        Release(a), Release(s),
        Op("dear", (0,), (Output(dear, 4),), 100),
        Source(filler, 8),
        # Room for a again: first `cheap` leaves, then `last`, above which s is still counted
        # without its view.
        Op("view", (s,), (Output(view, 0, alias=0),), 1000),
        Op("use", (dear,), (Output(view + 1, 0),), 1),
    ])  # fmt: skip
    for budget in (20, 24, 28):
        for policy in POLICIES:
            expected = reference(trace, end_order(trace), budget, policy, limit=3.0)
            assert asdict(ideal(trace, budget, policy, limit=3.0)) == expected
    for seed in (696, 1274, 2677, 3493):
        random = Random(seed)
        agree(build(random.randbytes(8 * random.randrange(15, 60))), (0.7, 0.5), policies=("dtr", "msps"))


@settings(on_random_traces, max_examples=400)
@given(st.integers(2**53, 2**56), st.integers(1, 2**20), st.integers(1, 2**30), st.permutations(range(8)))
def test_scores_tie_where_python_rounds_them_to_the_same(cost, size, staleness, more):
    trace = Trace([
        *(Op("f", (), (Output(i, size),), cost + more[i]) for i in range(8)),
        Op("wait", tuple(range(8)), (Output(8, 0),), staleness),
        Op("g", (), (Output(9, size),), 7),
        *(Release(i) for i in range(10)),
    ])  # fmt: skip
    one_too_few = 8 * size
    result = ideal(trace, one_too_few, "dtr-local")
    assert result.evictions == 1
    # Whichever is evicted comes back, at its own cost.
    again = Trace([*trace.instructions[:10], Release(9), *(Op("h", (i,), (Output(10 + i, 0),), 0) for i in range(8))])
    assert asdict(ideal(again, one_too_few, "dtr-local")) == reference(
        again, end_order(again), one_too_few, "dtr-local"
    )


def test_a_chain_as_long_as_the_trace_comes_back():
    length = 20_000
    chain = [Source(0, 1)]
    for i in range(1, length + 1):
        chain += [Op("f", (i - 1,), (Output(i, 1),), 1)]
    chain += [Release(i) for i in range(1, length)]
    result = ideal(Trace([*chain, Op("g", (length - 1,), (Output(length + 1, 0),), 1)]), 1.0, "lru", limit=math.inf)
    assert result.status == "ok"
    assert result.rematerialisations == length - 1


def test_an_op_needs_room_for_its_scratch():
    trace = Trace([Source(0, 4), Op("f", (0,), (Output(1, 4),), 3, scratch=8)])
    assert ideal(trace, 15, "lru").status == "out_of_memory"
    result = ideal(trace, 16, "lru")
    assert (result.status, result.peak, result.baseline_peak) == ("ok", 16, 16)


def test_an_op_may_have_no_outputs():
    trace = Trace([Source(0, 4), Op("f", (0,), (Output(1, 4),), 3), Op("check", (1,), (), 5), Hold(1), Release(1)])
    assert ideal(trace, 8, "dtr").overhead == 9 / 8


def test_a_trace_without_cost_has_no_overhead():
    assert ideal(Trace([Source(0, 4)]), 1.0, "dtr").overhead == 1.0


def test_more_than_twice_the_time_is_thrashing():
    first = [Source(0, 0), *(Op("f", (0,), (Output(i, 10),), 10) for i in (1, 2))]
    again = [Op("g", (1 + i % 2,), (Output(3 + i, 0),), 0) for i in range(8)]
    trace = Trace([*first, *again])
    assert ideal(trace, 10, "lru").status == "thrash"
    assert ideal(trace, 10, "lru", limit=math.inf).overhead > 2


def test_bad_arguments_are_refused():
    trace = worked_example()
    with pytest.raises(ValueError, match="unknown policy 'coop'; the ideal simulator knows dtr, dtr-eq"):
        ideal(trace, 40, "coop")
    for budget in (-1, math.nan, math.inf, True):
        with pytest.raises(ValueError, match="a budget is a number of bytes"):
            ideal(trace, budget, "dtr")
    with pytest.raises(ValueError, match="too large"):
        ideal(Trace([Source(0, 2**62)]), 1.0, "dtr")


@pytest.mark.parametrize("code", [[7], [0], [3, 0], [1, 0, 0, 1, 0, 5], [1, 0, 0, 0, 1, 4, 2], [0, -1]])
def test_a_program_that_makes_no_sense_is_refused(code):
    with pytest.raises(ValueError, match=r"program|an output"):
        _C.ideal(code, [], 1.0, "dtr", 2.0)
