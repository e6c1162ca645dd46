"""What holds for every plan, and the planners that are asked for one."""

import pytest

from coop.plan import PLANNERS, PlanError, check, solve
from coop.plan.planners import BASELINES

ALL = [name for name in PLANNERS if name != "poet"]  # poet minimises joules, and needs a device
FAST = ["treewidth", *BASELINES]
MAY_FAIL = [*FAST, "checkmate-lp"]
LATE = 4.0  # seconds that a planner may take to end on a busy machine

EACH = pytest.mark.parametrize("planner", ALL)
# Checkmate's branch and bound fails when it is cut off: see
# test_checkmate_that_is_cut_off_keeps_its_plan.
HURRIED = pytest.mark.parametrize("planner", [name for name in ALL if name != "checkmate"])


def assert_sound(plan, graph, budget):
    """What holds for every plan, whatever the planner."""
    found = check(plan, graph)
    assert (found.duration, found.peak) == (plan.duration, plan.peak)
    assert plan.peak <= plan.budget == budget
    assert graph.cost == plan.base_duration <= plan.bound <= plan.duration
    assert plan.status in ("optimal", "feasible") and (plan.status == "optimal" or plan.duration > plan.bound)
    assert 0 <= plan.gap < 1 and plan.increase >= 0 and plan.seconds >= 0
    assert len(plan.program) == len(graph.nodes)
    assert plan.planner in PLANNERS


def asked(graph, budget, planner, seconds=1.0, **options):
    """The plan, which is sound. None: there is none, and the error gives a reason."""
    try:
        plan = solve(graph, budget, planner, time_limit=seconds, **options)
    except PlanError as error:
        assert len(str(error)) > 20
        return None
    assert_sound(plan, graph, budget)
    assert plan.planner == planner or "this is the plan of" in plan.about["note"]
    return plan
