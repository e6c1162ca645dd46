"""A search: the task of a planner, and the plans that it has found.

A planner is a function of a search. It offers plans, each of which is checked before it counts, and
raises the bound. When it returns, the best plan offered is the answer. `seconds_left` says how long
it may continue. That is 0 after `stop`.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from coop.plan.model.check import Checked, check
from coop.plan.model.graph import Graph
from coop.plan.model.plan import Plan, PlanError, Step, program_of
from coop.plan.model.schedule import steps_of
from coop.trace.paging import Paging

Objective = Callable[[Checked], float]


@dataclass(frozen=True)
class Progress:
    seconds: float
    increase: float | None
    """By how much the best plan so far increases the duration, as a fraction. None: there is no
    plan yet."""
    bound: float
    """No plan increases it by less."""
    stage: str
    """The current phase."""

    @property
    def gap(self) -> float | None:
        return None if self.increase is None else max(0.0, (self.increase - self.bound) / (1 + self.increase))


class Search:
    """One attempt to plan a graph in a budget. May be used from any thread."""

    def __init__(self, graph: Graph, budget: int, seconds: float = 60.0, *, workers: int = 2) -> None:
        self.graph, self.budget, self.workers = graph, budget, workers
        self.paging: Paging | None = None
        """Where plans may page to. Set by the planner."""
        self.objective: Objective = lambda checked: checked.duration
        """What is minimised. A planner may set its own."""
        self.about: dict[str, Any] = {}
        """The planner's remarks on its plan."""
        self.stage = ""
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        self._here = threading.local()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._stoppers: list[Callable[[], Any]] = []
        self._best: tuple[float, tuple[Step, ...], Checked] | None = None
        self._bound = graph.cost
        self._optimal = False

    # --- the clock -----------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begin

    def seconds_left(self, share: float = 1.0) -> float:
        """Seconds that the planner may still use, or a share of them. 0: it should end."""
        end = min(self._end, getattr(self._here, "end", self._end))
        return 0.0 if self._stopped.is_set() else max(end - time.monotonic(), 0.0) * share

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Inside, on this thread, at most so many seconds are left."""
        self._here.end = time.monotonic() + seconds
        try:
            yield
        finally:
            del self._here.end

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            stoppers = list(self._stoppers)
        for stopper in stoppers:
            stopper()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @contextmanager
    def stopping(self, stopper: Callable[[], Any]) -> Iterator[None]:
        """Inside, `stop` calls this function. For solvers that do not look at the clock
        themselves."""
        with self._lock:
            self._stoppers.append(stopper)
        if self._stopped.is_set():
            stopper()
        try:
            yield
        finally:
            with self._lock:
                self._stoppers.remove(stopper)

    # --- what is found -------------------------------------------------------------------------------------------------

    @property
    def sequence(self) -> list[int] | None:
        """Of the best plan so far."""
        return None if self._best is None else [step.number for step in self._best[1] if step.kind == "compute"]

    @property
    def duration(self) -> int | None:
        return None if self._best is None else self._best[2].duration

    @property
    def bound(self) -> int:
        return self._bound

    def offer(self, sequence: Sequence[int]) -> bool:
        """Offers a plan without paging. True: it is the best so far. Raises PlanError if it is not
        legal."""
        return self.offer_steps(steps_of(self.graph, sequence))

    def offer_steps(self, steps: Sequence[Step]) -> bool:
        draft = Plan(tuple(steps), self.graph.fingerprint, self.budget, "", 0, self.graph.cost, 0)
        checked = check(draft, self.graph, paging=self.paging)
        worth = self.objective(checked)
        with self._lock:
            if self._best is not None and worth >= self._best[0]:
                return False
            self._best = worth, draft.steps, checked
            return True

    def offer_if_legal(self, sequence: Sequence[int]) -> bool:
        """For a plan that may exceed the budget. True: it is legal and the best so far."""
        try:
            return self.offer(sequence)
        except PlanError:
            return False

    def raise_bound(self, bound: float) -> None:
        """Raises the bound: no legal plan takes less. Durations are whole nanoseconds, so the bound
        is too."""
        with self._lock:
            self._bound = max(self._bound, math.ceil(bound))

    def prove(self) -> None:
        """The best plan so far is the best of Checkmate's form (Plan.status). The bound, which is
        for all plans, stays."""
        self._optimal = True

    @property
    def proven(self) -> bool:
        """No better plan exists."""
        return self._best is not None and (self._optimal or self._best[2].duration <= self._bound)

    def progress(self) -> Progress:
        base = self.graph.cost
        increase = None if self._best is None else _increase(self._best[2].duration, base)
        return Progress(self.seconds, increase, _increase(self._bound, base), self.stage)

    def plan(self, planner: str) -> Plan:
        """The best plan so far. Raises PlanError if there is none."""
        if self._best is None:
            raise PlanError(f"{planner} has found no plan")
        _, steps, checked = self._best
        about = dict(self.about)
        if self.paging is not None:
            about |= {"paging": asdict(self.paging), "paged_out": checked.paged_out, "paged_in": checked.paged_in}
        bound = min(self._bound, checked.duration)
        return Plan(
            steps,
            self.graph.fingerprint,
            self.budget,
            planner,
            checked.duration,
            self.graph.cost,
            checked.peak,
            bound,
            "optimal" if self.proven else "feasible",
            round(self.seconds, 3),
            about,
            program_of(self.graph),
        )


def _increase(duration: int, base: int) -> float:
    """As a fraction; a trace may not say how long its ops took."""
    return duration / base - 1 if base else 0.0
