"""Runs a script inside a scope, as if Python ran it.

The script is `__main__`: its arguments, its folder on the path, its exit code, its traceback and
Ctrl-C are what they would be without coop. The scope lasts as long as the process, so that threads
that outlive the script and functions registered with `atexit` are inside it too.

One difference: torch is imported before the script starts, so variables that torch reads at import
(OMP_NUM_THREADS) must be set outside. New processes that the script starts (spawn, subprocess)
have no budget; forked ones work on a copy of it.
"""

import atexit
import builtins
import os
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType

from coop.distributed.elastic import begin_recording, record_failure
from coop.distributed.place import place_now
from coop.distributed.termination import end_in_time_if


def run_script(path: str, source: bytes, arguments: list[str], report: Callable[[bool], None]) -> None:
    """Runs the script in a scope that is open. At exit, whatever the reason, calls `report` with
    whether the script has failed. torchrun is told how it has."""
    failed = False
    end_in_time_if(lambda: failed and place_now() is not None)
    _at_exit(lambda: report(failed))
    begin_recording()
    try:
        run_main(path, source, arguments)
    except BaseException as error:
        failed = not isinstance(error, SystemExit) or bool(error.code)
        frames = error.__traceback__
        for _ in range(2):  # this function's, and run_main's
            frames = frames and frames.tb_next
        record_failure(error.with_traceback(frames))
        raise


def run_main(path: str, source: bytes, arguments: list[str]) -> None:
    """Runs the script without a scope."""
    main = _main_module(path)
    sys.modules["__main__"] = main
    sys.argv[:] = [path, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    try:
        exec(compile(source, main.__file__ or path, "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:
        _hide_frames_above(error)
        raise  # the interpreter ends the process as for any script


def _main_module(path: str) -> ModuleType:
    """The module `__main__`, as Python prepares it before a script runs."""
    main = ModuleType("__main__")
    file = os.path.abspath(path)
    vars(main).update(
        __file__=file,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", file),
        __builtins__=builtins,
        __annotations__={},
    )
    return main


def _at_exit(act: Callable[[], None]) -> None:
    """Calls `act` after the script's own exit functions and threads; not in forked processes."""
    process = os.getpid()
    atexit.register(lambda: act() if os.getpid() == process else None)


def _hide_frames_above(error: BaseException) -> None:
    """Makes the traceback begin with the script."""
    show, traceback = sys.excepthook, error.__traceback__ and error.__traceback__.tb_next
    sys.excepthook = lambda kind, error, _: show(kind, error.with_traceback(traceback), traceback)
