"""One measurement of a planner: what is asked of it, and how it is made in a process of its own."""

import dataclasses
from collections.abc import Callable
from typing import Any

from processes import call

Row = dict[str, Any]
SLACK = 600.0  # seconds besides the planner's own: for traces, and for models that stop slowly


@dataclasses.dataclass(frozen=True)
class Job:
    """One measurement: `work` runs here and gives a row; `asked` of it, and whether that was
    reached."""

    what: str
    work: Callable[[], Row]
    asked: str = ""
    good: Callable[[Row], bool] | None = None
    reached: Callable[[Row], str] = lambda row: ""
    key: Row = dataclasses.field(default_factory=dict)
    """What the row has even if it fails."""


def about_plan(plan: Any) -> Row:
    """The figures of a plan."""
    about = {key: value for key, value in plan.about.items() if isinstance(value, str | int | float)}
    return plan.to_json() | {"about": about, "runs_again": len(plan.sequence()) - len(plan.program)}


def call_for(function: Callable[..., Row], limit: float, *args: Any, times: int = 1) -> Row:
    """In a process of its own. `times`: how many planners it runs that use all of their time."""
    return call(function, limit, *args, limit=times * limit + SLACK)
