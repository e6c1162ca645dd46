"""Kineto traces, as `torch.profiler.profile.export_chrome_trace` writes them: how long the ops of
a run took.

PyTorch numbers every recorded function. An execution trace calls that number `rf_id`, kineto
"Record function id". Work on a GPU names the op that launched it by "External id", or only the
runtime call that launched it, by "correlation".
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coop.trace.content import MOST, Unreadable, parse, whole
from coop.trace.trace import TraceError

_ON_THE_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(slots=True)
class Durations:
    """Nanoseconds, by the number of the recorded function."""

    names: dict[int, str] = field(default_factory=dict)
    host: dict[int, int] = field(default_factory=dict)
    """From call to return, including everything called inside."""
    device: dict[int, int] = field(default_factory=dict)
    """The sum of the kernels, copies and fills that it launched itself."""


def load_json(path: str | Path, what: str) -> Any:
    """The JSON of a file that may be gzip'ed. Raises TraceError and OSError."""
    try:
        return parse(whole(path))
    except Unreadable as error:
        raise TraceError(f"{path} is not {what}: it {_as_a_clause(str(error))}") from None


def _as_a_clause(why: str) -> str:
    return f"is {why}, or it is cut off" if why.startswith("not") else why


def read(path: str | Path) -> Durations:
    """Raises TraceError if it is no kineto trace, and OSError if it cannot be opened."""
    content = load_json(path, "a kineto trace")
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise TraceError(f"{path} is not a kineto trace: it has no traceEvents")
    found = Durations()
    function: dict[Any, int] = {}
    launched_by: dict[Any, Any] = {}
    work: list[tuple[dict[str, Any], int]] = []
    try:
        for event in events:
            about, category = event.get("args") or {}, event.get("cat", "")
            if event.get("ph") != "X":
                continue
            nanoseconds = round(1e3 * event["dur"])
            if not 0 <= nanoseconds <= MOST:
                raise ValueError(f"a duration of {event['dur']} microseconds")
            if category in _ON_THE_DEVICE:
                work.append((about, nanoseconds))
            elif (number := about.get("Record function id", 0)) > 0:
                found.names[number], found.host[number] = event["name"], nanoseconds
                function[about.get("External id")] = number
            elif "correlation" in about:
                launched_by[about["correlation"]] = about.get("External id")
        for about, nanoseconds in work:
            number = function.get(about.get("External id", launched_by.get(about.get("correlation"))), 0)
            found.device[number] = found.device.get(number, 0) + nanoseconds
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise TraceError(f"{path} is not a kineto trace: {type(error).__name__} {error} in an event") from None
    if not found.names:
        raise TraceError(f"{path} has no ops with a record function id. Tip: profile with ProfilerActivity.CPU.")
    return found
