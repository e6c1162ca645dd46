"""Event files: gzip'ed JSON lines, written while the program runs. docs/event-format.md describes
them.

They are JSON lines like traces and plans: readers share the checks, and `zcat run.events` shows
what happened. With gzip an event takes six to twelve bytes. The compressed stream is flushed after
each part, so that the file of a program that is killed can be read up to there.
"""

import contextlib
import errno
import fcntl
import io
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coop import _C
from coop._version import __version__
from coop.events import EVENT_KINDS, Event
from coop.surface import OPTIONS
from coop.trace import content
from coop.trace.content import BadContent, CutOff, Unreadable, is_whole, lines_of, parse

FORMAT = "coop-events"
VERSION = 1
LARGEST = 1 << 34
"""The largest file, in bytes unpacked. Events are not kept in memory, so this is more than for a
trace."""
LONGEST_TIME = 1e9
"""Seconds: thirty years."""
_DIGITS = 9
"""Decimal digits of seconds: whole nanoseconds."""
_ROWS = 4096
"""Events that are formatted at once."""

Row = tuple[str, float, int, int, int, float, float]
"""An event as the engine gives it."""
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class EventFileError(BadContent):
    """A file does not hold events that this version can read."""


class EventWriter:
    """Writes a file, part by part. What was given to `write` is in the file when it returns.

    The file object has no buffer, so that a forked child that exits does not write anything twice.
    """

    def __init__(self, path: str | Path, options: _C.Options, policy: str, program: str = "") -> None:
        """Raises OSError. `program` says what ran, for titles."""
        self.count = 0
        self._pack = zlib.compressobj(4, wbits=zlib.MAX_WBITS | 16)
        self._file = _opened_alone(path)
        header = {"format": FORMAT, "version": VERSION, "coop": __version__, "budget": options.budget}
        header |= {"policy": policy, "program": program, "options": _plain(options)}
        try:
            self._put([_to_json(header)])
        except BaseException:
            _close(self._file)
            raise

    def write(self, rows: Iterable[Row]) -> None:
        """Raises OSError. The file then ends with the part before."""
        rows = list(rows)
        for first in range(0, len(rows), _ROWS):
            part = rows[first : first + _ROWS]
            self._put([_to_json(_shortened(row)) for row in part])
            self.count += len(part)

    def close(self) -> None:
        """Writes the end of the file. Raises OSError."""
        if self._file.closed:
            return
        try:
            self._put([_to_json({"events": self.count})], zlib.Z_FINISH)
        finally:
            _close(self._file)

    def abandon(self) -> None:
        """Closes the file without its end."""
        _close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, lines: list[str], flush: int = zlib.Z_SYNC_FLUSH) -> None:
        data = self._pack.compress(("\n".join(lines) + "\n").encode())
        left = memoryview(data + self._pack.flush(flush))
        while left:
            left = left[self._file.write(left) :]


class EventFile:
    """A file of events: its header, and the events each time it is iterated over.

    for event in coop.EventFile("run.events"): ...

    The events are read one after the other, and not kept. Raises EventFileError and OSError.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header = next(self._lines(), None)
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise self._bad(f"it does not begin with a header of format {FORMAT!r}")
        if not is_whole(header.get("version"), VERSION, VERSION):
            newer = is_whole(header.get("version"), VERSION + 1)
            tip = " Tip: read it with a newer coop." if newer else ""
            version = repr(header.get("version"))[:100]
            raise EventFileError(
                f"{self.path} is an event file of version {version}, and this coop reads version {VERSION}.{tip}"
            )
        for name, good in _HEADER.items():
            if not good(header.get(name)):
                value = repr(header.get(name))[:100]
                raise EventFileError(f"{self.path} is damaged: its header says {value} for {name}")
        self.budget: int = header["budget"]
        """Bytes of the arena."""
        self.policy: str = header["policy"]
        self.program: str = header["program"]
        """What ran: the script's name, or the trace's."""
        self.options: dict[str, Any] = header["options"]
        """The engine's options, by name."""
        self.coop: str = header["coop"]
        """The version that wrote it."""
        self.whole: bool | None = None
        """Whether the file is complete. False: the program was killed. None: it was not read
        yet."""

    def __iter__(self) -> Iterator[Event]:
        lines = self._lines()
        next(lines, None)
        count, before, end = 0, 0.0, None
        for number, line in enumerate(lines, start=2):
            if end is not None:
                raise self._bad(f"line {number} follows its end")
            if isinstance(line, dict):
                end = line.get("events")
                if not is_whole(end, count, count):
                    raise self._bad(f"it should have {repr(end)[:100]} events, and has {count}")
                continue
            event = _event(line)
            if event is None or event.time < before:
                what = "not an event" if event is None else "before the event above it"
                raise EventFileError(f"{self.path}, line {number}: {what}: {str(line)[:100]}")
            count, before = count + 1, event.time
            yield event
        self.whole = end is not None

    def _lines(self) -> Iterator[Any]:
        """All lines up to the last complete one."""
        number = 0
        try:
            for number, line in lines_of(self.path, LARGEST):  # noqa: B007  used in the message
                if not line.endswith(b"\n"):
                    return
                yield parse(line)
        except CutOff:
            return
        except Unreadable as error:
            where = f"line {number} is " if str(error).startswith("not") else "it "
            raise self._bad(f"{where}{error}") from None

    def _bad(self, why: str) -> EventFileError:
        return EventFileError(f"{self.path} is not an event file: {why}")


def is_event_file(path: str | Path) -> bool:
    """Whether the file begins as an event file does. Raises OSError."""
    return content.start(path, 40).replace(b" ", b"").startswith(b'{"format":"%s"' % FORMAT.encode())


def _opened_alone(path: str | Path) -> io.FileIO:
    """The file, empty. Two processes that write the same one would spoil it: ranks of one program
    may have been given the same name."""
    file = io.FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise OSError(errno.EBUSY, "another process writes to it. Tip: one file for each rank", str(path)) from None
    except OSError:  # no locks on this file system
        pass
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.truncate(0)
    return file


def _close(file: io.FileIO) -> None:
    """Unlocks it, too: forked children may still have it open."""
    if not file.closed:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


def _plain(options: _C.Options) -> dict[str, Any]:
    """The options as JSON values: the policy's parts by name."""
    values = {name: getattr(options, name) for name in OPTIONS if name not in ("budget", "checks")}
    return {name: getattr(value, "name", value) for name, value in values.items()}


def _shortened(row: Row) -> list[Any]:
    """The row without the zeros at its end."""
    kind, time, storage, offset, size, value, waited = row
    line: list[Any] = [kind, round(time, _DIGITS), storage, offset, size]
    if value or waited:  # an integer stays one: an offset, or a number of ops
        line.append(int(value) if value.is_integer() else round(value, _DIGITS))
    if waited:
        line.append(round(waited, _DIGITS))
    return line


def _event(line: Any) -> Event | None:
    if not isinstance(line, list) or not 5 <= len(line) <= 7:
        return None
    kind, time, storage, offset, size, value, waited = (*line, 0, 0)[:7]
    good = (
        isinstance(kind, str)
        and kind in EVENT_KINDS
        and all(map(is_whole, (storage, offset, size)))
        and all(map(_is_time, (time, waited)))
        and (is_whole(value) if kind == "move" else _is_time(value) or is_whole(value))
    )
    return Event(kind, float(time), storage, offset, size, float(value), float(waited)) if good else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_TIME


_HEADER: dict[str, Callable[[Any], bool]] = {
    "coop": lambda value: isinstance(value, str),
    "budget": lambda value: is_whole(value, 1),
    "policy": lambda value: isinstance(value, str),
    "program": lambda value: isinstance(value, str),
    "options": lambda value: isinstance(value, dict),
}


def rows_of(events: Iterable[Event]) -> Iterator[Row]:
    """Events as the engine gives them."""
    for e in events:
        yield e.kind, e.time, e.storage, e.offset, e.bytes, e.value, e.waited
