"""Reading a trace from whatever kind of file holds it."""

import importlib
from pathlib import Path

from coop.trace.file import read
from coop.trace.trace import Trace, TraceError

_GZIP = b"\x1f\x8b"


def read_any(path: str | Path) -> Trace:
    """A coop trace is gzip'ed; any other file is taken for an operator log of DTR. Raises TraceError and OSError."""
    with open(path, "rb") as file:
        start = file.read(len(_GZIP))
    if start == _GZIP:
        return read(path)
    if not start:
        raise TraceError(f"{path} is empty")
    try:
        dtr_log = importlib.import_module("coop.trace.dtr_log")
    except ModuleNotFoundError:
        raise TraceError(f"{path} is not a trace: it is not gzip'ed") from None
    trace: Trace = dtr_log.read(path)
    return trace
