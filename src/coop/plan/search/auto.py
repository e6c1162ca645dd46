"""auto: the planner to call. It combines the others under one time limit.

1. If everything fits, everything is kept.
2. A first plan, at once: by dropping gaps (greedy.py), and from what the policy coop does without a
   plan, played on the engine.
3. A plan from one cut (cut.py), and the bound that belongs to it (bounds.py). For most training
   steps, only a small certified gap is left after that.
4. Replays that drop by price, with and without a tree of separators (treewidth.py).
5. Annealing, from the best plan and from the cheapest cut, fitting or not (anneal.py).
6. The staged model (staged.py) around the best plan: first with reruns where a node's readers run,
   then, if the graph is small, with all reruns, which is exact.

It ends when the bound is reached, or nearly, or the time is over.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coop.plan.exact.solvers import missing
from coop.plan.exact.staged import everywhere, near, solve
from coop.plan.heuristic.treewidth import treewidth
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import peak_of, prune, reruns_of
from coop.plan.search.anneal import anneal
from coop.plan.search.bounds import bound, moments
from coop.plan.search.cut import cut
from coop.plan.search.greedy import greedy
from coop.plan.search.search import Search
from coop.sizes import format_bytes
from coop.trace.trace import Op

_CLOSE = 1e-4  # a gap that is not worth more time
_SMALL = 130  # nodes: up to this size the staged model gets all reruns at once
_MEDIUM = 700  # nodes: up to this size the staged model helps
_LARGE = 4000
_HOT = (0.03, 0.01)  # the first temperature is low: the start is good
_HOT_IF_SMALL = (0.3, 0.1)
_SOON = 1.0  # seconds after which annealing finds no more in a small graph


@dataclass
class _Shown:
    """What its parts have proven, besides the plans and the bound that the search keeps."""

    impossible: bool = False
    """No plan fits: what has to be in memory at the moment with the least room does not fit."""
    best_near: int | None = None
    """No plan that runs nodes again only where their readers run for the first time takes less.
    Nanoseconds."""


def auto(search: Search) -> None:
    graph = search.graph
    shown = _Shown()
    if peak_of(graph) <= search.budget:
        search.offer(range(len(graph.nodes)))
        search.prove()
        return
    search.stage = "greedy"
    with contextlib.suppress(PlanError):  # others may do better
        search.offer(greedy(graph, search.budget))
    _as_the_policy_does(search)
    without = missing()
    if without is None:
        with _Beside(lambda: _raise_bound(search, shown)):
            _with_solvers(search, shown)
        if shown.impossible and search.duration is None:
            raise PlanError(
                f"no plan fits into {format_bytes(search.budget)}: at the moment at which memory is shortest, what has to be there "
                "does not"
            )
    else:
        search.about["note"] = f"without a bound, and with half of the methods: {without}"
        _replay(search)
        while not _done(search):
            _anneal(search, [])
    best = search.sequence
    if best is not None:  # annealing may leave reruns that are not needed
        search.offer_if_legal(prune(graph, best))
        if search.duration == shown.best_near and not search.proven:
            search.about["optimal"] = (
                "among plans that run a node again only where one of its readers runs for the first time"
            )


def _as_the_policy_does(search: Search) -> None:
    """The reruns of the policy coop without a plan, if the step completes: a plan must not be
    worse."""
    from coop.simulate.player import Player  # which can follow plans

    trace = search.graph.trace
    if trace is None:
        return
    search.stage = "policy"
    played = Player(trace).play(search.budget)
    if played.status != "ok":
        return
    ops = [at for at, instruction in enumerate(trace.instructions) if isinstance(instruction, Op)]
    node_at = {ops[node.op]: number for number, node in enumerate(search.graph.nodes)}
    again: dict[int, list[int]] = {}
    for before, which in played.replays:
        again.setdefault(before, []).append(node_at[which])
    search.offer_if_legal([node for at in ops if at in node_at for node in (*again.get(at, ()), node_at[at])])


def _with_solvers(search: Search, shown: _Shown) -> None:
    nodes = len(search.graph.nodes)
    search.stage = "cut"
    starts = _from_cut(search)
    if _done(search):
        return
    small = nodes <= _SMALL
    if not small:
        _replay(search)
    if not _done(search):
        _anneal(search, starts)
    if nodes <= _MEDIUM and not _done(search):
        _improve(search, shown, 0.2 if small else 0.5)
    if small and not _done(search) and _solve_exactly(search):
        return
    while not _done(search):
        _anneal(search, [])


def _done(search: Search) -> bool:
    if search.proven or not search.seconds_left():
        return True
    return search.duration is not None and search.duration - search.bound <= _CLOSE * search.duration


def _raise_bound(search: Search, shown: _Shown) -> None:
    """One moment, whole; then more moments."""
    count = 1
    found = bound(search, moments(search.graph, 1), seconds=search.seconds_left(0.3), whole=True)
    while found is not None and search.seconds_left():
        if found == math.inf:
            shown.impossible = True
            search.stop()
            return
        search.raise_bound(found)
        # A small graph is soon solved exactly, and the processors are needed for that.
        if _done(search) or count >= (16 if len(search.graph.nodes) <= _SMALL else 64):
            return
        count *= 4
        found = bound(search, moments(search.graph, count), seconds=search.seconds_left(0.3))


def _from_cut(search: Search) -> list[list[int]]:
    """The start: the cheapest sequence, whether it fits or not."""
    first: list[list[int]] = []
    share = 0.1 if len(search.graph.nodes) <= _SMALL else 0.4
    for sequence in cut(search, seconds=search.seconds_left(share)):
        first = first or [sequence]
        search.offer_if_legal(sequence)
    return first


def _solve_exactly(search: Search) -> bool:
    search.stage = "exact"
    if not _staged(search, everywhere, search.seconds_left()):
        return False
    search.prove()
    return True


def _improve(search: Search, shown: _Shown, share: float) -> None:
    search.stage = "staged"
    if _staged(search, near, search.seconds_left(share)):
        shown.best_near = search.duration


def _staged(search: Search, reruns: Callable[..., set[tuple[int, int]]], seconds: float) -> bool:
    """Whether the best plan with these reruns was found."""
    best = search.sequence
    try:
        return solve(search, reruns(search.graph) | reruns_of(best or []), start=best, seconds=seconds).optimal
    except PlanError:
        return False


def _replay(search: Search) -> None:
    """Replays that drop by price. They are the best start where no single cut fits, and at very
    tight budgets."""
    large = len(search.graph.nodes) > _LARGE  # annealing finds little there
    share = 0.15 if search.duration is not None and not large else 0.6
    with contextlib.suppress(PlanError), search.within(search.seconds_left(share)):
        treewidth(search)


def _anneal(search: Search, starts: Sequence[list[int]]) -> None:
    """Anneals from all these and from the best plan so far, in parallel."""
    search.stage = "annealing"
    best = search.sequence
    several = [*starts, *([best] if best else [])] or [list(range(len(search.graph.nodes)))]
    if len(several) == 1:
        several *= search.workers
    seconds = search.seconds_left(0.3)
    hot = _HOT
    if len(search.graph.nodes) <= _SMALL:
        seconds, hot = min(seconds, _SOON), _HOT_IF_SMALL
    threads = [
        threading.Thread(
            target=anneal, args=(search, start), kwargs={"seconds": seconds, "seed": seed, "hot": hot[seed % 2]}
        )
        for seed, start in enumerate(several[: search.workers])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Beside:
    """Runs work on another thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.thread = threading.Thread(target=work)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.thread.join()
