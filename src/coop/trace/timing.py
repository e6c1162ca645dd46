"""How long ops take in an arena.

A recorder measures more than an op's kernel: the way through Python, which is most of a small op,
and fresh memory, which the system has to clear. Neither occurs when a program runs in a budget. So
a recorded step is run a few more times in a scope without a limit, and the costs are those that
the engine measures there.
"""

import contextlib
import statistics
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from coop import _C
from coop.trace.collectives import is_collective
from coop.trace.trace import Op

STEPS = 3
_FAR = 32  # ops in a row that may be missing in one of two runs of a step


def in_arena(step: Callable[[], Any], ops: Sequence[Op], costs: Sequence[int]) -> list[int]:
    """The costs of recorded ops, measured again where the op is found when the step runs; the
    others keep theirs."""
    from coop.budget import measure  # budgets know plans, which know traces

    times: list[list[float]] = [[] for _ in ops]
    with measure(), contextlib.suppress(StopIteration):  # there may be no more batches
        step()  # the arena's memory is fresh as well
        _C.time_ops()
        for _ in range(STEPS):
            step()
            for number, seconds in _matched(ops, _C.op_times()):
                times[number].append(seconds)
    return [round(1e9 * statistics.median(t)) if t else cost for t, cost in zip(times, costs, strict=True)]


def _matched(ops: Sequence[Op], ran: Sequence[tuple[str, float]]) -> list[tuple[int, float]]:
    """Matches recorded ops with those that ran, in order. Views and collectives are not timed, and
    an in-place op may be recorded as another."""
    found = []
    at = 0
    for number, op in enumerate(ops):
        if op.cost == 0 or is_collective(op.name):
            continue
        name = _base(op.name)
        for ahead, (other, seconds) in enumerate(islice(ran, at, at + _FAR)):
            if _base(other) == name:
                found.append((number, seconds))
                at += ahead + 1
                break
    return found


def _base(name: str) -> str:
    return name.partition(".")[0].rstrip("_")
