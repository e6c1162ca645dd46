"""The seam to the solvers: OR-tools, for constraint programs (CP-SAT), and for linear and mixed-integer ones (HiGHS, GLOP, PDLP).

They are optional; whoever needs one gets a sentence with the name of the package if it is not there. All of them stop when the
search does.
"""

from typing import Any

from coop.plan.search import Search


class MissingSolver(ImportError):
    """A solver is not installed."""


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


def run_cp(search: Search, model: Any, *, seconds: float, listener: Any = None, **parameters: Any) -> tuple[Any, Any]:
    """The solver after it has run, and its status."""
    cp = cp_model()
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = max(seconds, 0.01)
    solver.parameters.num_workers = search.workers
    solver.parameters.catch_sigint_signal = False  # whoever called says stop
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)
    with search.stopping(solver.stop_search):
        return solver, solver.solve(model, listener)


def run_linear(search: Search, model: Any, *, seconds: float, solver: str = "HIGHS", **parameters: Any) -> Any:
    """The result of a linear or mixed-integer program."""
    from ortools.util.python.solve_interrupter import SolveInterrupter

    opt = math_opt()
    import datetime

    limit = datetime.timedelta(seconds=max(seconds, 0.01))
    interrupter = SolveInterrupter()
    settings = opt.SolveParameters(time_limit=limit, **parameters)
    with search.stopping(interrupter.interrupt):
        return opt.solve(model, getattr(opt.SolverType, solver), params=settings, interrupter=interrupter)
