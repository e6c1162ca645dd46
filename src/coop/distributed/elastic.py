"""What torchrun is told of a failure: it shows the traceback of the rank that failed first.

Programs ask for that with the decorator `record` of torch.distributed.elastic. `coop run` does the
same for its script. For a program that opens a budget by itself, an OutOfBudget that nobody catches
is carried, unless the program uses `record` itself. A rank that has failed so ends in time.
"""

import os
import sys
from types import TracebackType

from coop.distributed.termination import end_in_time_if

_uncaught: list[BaseException] = []


def begin_recording() -> None:
    """Faults of this process are shown with the stacks of all threads, as `record` has it."""
    if _file():
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().initialize()


def record_failure(error: BaseException) -> None:
    """To be called while the error is handled. SystemExit is not a failure of its own."""
    if _file() and isinstance(error, Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def record_uncaught(kinds: tuple[type[BaseException], ...]) -> None:
    """From now on, errors of these kinds are recorded if nobody catches them."""
    if not _file() or getattr(sys.excepthook, "of_coop", False):
        return
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, kinds):
            _uncaught.append(error)
            if not os.path.exists(_file()):
                _record(error, traceback)
        show(kind, error, traceback)

    hook.of_coop = True  # type: ignore[attr-defined]
    sys.excepthook = hook
    end_in_time_if(lambda: bool(_uncaught))


def _record(error: BaseException, traceback: TracebackType | None) -> None:
    """The handler asks Python for the error that is being handled, and its frames."""
    try:
        raise error
    except BaseException as again:
        record_failure(again.with_traceback(traceback))


def _file() -> str:
    """Where the launcher looks. Empty: there is none that does."""
    return os.environ.get("TORCHELASTIC_ERROR_FILE", "")
