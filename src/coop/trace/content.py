"""Reads a file from outside, gzip'ed or not: line by line, or as JSON. Never more than a stated
limit.

A small file can unpack to any size, and JSON can nest to any depth. All readers use this module,
so that none takes more memory or time than docs/trace-format.md says.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from coop.sizes import format_bytes

LARGEST = 1 << 28
"""The largest file, in bytes unpacked."""
LONGEST = 1 << 22
"""The longest line, in bytes."""
MOST = 1 << 60
"""The limit for the sum of a file's sizes, or of its times: sums stay within 64 bits."""

_GZIP = b"\x1f\x8b"
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


class BadContent(ValueError):
    """Content from outside is invalid. The text is a sentence for users, shortened so that it can
    be read."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence if len(sentence) <= 600 else f"{sentence[:600]}...")


class Unreadable(ValueError):
    """What is wrong with a file's content: the end of a sentence that begins with its name."""


class CutOff(Unreadable):
    """The file ends in the middle of its compressed content. All complete lines before were
    returned."""


def lines_of(path: str | Path, largest: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines and their numbers, from 1 on. Raises OSError, and Unreadable if the file unpacks
    to more than `largest` bytes (default: LARGEST)."""
    number = read = 0
    largest = LARGEST if largest is None else largest
    with _opened(path) as file:
        while True:
            try:
                line = file.readline(LONGEST + 1)
            except EOFError:
                raise CutOff(f"is cut off after line {number}") from None
            except _DAMAGED as error:
                raise Unreadable(f"is damaged after line {number}: {error}") from None
            if not line:
                return
            number, read = number + 1, read + len(line)
            if len(line) > LONGEST:
                raise Unreadable(f"has more than {format_bytes(LONGEST)} in line {number}")
            if read > largest:
                raise Unreadable(f"holds more than {format_bytes(largest)}")
            yield number, line


def whole(path: str | Path) -> bytes:
    """The whole content. Raises Unreadable and OSError."""
    with _opened(path) as file:
        try:
            content = file.read(LARGEST + 1)
        except _DAMAGED as error:
            raise Unreadable(f"is cut off, or its compression is damaged: {error}") from None
    if len(content) > LARGEST:
        raise Unreadable(f"holds more than {format_bytes(LARGEST)}")
    return content


def start(path: str | Path, count: int) -> bytes:
    """The first bytes; none if they cannot be unpacked: the reader that follows says what is
    wrong."""
    with _opened(path) as file:
        try:
            return file.read(count)
        except _DAMAGED:
            return b""


def compressed(path: str | Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_GZIP)) == _GZIP


def parse(text: bytes) -> Any:
    """Strict JSON: NaN and infinities are errors. Raises Unreadable."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON ({error})") from None
    except (UnicodeDecodeError, ValueError):  # the latter: a number with thousands of digits
        raise Unreadable("not JSON") from None
    except RecursionError:
        raise Unreadable("not JSON that can be read: it is nested too deep") from None


def is_whole(value: Any, least: int = 0, most: int = MOST) -> bool:
    """Whether the value is an int within these bounds. True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_rate(value: Any) -> bool:
    """Whether the value is a number above 0 that can be divided by, and divided."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-18 <= value <= 1e24


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _opened(path: str | Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if compressed(path) else open(path, "rb")
