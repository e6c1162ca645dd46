"""When a planner stops: at its time limit, at `stop`, and at Ctrl-C. It keeps the best plan."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from graphs import LARGE, chain, layered
from soundness import ALL, HURRIED, LATE, asked, assert_sound

from coop.plan import PlanError, check, floor, graph_of, peak_of, planners, solve
from coop.plan.planners import BASELINES
from coop.plan.search.search import Search
from step_traces import transformer

# --- time ----------------------------------------------------------------------------------------------------------------


@HURRIED
def test_the_time_limit_is_kept(planner):
    begin = time.monotonic()
    asked(LARGE, int(0.7 * peak_of(LARGE)), planner, 0.5)
    assert time.monotonic() - begin < 0.5 + LATE


@HURRIED
def test_a_limit_that_is_too_short_leaves_a_plan_with_a_note_or_a_reason(planner):
    graph = chain(60)
    begin = time.monotonic()
    plan = asked(graph, int(0.6 * peak_of(graph)), planner, 1e-6)
    assert time.monotonic() - begin < LATE
    if plan is not None and plan.planner != planner:
        assert plan.planner in BASELINES and plan.about["note"].endswith(f"this is the plan of {plan.planner}")


def test_checkmate_that_is_cut_off_keeps_its_plan():
    graph = chain(20)
    assert asked(graph, 12, "checkmate", 1e-6).planner == "checkmate"


@pytest.mark.parametrize("planner", ["keep-all", "chen-sqrt"])
def test_who_cannot_leaves_it_to_the_next_baseline_and_says_so(planner):
    graph = chain(60)
    plan = asked(graph, 12, planner)
    assert plan.planner in BASELINES and plan.planner != planner
    assert plan.about["note"].endswith(f"; this is the plan of {plan.planner}")
    assert "the budget is" in plan.about["note"]


def test_if_no_baseline_fits_the_reason_is_the_planners_own():
    graph = layered(60, 150, 0)
    with pytest.raises(PlanError, match=r"keeping everything needs .* and the budget is"):
        solve(graph, floor(graph)[0], "keep-all")


# --- stop ----------------------------------------------------------------------------------------------------------------


# Nor checkmate-lp: HiGHS does not stop, see test_bounds.py.
@pytest.mark.parametrize("planner", [name for name in ALL if not name.startswith("checkmate")])
def test_a_search_that_is_stopped_ends_soon_with_what_it_has(planner):
    graph = layered(120, 290, 2)
    search = Search(graph, int(0.75 * peak_of(graph)), 300)
    function = planners._function(planner)
    timer = threading.Timer(0.4, search.stop)
    timer.start()
    begin = time.monotonic()
    try:
        function(search)
    except PlanError as error:
        assert search.duration is None
        assert len(str(error)) > 20
    assert time.monotonic() - begin < 0.4 + LATE
    timer.join()
    assert search.seconds_left() == 0
    if search.duration is not None:
        assert_sound(search.plan(planner), graph, search.budget)


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(seconds):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.parametrize("report", [None, lambda progress: None], ids=["silent", "reported"])
def test_ctrl_c_keeps_the_best_plan(report, interruptible):
    timer = interrupt_after(0.8)
    plan = solve(LARGE, int(0.8 * peak_of(LARGE)), "auto", time_limit=300, report=report)
    timer.join()
    assert_sound(plan, LARGE, int(0.8 * peak_of(LARGE)))
    assert plan.about["interrupted"] is True and plan.seconds < 0.8 + LATE


WASTEFUL = [0, 1, 2, 3, 4, 0, 5, 6]


def test_after_ctrl_c_the_planner_is_waited_for(interruptible, monkeypatch):
    """A plan that it offers while it stops counts, and its thread has ended when `solve`
    returns."""
    ended = threading.Event()

    def slow(search):
        search.offer(WASTEFUL)
        while search.seconds_left():
            time.sleep(0.01)
        time.sleep(0.5)
        search.offer(range(7))
        ended.set()

    monkeypatch.setattr("coop.plan.heuristic.keep_all.keep_all", slow)
    timer = interrupt_after(0.5)
    plan = solve(chain(3), 100, "keep-all", time_limit=300)
    timer.join()
    late = not ended.wait(2)
    assert not late
    assert plan.about["interrupted"] is True
    assert plan.increase == 0


def test_ctrl_c_while_addresses_are_sought_keeps_the_plan(interruptible, monkeypatch):
    """Ctrl-C comes after the planner has ended: the plan is complete, with the addresses found so
    far."""
    stopped = []

    def slow(search, model, **_):
        while not search.stopped:
            time.sleep(0.01)
        stopped.append(search)
        return None, None

    graph = graph_of(transformer())
    monkeypatch.setattr("coop.plan.running.packing.run_cp", slow)
    monkeypatch.setattr("coop.plan.running.packing._place", lambda order, placed=(): _stacked(order))
    timer = interrupt_after(1.0)
    plan = solve(graph, int(0.8 * peak_of(graph)), "treewidth", time_limit=300)
    timer.join()
    assert len(stopped) == 1 and "interrupted" not in plan.about
    check(plan, graph)


def _stacked(order):
    """Places each above the one before: a bad packing, which does not fit."""
    top, found = 0, []
    for interval in order:
        found.append(replace(interval, offset=top))
        top += interval.bytes
    return found
