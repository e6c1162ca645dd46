"""One case, in the child: the program plainly, without a limit, and in each budget."""

import time
from typing import Any

from hunt import compare
from hunt.program import Program


def attempt(text: str, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """status: same, different (what, at: which settings), or unstable (plain runs differ already)."""
    start = time.perf_counter()
    program = Program.load(text)
    answer = _attempt(program, settings)
    return {"no room": 0, "at": None, "what": "", **answer, "seconds": time.perf_counter() - start}


def _attempt(program: Program, settings: list[dict[str, Any]]) -> dict[str, Any]:
    expected = compare.plain(program)
    measured, actual = compare.sizes_of(program)
    what = compare.difference(expected, actual)
    at: int | None = None
    no_room = 0
    for i, one in enumerate(settings):
        if what:
            break
        found = compare.in_budget(program, measured, one)
        if found is None:
            no_room += 1
            continue
        what, at = compare.difference(expected, found), i
    if not what:
        return {"status": "same", "no room": no_room}
    again = dict(compare.plain(program), messages=[])
    if compare.difference(expected, again):
        return {"status": "unstable", "what": compare.difference(expected, again)}
    return {"status": "different", "what": what, "at": at, "raised": expected["raised"]}
