"""Reading a trace from whatever kind of file holds it."""

import gzip
import importlib
import re
import zlib
from pathlib import Path

from coop.trace.file import read
from coop.trace.trace import Trace, TraceError

_GZIP = b"\x1f\x8b"
_EXECUTION_TRACE = re.compile(rb'\s*\{\s*"schema"\s*:\s*"')


def read_any(path: str | Path) -> Trace:
    """An execution trace of PyTorch has a header; a coop trace is gzip'ed; any other file is taken for an operator log of
    DTR. Raises TraceError and OSError.
    """
    if is_execution_trace(path):
        from coop.trace import execution  # it knows the recorder, which the other formats do without

        return execution.read(path)
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


def is_execution_trace(path: str | Path) -> bool:
    """Whether the file, compressed or not, begins as PyTorch's ExecutionTraceObserver begins it."""
    with open(path, "rb") as raw:
        compressed = raw.read(len(_GZIP)) == _GZIP
    try:
        with gzip.open(path, "rb") if compressed else open(path, "rb") as file:
            return _EXECUTION_TRACE.match(file.read(200)) is not None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False
