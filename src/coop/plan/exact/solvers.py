"""The solvers of OR-tools: CP-SAT for constraint programs, and HiGHS, GLOP and PDLP for linear and
mixed-integer ones.

They are optional. If they are not installed, MissingSolver says which package is needed. All of
them stop when the search does.
"""

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from coop.plan.search.search import Search

Value = Callable[[Any], int]
"""The value of a variable in a solution."""


class MissingSolver(ImportError):
    """A solver is not installed."""


def missing() -> str | None:
    """A sentence if the solvers are not installed."""
    try:
        cp_model(), math_opt()
    except MissingSolver as error:
        return str(error)
    return None


def cp_model() -> Any:
    """The module of CP-SAT."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingSolver(_SENTENCE) from error
    return cp_model


def math_opt() -> Any:
    """The module of the linear solvers."""
    try:
        from ortools.math_opt.python import mathopt
    except ImportError as error:
        raise MissingSolver(_SENTENCE) from error
    return mathopt


_SENTENCE = (
    "this planner needs the solvers of OR-tools, which are not installed. Tip: pip install 'ortools>=9.15'; "
    "the planners keep-all, chen-sqrt, chen-greedy, treeverse and treewidth need none"
)


def run_cp(
    search: Search | None, model: Any, *, seconds: float, heard: Callable[[Value], Any] | None = None, **parameters: Any
) -> tuple[Any, Any]:
    """The solver after it has run, and its status. `heard` is called with each better solution: a
    function that gives the value of a variable."""
    cp = cp_model()
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = max(seconds, 0.01)
    if search is not None:
        solver.parameters.num_workers = search.workers
    solver.parameters.catch_sigint_signal = False  # the caller has stopped the search
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)

    class Listener(cp.CpSolverSolutionCallback):  # type: ignore[misc, name-defined]  # OR-tools has no types
        def on_solution_callback(self) -> None:
            if heard is not None:
                heard(self.value)

    with search.stopping(solver.stop_search) if search is not None else nullcontext():
        return solver, solver.solve(model, Listener() if heard is not None else None)


class Linear:
    """A linear or mixed-integer program, built row by row. It minimises a sum of costs."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.lows: list[float] = []
        self.highs: list[float] = []
        self.whole: list[bool] = []
        self.row_lows: list[float] = []
        self.row_highs: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.factors: list[float] = []

    def variable(self, low: float, high: float, cost: float, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.lows.append(low)
        self.highs.append(high)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, terms: Iterable[tuple[int, float]], *, low: float = -math.inf, high: float = math.inf) -> None:
        """The sum of factors times variables lies in between."""
        number = len(self.row_lows)
        self.row_lows.append(low)
        self.row_highs.append(high)
        for column, factor in terms:
            self.rows.append(number)
            self.columns.append(column)
            self.factors.append(factor)

    def run(
        self,
        search: Search,
        seconds: float,
        *,
        solver: str = "HIGHS",
        start: Sequence[float] | None = None,
        **more: Any,
    ) -> Any:
        """MathOpt's result. Costs are scaled for it: `scale` takes them back."""
        opt = math_opt()
        from ortools.util.python.solve_interrupter import SolveInterrupter

        model = opt.Model.from_model_proto(self._proto())
        limit = datetime.timedelta(seconds=max(seconds, 0.01))
        hints = opt.ModelSolveParameters()
        if start is not None:
            values = dict(zip(model.variables(), start, strict=True))
            hints = opt.ModelSolveParameters(solution_hints=[opt.SolutionHint(variable_values=values)])
        interrupter = SolveInterrupter()
        parameters = opt.SolveParameters(time_limit=limit, **more)
        with search.stopping(interrupter.interrupt):
            kind = getattr(opt.SolverType, solver)
            return opt.solve(model, kind, params=parameters, model_params=hints, interrupter=interrupter)

    def least(self, search: Search, seconds: float, **more: Any) -> float | None:
        """No solution costs less. None: not known in time. Infinity: there is no solution."""
        opt = math_opt()
        result = self.run(search, seconds, **more)
        if result.termination.reason == opt.TerminationReason.INFEASIBLE:
            return math.inf
        if result.termination.reason != opt.TerminationReason.OPTIMAL and not any(self.whole):
            return None  # before it ends, a linear solver has no bound
        least = float(result.termination.objective_bounds.dual_bound)
        return least * self.scale if math.isfinite(least) else None

    def values(self, result: Any) -> list[float] | None:
        """The values of the variables in the best solution found. None: there is none."""
        if not result.solutions or result.solutions[0].primal_solution is None:
            return None
        found = [0.0] * len(self.costs)
        for variable, value in result.variable_values().items():
            found[variable.id] = value
        return found

    @property
    def scale(self) -> float:
        return max(max(self.costs, default=1.0), 1e-9)

    def _proto(self) -> Any:
        from ortools.math_opt import model_pb2

        model = model_pb2.ModelProto()
        model.variables.ids.extend(range(len(self.costs)))
        model.variables.lower_bounds.extend(self.lows)
        model.variables.upper_bounds.extend(self.highs)
        model.variables.integers.extend(self.whole)
        scale = self.scale
        weighted = [(i, cost / scale) for i, cost in enumerate(self.costs) if cost]
        model.objective.linear_coefficients.ids.extend(i for i, _ in weighted)
        model.objective.linear_coefficients.values.extend(cost for _, cost in weighted)
        model.linear_constraints.ids.extend(range(len(self.row_lows)))
        model.linear_constraints.lower_bounds.extend(self.row_lows)
        model.linear_constraints.upper_bounds.extend(self.row_highs)
        order = sorted(range(len(self.rows)), key=lambda i: (self.rows[i], self.columns[i]))
        model.linear_constraint_matrix.row_ids.extend(self.rows[i] for i in order)
        model.linear_constraint_matrix.column_ids.extend(self.columns[i] for i in order)
        model.linear_constraint_matrix.coefficients.extend(self.factors[i] for i in order)
        return model
