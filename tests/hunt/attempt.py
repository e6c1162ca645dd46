"""One case, in the child: the program runs plainly, without a limit, and in each budget."""

import time
import warnings
from typing import Any

from hunt import compare
from hunt.program import Program

PLAIN_RUNS = 5
"""Further plain runs if a budget seems to make a difference: do they agree with each other?"""


def attempt(text: str, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """status: same; different (what, at: which settings, raised: by each step in a plain run); or
    unstable: two plain runs differ."""
    start = time.process_time()
    answer = {"no room": 0, "at": None, "what": "", "raised": [], "features": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer |= _attempt(Program.load(text), settings)
    return answer | {"seconds": time.process_time() - start}


def _attempt(program: Program, settings: list[dict[str, Any]]) -> dict[str, Any]:
    expected = compare.plain(program)
    measured, actual = compare.without_limit(program)
    what = compare.difference(expected, actual)
    at: int | None = None
    no_room = 0
    features: set[int] = set()
    for i, one in enumerate(settings) if not what else ():
        found = compare.in_budget(program, measured, one, features)
        if found is None:
            no_room += 1
        elif what := compare.difference(expected, found):
            at = i
            break
    if not what:
        return {"status": "same", "no room": no_room, "features": sorted(features)}
    for _ in range(PLAIN_RUNS):
        if again := compare.difference(expected, dict(compare.plain(program), messages=[])):
            return {"status": "unstable", "what": again}
    return {"status": "different", "what": what, "at": at, "raised": expected["raised"]}
