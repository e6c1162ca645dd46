"""Runs a script inside a scope, as if Python ran it.

The script is `__main__`: its arguments, its folder on the path, its exit code, its traceback and
Ctrl-C are what they would be without coop. The scope lasts as long as the process does, so that
threads that outlive the script and functions registered with `atexit` are inside it too.

What differs: torch is imported before the script starts, so that variables which torch reads at
import (OMP_NUM_THREADS) must be set outside. Processes that the script starts afresh (spawn,
subprocess) have no budget; forked ones work on a copy of it.
"""

import atexit
import builtins
import os
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType

from coop.budget import Memory
from coop.events import Stats


def run_script(
    path: str, source: bytes, arguments: list[str], memory: Memory, report: Callable[[Stats, str], None]
) -> None:
    """Runs it in a scope that is open. At exit, whatever the reason, `report` gets the final
    statistics, and in a sentence why events could not be written, if that is so."""
    _at_exit(lambda: report(memory.stats(), memory.finish_events()))
    run_main(path, source, arguments)


def run_main(path: str, source: bytes, arguments: list[str]) -> None:
    """Runs it without a scope."""
    main = _main_module(path)
    sys.modules["__main__"] = main
    sys.argv[:] = [path, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    try:
        exec(compile(source, main.__file__ or path, "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:
        _hide_frames_above(error)
        raise  # up to the interpreter, which ends the process as it does for any script


def _main_module(path: str) -> ModuleType:
    """What Python makes of a script before it runs."""
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
    """After the script's own exit functions and threads; not in forked processes."""
    process = os.getpid()
    atexit.register(lambda: act() if os.getpid() == process else None)


def _hide_frames_above(error: BaseException) -> None:
    """The traceback that will be shown begins with the script, not with what called it."""
    show, traceback = sys.excepthook, error.__traceback__ and error.__traceback__.tb_next
    sys.excepthook = lambda kind, error, _: show(kind, error.with_traceback(traceback), traceback)
