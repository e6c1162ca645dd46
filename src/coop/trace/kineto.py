"""Kineto traces, as `torch.profiler.profile.export_chrome_trace` writes them: how long the ops of a run took.

PyTorch numbers every recorded function. An execution trace calls that number `rf_id`, kineto "Record function id". Work
on a GPU names the op that launched it by "External id", or only the runtime call that did, by "correlation".
"""

import gzip
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coop.trace.trace import TraceError

_ON_THE_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_GZIP = b"\x1f\x8b"


@dataclass(slots=True)
class Durations:
    """By the number of the recorded function. Nanoseconds."""

    names: dict[int, str] = field(default_factory=dict)
    host: dict[int, int] = field(default_factory=dict)
    """From call to return, with everything called inside."""
    device: dict[int, int] = field(default_factory=dict)
    """Of the kernels, copies and fills that it launched itself, one after the other."""


def load_json(path: str | Path, what: str) -> Any:
    """Of a file that may be gzip'ed. Raises TraceError and OSError."""
    content = Path(path).read_bytes()
    try:
        return json.loads(gzip.decompress(content) if content.startswith(_GZIP) else content)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise TraceError(f"{path} is not {what}: its compression is damaged, or it is cut off") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is not {what}: it is not JSON, or it is cut off ({error})") from None


def read(path: str | Path) -> Durations:
    """Raises TraceError when it is no kineto trace, OSError when it cannot be opened."""
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
            if category in _ON_THE_DEVICE:
                work.append((about, nanoseconds))
            elif (number := about.get("Record function id", 0)) > 0:
                found.names[number], found.host[number] = event["name"], nanoseconds
                function[about.get("External id")] = number
            elif "correlation" in about:
                launched_by[about["correlation"]] = about.get("External id")
    except (AttributeError, KeyError, TypeError) as error:
        raise TraceError(f"{path} is not a kineto trace: {type(error).__name__} {error} in an event") from None
    if not found.names:
        raise TraceError(f"{path} has no ops with a record function id. Tip: profile with ProfilerActivity.CPU.")
    for about, nanoseconds in work:
        number = function.get(about.get("External id", launched_by.get(about.get("correlation"))), 0)
        found.device[number] = found.device.get(number, 0) + nanoseconds
    return found
