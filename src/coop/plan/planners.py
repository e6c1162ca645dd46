"""The planners by name, and `solve`, which asks one of them.

A planner runs on a thread of its own, so that the caller can watch its progress and stop it. Ctrl-C
stops it too, and the best plan so far is kept. Then the addresses of the plan are solved, once.
"""

import importlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from coop.plan.model.graph import Graph, from_trace
from coop.plan.model.plan import Plan, PlanError, floor
from coop.plan.model.schedule import peak_of
from coop.plan.running.packing import PATIENCE, with_addresses
from coop.plan.search.coarse import in_the_coarse
from coop.plan.search.search import Progress, Search
from coop.sizes import format_bytes, parse_budget
from coop.trace.trace import Trace

_FUNCTIONS = {
    "auto": ("search.auto", "auto"),
    "checkmate": ("exact.checkmate", "checkmate"),
    "checkmate-lp": ("exact.checkmate", "rounded"),
    "moccasin": ("exact.moccasin", "moccasin"),
    "poet": ("poet.poet", "poet"),
    "treewidth": ("heuristic.treewidth", "treewidth"),
    "chen-sqrt": ("heuristic.chen", "sqrt"),
    "chen-greedy": ("heuristic.chen", "greedy"),
    "treeverse": ("heuristic.treeverse", "treeverse"),
    "keep-all": ("heuristic.keep_all", "keep_all"),
}
PLANNERS = tuple(_FUNCTIONS)
_COARSE = ("checkmate", "checkmate-lp", "moccasin")
"""Their programs grow faster than the graph."""
BASELINES = ("keep-all", "chen-sqrt", "chen-greedy", "treeverse")
"""They finish at once."""


_PATIENCE = 60.0  # seconds: not every solver stops at once


def solve(
    graph: Graph | Trace,
    budget: int | float | str,
    planner: str = "auto",
    *,
    time_limit: float = 60.0,
    workers: int = 2,
    report: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Plan:
    """The best plan that a planner finds for a step in a budget within so many seconds, with
    addresses.

    `budget` is an int of bytes, a float for a share of the step's own peak, or a string such as
    "4GiB" or "80%". `report` is called a few times a second. Further keywords are the planner's
    own: moccasin has `paging`, poet `device`, `slowdown` and `storage`. Raises PlanError, a
    ValueError, if there is no plan; its text says why.

    The time limit is the planner's. Where no simple order places all values, their addresses take
    some seconds more.
    """
    search, found = _solve(graph, budget, planner, time_limit, workers, report, options)
    search.stage = "addresses"
    placed: list[Plan] = []

    def work(search: Search) -> None:
        placed.append(with_addresses(found, search, patience=min(PATIENCE, time_limit)))

    failure = _run(search, work, {}, report)
    if failure is not None:
        raise failure
    return placed[0] if placed else found  # Ctrl-C was pressed twice


def solve_sequence(graph: Graph, budget: int, planner: str, *, time_limit: float) -> list[int]:
    """The nodes in the order in which the best plan computes them: for callers that need no
    addresses. Raises PlanError."""
    return _solve(graph, budget, planner, time_limit, 2, None, {})[1].sequence()


def _solve(
    graph: Graph | Trace,
    budget: int | float | str,
    planner: str,
    time_limit: float,
    workers: int,
    report: Callable[[Progress], None] | None,
    options: dict[str, Any],
) -> tuple[Search, Plan]:
    function = _function(planner)
    if planner in _COARSE and not options:
        function = partial(in_the_coarse, function)
    if not time_limit > 0:
        raise ValueError(f"a time limit is a number of seconds above 0, not {time_limit}")
    if isinstance(graph, Trace):
        graph = from_trace(graph)
    if not graph.nodes:
        raise PlanError("the step has no ops: there is nothing to plan")
    search = Search(graph, budget_in(graph, budget, paging=_pages(planner, options)), time_limit, workers=workers)
    failure = _run(search, function, options, report)
    if failure is not None and not isinstance(failure, PlanError):
        raise failure
    if search.duration is not None:
        return search, search.plan(planner)
    for baseline in BASELINES:
        try:
            _function(baseline)(search)
        except PlanError:
            continue
        if search.duration is not None:
            why = str(failure) if failure else f"{planner} found no plan within {time_limit:g} s"
            search.about["note"] = f"{why}; this is the plan of {baseline}"
            return search, search.plan(baseline)
    if failure is not None:
        raise failure
    raise PlanError(
        f"{planner} found no plan for {format_bytes(search.budget)} within {time_limit:g} s, and none of the baselines fits. "
        f"Tip: a longer time limit, or a budget nearer to the step's own peak of {format_bytes(peak_of(graph))}"
    )


def budget_in(graph: Graph, budget: int | float | str, *, paging: bool = False) -> int:
    """In bytes. Raises PlanError if no plan can exist; without paging, that is known at once."""
    given = parse_budget(budget) if isinstance(budget, str) else budget
    peak = peak_of(graph)
    count = int(given * peak) if isinstance(given, float) else given
    least, setter = floor(graph, paging=paging)
    if count >= least:
        return count
    what = f"node {setter} ({graph.nodes[setter].name})" if setter < len(graph.nodes) else "the end of the step"
    raise PlanError(
        f"a budget of {format_bytes(count)} ({count} bytes) is below the floor: {what} needs {format_bytes(least)} ({least} "
        f"bytes) with its operands, the sources and whatever cannot be recomputed; the step's own peak is {format_bytes(peak)}. "
        f"Tip: {least} bytes, or {-(-1000 * least // peak) / 10:.1f}%, is the smallest budget that can work"
    )


def _pages(planner: str, options: dict[str, Any]) -> bool:
    return planner == "poet" or bool(options.get("paging"))


def _function(planner: str) -> Callable[..., None]:
    if planner not in _FUNCTIONS:
        raise ValueError(f"there is no planner {planner!r}; the known ones are {', '.join(PLANNERS)}")
    module, name = _FUNCTIONS[planner]
    function: Callable[..., None] = getattr(importlib.import_module(f"coop.plan.{module}"), name)
    return function


def _run(
    search: Search, function: Callable[..., None], options: dict[str, Any], report: Callable[[Progress], None] | None
) -> Exception | None:
    """The planner's exception, if it raised one."""
    failures: list[Exception] = []
    # Not join: a thread whose join was interrupted may report that it has ended when it has not.
    done = threading.Event()

    def work() -> None:
        try:
            function(search, **options)
        except Exception as failure:
            failures.append(failure)
        finally:
            done.set()

    threading.Thread(target=work, name="coop-planner", daemon=True).start()
    try:
        while not done.wait(0.2 if report else 1.0):
            if report:
                report(search.progress())
        if report:
            report(search.progress())
    except BaseException as reason:
        search.stop()
        done.wait(_PATIENCE)  # a second Ctrl-C ends the wait
        if not isinstance(reason, KeyboardInterrupt):
            raise
        search.about["interrupted"] = True
    return failures[0] if failures else None
