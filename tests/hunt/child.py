"""A process of its own that tries cases, so that a crash or a hang is a finding and not the end.

A case is a program and the settings of some budgets.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Case = tuple[str, list[dict[str, Any]]]
"""A program, dumped, and settings."""
SECONDS = 60
"""A case that takes longer counts as a hang."""


def serve(connection: Connection, errors: str, planted: str) -> None:
    """Runs in the child: answers cases until the parent ends."""
    import faulthandler

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with open(errors, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable(sys.stderr)
    import coop.errors
    from hunt.attempt import attempt

    coop.errors.program_needs = lambda numbers: 0  # the estimate visits every object; tests/tips tests it
    if planted:
        from hunt.plant import plant

        plant(planted)
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            program, settings = connection.recv()
            connection.send(attempt(program, settings))


class Child:
    """One child at a time, started again when it has died."""

    def __init__(self, planted: str = "") -> None:
        self.planted = planted
        self.process: Any = None
        self.deaths = 0

    def start(self) -> None:
        here = str(Path(__file__).parents[1])
        if here not in os.environ.get("PYTHONPATH", ""):  # the server looks nowhere else
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # see tests/conftest.py
        context = multiprocessing.get_context("forkserver")  # it has imported torch already: a new child starts fast
        context.set_forkserver_preload(["torch._dynamo", "hunt.attempt"])
        self.connection, theirs = context.Pipe()
        self.errors = tempfile.NamedTemporaryFile(prefix="hunt-", suffix=".err")  # noqa: SIM115  lives as long as the child
        self.process = context.Process(target=serve, args=(theirs, self.errors.name, self.planted), daemon=True)
        self.process.start()
        theirs.close()
        if not self.connection.poll(300) or self.connection.recv() != "ready":
            raise RuntimeError("the child process does not start: " + self._last_words())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.errors.close()
        self.process = None

    def attempt(self, case: Case, seconds: float = SECONDS) -> dict[str, Any]:
        """The result; see attempt.py. A child that dies or hangs is replaced."""
        if self.process is None:
            self.start()
        start = time.monotonic()
        try:
            self.connection.send(case)
            if self.connection.poll(seconds):
                answer: dict[str, Any] = self.connection.recv()
                return answer
            os.kill(self.process.pid, signal.SIGABRT)  # it says where it is
            self.process.join(10)
            found = f"hang: no answer in {seconds:.0f} s: {self._last_words()}"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.join(10)
            found = f"crash: {self._death()}"
        self.deaths += 1
        self.stop()
        return {"status": "different", "what": found, "at": None, "no room": 0, "seconds": time.monotonic() - start}

    def _death(self) -> str:
        code = self.process.exitcode
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return f"{name}: {self._last_words()}"

    def _last_words(self) -> str:
        with open(self.errors.name, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        told = [line for line in lines if "what():" in line or "rror" in line or line.startswith("File ")]
        said = told or lines
        return " / ".join(said[:5] + said[max(5, len(said) - 3) :])[:1600]
