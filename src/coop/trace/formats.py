"""Reading a trace from whatever kind of file holds it, compressed or not: the file's beginning tells."""

import gzip
import re
import zlib
from pathlib import Path

from coop.trace import dtr_log, execution
from coop.trace.file import read
from coop.trace.trace import Trace, TraceError

_GZIP = b"\x1f\x8b"
_EXECUTION_TRACE = re.compile(rb'\s*\{\s*"schema"\s*:\s*"')


def read_any(path: str | Path) -> Trace:
    """A coop trace, an operator log of DTR, or an execution trace of PyTorch. Raises TraceError and OSError."""
    with open(path, "rb") as file:
        compressed = file.read(len(_GZIP)) == _GZIP
    start = _start(path)
    if _EXECUTION_TRACE.match(start):
        return execution.read(path)
    if not compressed and not start:
        raise TraceError(f"{path} is empty")
    if not compressed or b'"INSTRUCTION"' in start:
        return dtr_log.read(path)
    return read(path)


def is_execution_trace(path: str | Path) -> bool:
    """Whether the file begins as PyTorch's ExecutionTraceObserver begins it."""
    return _EXECUTION_TRACE.match(_start(path)) is not None


def _start(path: str | Path) -> bytes:
    """The first bytes of the content; none if it cannot be decompressed: whoever reads it then says what is wrong."""
    with open(path, "rb") as raw:
        compressed = raw.read(len(_GZIP)) == _GZIP
    try:
        with gzip.open(path, "rb") if compressed else open(path, "rb") as file:
            return file.read(200)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""
