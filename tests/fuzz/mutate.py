"""The mutator: changes a valid file, so that it may be invalid. The same random numbers give the
same file.

Bytes are flipped, cut off, copied over each other; numbers become extreme ones; in lines of JSON,
and in JSON as a whole, keys and items are deleted, doubled, exchanged and given other types. A
gzip'ed file is mutated inside, and sometimes outside.
"""

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

EXTREMES = ("0", "-1", "1", "2147483648", "4294967296", "9223372036854775808", "1e308", "1e999", "NaN", "-Infinity", "1.5",
            "9" * 400, "9" * 5000, "true", "null", '""', "[]", "{}", "1e-320", "1152921504606846976", "-0.0")  # fmt: skip
VALUES: tuple[Callable[[], Any], ...] = (
    lambda: 0, lambda: -1, lambda: 1, lambda: 2**31, lambda: 2**32, lambda: 2**60, lambda: 2**63, lambda: 1e308, lambda: 1.5,
    lambda: True, lambda: None, lambda: "", lambda: "x", lambda: "\ud800", list, dict, lambda: [[]],
    lambda: [0] * 100_000, lambda: {"a": 1}, lambda: 10**30,
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MAGIC = b"\x1f\x8b"


def mutate(content: bytes, choose: random.Random) -> bytes:
    packed = content.startswith(_MAGIC)
    if packed and choose.random() > 0.1:
        return gzip.compress(_mutated(gzip.decompress(content), choose), 1)
    return _mutated(content, choose, _BYTES if packed else _ALL)


def _mutated(content: bytes, choose: random.Random, ways: tuple[Callable[..., bytes], ...] | None = None) -> bytes:
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        content = choose.choice(ways or _ALL)(content, choose)
    return content


# --- bytes -----------------------------------------------------------------------------------------------------------------


def _flip(content: bytes, choose: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(choose.choice((1, 1, 2, 10))):
        if changed:
            changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    return bytes(changed)


def _cut(content: bytes, choose: random.Random) -> bytes:
    return content[: choose.randrange(len(content) + 1)]


def _splice(content: bytes, choose: random.Random) -> bytes:
    """A piece of it, somewhere else in it; perhaps in place of what was there."""
    begin = choose.randrange(len(content) + 1)
    piece = content[begin : begin + choose.choice((1, 8, 100, 1000))]
    at = choose.randrange(len(content) + 1)
    return content[:at] + piece + content[at + choose.choice((0, len(piece))) :]


def _insert(content: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(content) + 1)
    return content[:at] + choose.randbytes(choose.choice((1, 2, 16))) + content[at:]


def _nest(content: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(content) + 1)
    return content[:at] + choose.choice((b"[", b'{"a":', b"[[],")) * choose.choice((10, 2000, 100_000)) + content[at:]


def _extreme(content: bytes, choose: random.Random) -> bytes:
    found = list(_NUMBER.finditer(content))
    if not found:
        return _flip(content, choose)
    where = choose.choice(found)
    return content[: where.start()] + choose.choice(EXTREMES).encode() + content[where.end() :]


def _lines(content: bytes, choose: random.Random) -> bytes:
    """Lines are left out, doubled or exchanged."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at, other = choose.randrange(len(lines)), choose.randrange(len(lines))
    match choose.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case _:
            lines[at], lines[other] = lines[other], lines[at]
    return b"".join(lines)


# --- JSON ------------------------------------------------------------------------------------------------------------------


def _structure(content: bytes, choose: random.Random) -> bytes:
    """Of one line, if lines are JSON; else of all of it."""
    lines = content.splitlines()
    at = choose.randrange(len(lines)) if lines else 0
    whole = len(lines) == 1 or choose.random() < 0.01
    try:
        tree = json.loads(content if whole else lines[at])
    except (ValueError, IndexError, RecursionError):
        try:
            tree, whole = json.loads(content), True
        except (ValueError, RecursionError):
            return _flip(content, choose)
    text = json.dumps(_changed(tree, choose)).encode()
    if whole:
        return text
    lines[at] = text
    return b"\n".join(lines) + b"\n"


def _changed(tree: Any, choose: random.Random) -> Any:
    """At a random depth: near the top is as likely as far below."""
    spots: list[tuple[Any, Any]] = []
    level = [tree]
    for _ in range(choose.randrange(1, 7)):
        here = [(thing, key) for thing in level for key in _keys(thing)]
        if not here:
            break
        spots, level = here, [thing[key] for thing, key in here]
    if not spots:
        return choose.choice(VALUES)()
    within, key = choose.choice(spots)
    match choose.randrange(5):
        case 0:
            del within[key]
        case 1 if isinstance(within, list):
            within.insert(choose.randrange(len(within) + 1), within[key])
        case 1:
            within[f"{key}2"] = within.pop(key)
        case 2:
            other = choose.choice(_keys(within))
            within[key], within[other] = within[other], within[key]
        case 3:
            _, from_key = other = choose.choice(spots)
            within[key] = other[0].get(from_key) if isinstance(other[0], dict) else other[0][from_key % len(other[0])]
        case _:
            within[key] = choose.choice(VALUES)()
    return tree


def _keys(thing: Any) -> list[Any]:
    return list(thing) if isinstance(thing, dict) else list(range(len(thing))) if isinstance(thing, list) else []


_BYTES = (_flip, _cut, _splice, _insert)
_ALL = (*_BYTES, _nest, _extreme, _extreme, _extreme, _lines, _lines, *(_structure,) * 6)
