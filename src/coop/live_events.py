"""Writes the events of an open scope to a file while the program runs.

A thread takes the events several times a second and writes them. So they do not pile up in memory,
however long the program runs: even during one long backward pass, in which no other Python code
runs. The program's own threads do not wait for the disk. At the end of the scope the rest is
written. If the program is killed, only the last moments are missing.

If the file can no longer be written (a full disk), the program goes on and is told at the end. A
forked child writes nothing: the file belongs to its parent.
"""

import os
import threading

from coop import _C
from coop.event_file import EventWriter

INTERVAL = 0.2
"""Seconds between two writes."""


class LiveEvents:
    """Writes the events of the open scope, from now until `finish`."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._process = os.getpid()
        self._error: OSError | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="coop-events", daemon=True)
        self._thread.start()

    def finish(self) -> str:
        """Writes the rest, while the scope is still open. Returns an error as a sentence; empty:
        none."""
        if os.getpid() != self._process:
            return ""
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join()
            self._take()
            try:
                if self._error is None:
                    self._writer.close()
            except OSError as error:
                self._error = error
        if self._error is None:
            return ""
        return (
            f"the events after the first {self._writer.count:,} could not be written: "
            f"{self._error.strerror or self._error}"
        )

    def _work(self) -> None:
        while not self._ending.wait(INTERVAL):
            self._take()

    def _take(self) -> None:
        rows = _C.events()
        if self._error is not None:
            return
        try:
            self._writer.write(rows)
        except OSError as error:
            self._error = error
            self._writer.abandon()
