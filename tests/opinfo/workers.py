"""Runs cases in child processes: a crash or a hang is a finding, with its case, and the sweep goes
on.

Children are forked from a process that has imported everything and has run no op, so that a new one
costs nothing. A child takes one case after the other, and says where it is before each program.
This module's user must not have run an op on several threads: OpenMP does not survive a fork.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import IO

from opinfo.cases import Case
from opinfo.verdicts import Verdict, examine

Judge = Callable[[Case, Callable[[str], None]], Verdict]
_FORK = multiprocessing.get_context("fork")


class Worker:
    """A child process, and the case it is at."""

    def __init__(self, judge: Judge) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        self.connection, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(theirs, self.errors.fileno(), judge), daemon=True)
        self.process.start()
        theirs.close()
        self.case: Case | None = None
        self.where = ""
        self.began = self.heard = time.monotonic()

    def give(self, case: Case) -> None:
        self.case, self.where = case, "making its samples"
        self.began = self.heard = time.monotonic()
        self.errors.truncate(0)
        self.connection.send(case)

    def listen(self) -> Verdict | None:
        """The verdict, if there is one now: the child's own, or that it died."""
        assert self.case is not None
        try:
            said = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return self._verdict("crashed", f"{_how(self.process.exitcode)}\n{self._last_words()}")
        self.heard = time.monotonic()
        if isinstance(said, Verdict):
            said.seconds = self.heard - self.began
            return said
        self.where = said
        return None

    def stuck(self, seconds: float) -> Verdict | None:
        """A verdict, if nothing was heard of it for so long."""
        if time.monotonic() - self.heard < seconds:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGABRT)  # faulthandler writes down where it is
        self.process.join(5)
        return self._verdict("stuck", f"no answer for {seconds:.0f} s\n{self._last_words()}")

    def _verdict(self, status: str, what: str) -> Verdict:
        assert self.case is not None
        took = time.monotonic() - self.began
        return Verdict(self.case.key, status, seconds=took, where=self.where, what=what)

    def _last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-4000:].decode(errors="replace")

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()
        self.errors.close()


def run_all(cases: Iterable[Case], jobs: int, timeout: float, judge: Judge = examine) -> Iterator[Verdict]:
    """The cases' verdicts, as they come. A case of which nothing is heard for `timeout` seconds is
    stuck."""
    waiting = iter(cases)
    idle: list[Worker] = []
    busy: dict[Connection, Worker] = {}
    try:
        while True:
            while len(busy) < jobs and (case := next(waiting, None)) is not None:
                worker = idle.pop() if idle else Worker(judge)
                worker.give(case)
                busy[worker.connection] = worker
            if not busy:
                return
            ready = wait(list(busy), timeout=1)
            for connection, worker in list(busy.items()):
                verdict = worker.listen() if connection in ready else worker.stuck(timeout)
                if verdict is None:
                    continue
                del busy[connection]
                if verdict.status in ("crashed", "stuck"):
                    worker.end()
                else:
                    idle.append(worker)
                yield verdict
    finally:
        for worker in [*idle, *busy.values()]:
            worker.end()


def _serve(connection: Connection, errors: int, judge: Judge) -> None:
    os.dup2(errors, 2)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    while True:
        while not connection.poll(5):
            if os.getppid() != parent:  # it was killed; its other children may keep the pipe open
                return
        try:
            case = connection.recv()
        except EOFError:
            return
        try:
            verdict = judge(case, connection.send)
        except Exception as error:
            verdict = Verdict(case.key, "broken", where="the sweep itself", what=f"{type(error).__name__}: {error}")
        connection.send(verdict)


def _how(code: int | None) -> str:
    return f"ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with status {code}"
