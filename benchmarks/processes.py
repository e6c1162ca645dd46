"""Processes for benchmarks: forked from a parent that has imported everything and computed nothing,
driven through a pipe.

A way of training lives in a process of its own, waits there for its turn, and does not share an
allocator, a thread pool or a random state with the others. A process that fails, dies or takes too
long is a result like any other.
"""

import contextlib
import ctypes
import dataclasses
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

from job import Clock, Job, Profile, Way, profile, scope

_fork = multiprocessing.get_context("fork")


class Failed(Exception):
    """What a process could not do: `kind` is the exception's type, or died, or slow."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Process:
    """Runs `body(connection, *args)` and takes its answers."""

    def __init__(self, body: Callable[..., None], *args: Any) -> None:
        self._connection, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_guarded, args=(body, theirs, self._connection, *args), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, question: Any, limit: float) -> Any:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer says why
            self._connection.send(question)
        return self.answer(limit)

    def answer(self, limit: float) -> Any:
        if not self._connection.poll(limit):
            self.end()
            raise Failed("slow", f"more than {limit:.0f} s")
        try:
            good, value = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode or 0
            raise Failed("died", signal.Signals(-code).name if code < 0 else f"exit code {code}") from None
        if not good:
            raise Failed(*value)
        return value

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _guarded(body: Callable[..., None], mine: Connection, parents: Connection, *args: Any) -> None:
    parents.close()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no child is left if the parent is killed
    try:
        body(mine, *args)
    except (EOFError, KeyboardInterrupt):  # the parent is gone
        return
    except BaseException as error:
        mine.send((False, (type(error).__name__, str(error) or traceback.format_exc(limit=-2))))


def call(function: Callable[..., Any], *args: Any, limit: float = 300.0) -> Any:
    """The function's result, from a process of its own."""
    with Process(_answer_once, function, *args) as process:
        return process.answer(limit)


def _answer_once(connection: Connection, function: Callable[..., Any], *args: Any) -> None:
    connection.send((True, function(*args)))


# --- training ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a training process: digests, and for coop the scope's statistics over the
    timed steps."""

    digests: dict[str, str]
    stats: dict[str, Any] | None


class Trainer(Process):
    """A way of training that waits for its turns."""

    def __init__(self, way: Way, warm_up: int, limit: float) -> None:
        super().__init__(_train, way, warm_up)
        self._limit = limit
        try:
            self.warm_up: Clock = self.answer(10 * limit if way.name == "compile" else limit)
        except BaseException:
            self.end()
            raise

    def turn(self, steps: int) -> Clock:
        return self.ask(steps, self._limit)

    def finish(self) -> Outcome:
        outcome = self.ask(None, self._limit)
        self.end()
        return outcome


def _train(connection: Connection, way: Way, warm_up: int) -> None:
    with scope(way) as memory:
        job = Job(way)
        clock = Clock.of(job, warm_up)
        before = memory.stats() if memory else None
        connection.send((True, clock))
        while steps := connection.recv():
            connection.send((True, Clock.of(job, steps)))
        stats = _since(before, memory.stats()) if memory else None
    connection.send((True, Outcome(job.digests(), stats)))


_COUNTED = ("evictions", "rematerialisations", "replays", "moves", "commits", "searches", "op_seconds", "recompute_seconds",
            "search_seconds", "move_seconds", "ops", "swaps_out", "swaps_in", "swapped_out", "swapped_in",
            "transfer_seconds", "hidden_seconds", "waited_seconds", "prefetch_hits", "prefetch_misses")  # fmt: skip


def _since(before: Any, after: Any) -> dict[str, Any]:
    """Counts since then; the rest as it is now."""
    first, last = dataclasses.asdict(before), dataclasses.asdict(after)
    return {name: value - first[name] if name in _COUNTED else value for name, value in last.items()}


def profile_of(way: Way, warm_up: int = 2, limit: float = 300.0) -> Profile:
    return call(_profile, way, warm_up, limit=limit)


def _profile(way: Way, warm_up: int) -> Profile:
    with scope(way):
        job = Job(way)
        for _ in range(warm_up):
            job.step()
        return profile(job)


def take_turns(
    trainers: dict[str, Trainer], rounds: int, steps: int, tick: Callable[[str], None]
) -> tuple[list[dict[str, Clock]], dict[str, Failed]]:
    """The ways take turns; the order is reversed every other round. Returns the times of each
    round, and the failures."""
    clocks: list[dict[str, Clock]] = []
    failed: dict[str, Failed] = {}
    for number in range(rounds):
        clocks.append({})
        for name in list(trainers)[:: -1 if number % 2 else 1]:
            tick(name)
            try:
                clocks[-1][name] = trainers[name].turn(steps)
            except Failed as failure:
                failed[name] = failure
                del trainers[name]
    return clocks, failed
