"""How a rank ends: with a last word, and in time.

torchrun ends all ranks with SIGTERM when one has failed. Such a rank often waits for the one that
is gone, in C++, where no signal handler of Python runs. So a thread waits for the signal, says what
there is to say, and then the process dies of the signal as it would have at once.

A rank that has failed may hang at its end: a process group waits for its own threads, and they for
ranks that wait for this one. The launcher would not learn that it has failed. So it ends by force.
"""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable

from coop import _C

LIMIT = 5.0
"""Seconds. Then the process dies, whatever the last word waits for."""

LAST_SECONDS = 5.0
"""For a process that has failed, when Python's exit functions have run."""


def end_in_time(code: int = 1) -> None:
    """To be called at exit. The process has a few seconds from now on."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program may have closed it
            stream.flush()
    _C.end_within(LAST_SECONDS, code)


def end_in_time_if(failed: Callable[[], bool]) -> None:
    """Does so at exit, if that is true then; not in forked processes."""
    process = os.getpid()
    atexit.register(lambda: end_in_time() if os.getpid() == process and failed() else None)


def say_when_terminated(last_word: Callable[[], None]) -> None:
    """Calls it when SIGTERM comes, on another thread, unless the program handles SIGTERM itself."""
    pipe = _C.watch_termination()
    if pipe >= 0:
        threading.Thread(target=_wait, args=(pipe, last_word), name="coop-termination", daemon=True).start()


def _wait(pipe: int, last_word: Callable[[], None]) -> None:
    os.read(pipe, 1)
    timer = threading.Timer(LIMIT, _C.die_of_termination)
    timer.daemon = True
    timer.start()
    with contextlib.suppress(Exception):  # it dies anyway
        last_word()
    _C.die_of_termination()
