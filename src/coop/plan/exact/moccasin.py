"""moccasin: a constraint program with O(n) integers, for OR-tools CP-SAT.

Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML 2023.

A value stays in memory for at most C intervals. Each has a start, an end, and whether it is used
at all. The duration is minimised: the cost of each node once, and again for each further interval.
Constraints:

1. The clock has stages. Node t runs for the first time at the end of stage t. Before that, nodes
   run again in order, node v at t(t+1)/2 + v. So no two starts are the same, and one integer says
   both when a node runs and before which.
2. At each start, some interval of each input covers it. One Boolean for each pair of intervals
   says which.
3. Memory is one cumulative constraint.

Two phases: first memory alone is minimised, down to the budget (not needed if greedy.py finds a
plan), then the duration. At first, reruns are allowed only where a reader runs for the first time;
then also where a reader may run again; then everywhere. Each phase starts from the best plan so
far.

What differs: nodes may make several values (one start, an end for each), overwrite what they read
(its interval ends as theirs begins), and some cannot be run again, at all or from some node on.
Scratch, sources as they come and go, and values that outlive the step are counted. Memory also
counts while nodes run again. Bytes and costs are divided by their greatest common divisor, so
nothing is rounded.

Paging, as in the published code: an interval may begin by bringing the value in, which needs no
inputs. Its transfers are part of the duration. What goes to storage stays there and must fit.

CP-SAT's bound holds only for plans with at most C intervals. So it is given as `model_bound`, and
is not the plan's bound.
"""

from collections.abc import Sequence

from coop.plan.exact.intervals import Intervals
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.schedule import profile
from coop.plan.search.greedy import greedy
from coop.plan.search.search import Search
from coop.sizes import format_bytes
from coop.trace.paging import Paging

HOST = Paging(in_latency=1e-5, in_bandwidth=1.2e10, out_latency=1e-5, out_bandwidth=1.2e10)
"""Memory behind 16 lanes of PCIe 3: the default for paging."""

_REACHES = {1: "where a reader runs", 2: "where a reader may run again", 0: "everywhere"}
"""How many readers away a node may run again; 0: no limit."""


def moccasin(search: Search, *, intervals: int = 2, paging: Paging | bool | None = None) -> None:
    if intervals < 1:
        raise ValueError(f"a value is in memory for at least 1 interval, not {intervals}")
    search.paging = HOST if paging is True else paging or None
    steps, fits = _start(search)
    for reach, where in _REACHES.items():
        share = 1.0 if reach == 0 else 0.5
        if not fits and search.seconds_left():
            search.stage = f"memory, runs again {where}"
            model = Intervals(search, intervals, reach, steps, soft=True)
            steps, _ = model.run(search.seconds_left(share), steps)
            fits = model.fits
        if fits and search.seconds_left() and not search.proven:
            search.stage = f"duration, runs again {where}"
            model = Intervals(search, intervals, reach, steps)
            steps, optimal = model.run(search.seconds_left(share), steps)
            if reach == 0 and model.bound:
                search.about["model_bound"] = model.bound
            if reach == 0 and optimal:
                search.about["optimal"] = f"among plans with at most {intervals} intervals for each value"
    if search.duration is None:
        raise PlanError(
            f"moccasin found no plan for {format_bytes(search.budget)} with at most {intervals} intervals for each "
            "value. Tip: more intervals, or a longer time limit"
        )


def _start(search: Search) -> tuple[Sequence[Step], bool]:
    """Steps to start from, and whether they fit."""
    graph = search.graph
    sequence: Sequence[int] = range(len(graph.nodes))
    fits = profile(graph, sequence).peak <= search.budget
    if not fits:
        try:
            sequence = greedy(graph, search.budget)
            fits = True
        except PlanError:
            pass
    if fits:
        search.offer(sequence)
    return [Step("compute", node) for node in sequence], fits
