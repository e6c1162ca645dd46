"""Writes the events of an open scope to a file while the program runs.

A thread of its own takes what has happened several times a second, and writes it. So events do not
gather in memory, however long the program runs and whatever it does: one long backward pass has no
place in Python where somebody else could have a turn. The program's own threads are not held up by
the disk. At the end of the scope the rest is written. A program that is killed leaves all but the
last moments.

If the file cannot be written any more (a full disk), the program goes on, and hears of it at the
end. A forked child writes nothing: the file is its parent's.
"""

import os
import threading

from coop import _C
from coop.event_file import EventWriter

INTERVAL = 0.2
"""Seconds between two parts."""


class LiveEvents:
    """Of the scope that is open, from now until `finish`."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._process = os.getpid()
        self._error: OSError | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="coop-events", daemon=True)
        self._thread.start()

    def finish(self) -> str:
        """Writes the rest, while the scope is still open. Returns what went wrong, as a sentence,
        or nothing."""
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
