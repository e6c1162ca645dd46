"""Reading a trace from whatever kind of file holds it."""

import gzip
import zlib
from pathlib import Path

from coop.trace import dtr_log
from coop.trace.file import read
from coop.trace.trace import Trace, TraceError

_GZIP = b"\x1f\x8b"


def read_any(path: str | Path) -> Trace:
    """A coop trace, or an operator log of DTR, gzip'ed or not. Raises TraceError and OSError."""
    with open(path, "rb") as file:
        start = file.read(len(_GZIP))
    if not start:
        raise TraceError(f"{path} is empty")
    if start != _GZIP or b'"INSTRUCTION"' in _first_line(path):
        return dtr_log.read(path)
    return read(path)


def _first_line(path: str | Path) -> bytes:
    try:
        with gzip.open(path, "rb") as file:
            return file.readline(1000)
    except (EOFError, gzip.BadGzipFile, zlib.error):  # the reader of traces says what is wrong
        return b""
