"""Reads a trace from any kind of file that can hold one, compressed or not. The file's beginning
tells the kind."""

import re
import tempfile
from pathlib import Path

from coop.event_file import is_event_file
from coop.trace import content, dtr_log, execution
from coop.trace.file import read
from coop.trace.trace import Trace, TraceError

_EXECUTION_TRACE = re.compile(rb'\s*\{\s*"schema"\s*:\s*"')


def read_any(path: str | Path) -> Trace:
    """A coop trace, an operator log of DTR, or an execution trace of PyTorch. Raises TraceError
    and OSError."""
    start = content.start(path, 200)
    if _EXECUTION_TRACE.match(start):
        return execution.read(path)
    if is_event_file(path):
        raise TraceError(f"{path} holds the events of a run, not a trace. Tip: `coop memory-map` draws it")
    compressed = content.compressed(path)
    if not compressed and not start:
        raise TraceError(f"{path} is empty")
    if not compressed or b'"INSTRUCTION"' in start:
        return dtr_log.read(path)
    return read(path)


def read_content(file: bytes, name: str) -> Trace:
    """Like `read_any`, of a file that lies elsewhere. `name` is its name in messages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_bytes(file)
        try:
            return read_any(path)
        except TraceError as error:
            raise TraceError(str(error).replace(str(path), name)) from None


def is_execution_trace(path: str | Path) -> bool:
    """Whether the file begins like one of PyTorch's ExecutionTraceObserver."""
    return _EXECUTION_TRACE.match(content.start(path, 200)) is not None
