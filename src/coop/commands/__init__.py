"""The commands that have a file of their own. cli.py puts them together.

A command checks its arguments while click runs, and returns its work as a function.
"""

import sys
import time
from collections.abc import Callable
from typing import NoReturn

from coop.distributed.place import speaks_for_its_machine

Work = Callable[[], None]

WAIT_FOR_THE_SPEAKER = 5.0
"""Seconds. The launcher ends all ranks when one ends: the one that speaks must not be cut short."""


def refuse(sentence: str, of_this_rank: bool = False) -> NoReturn:
    """Ends with one sentence that says what is wrong, without a traceback. Of several ranks of a
    machine one says it, unless it is about this rank alone."""
    if of_this_rank or speaks_for_its_machine():
        print(f"coop: {sentence}", file=sys.stderr, flush=True)
    else:
        time.sleep(WAIT_FOR_THE_SPEAKER)
    raise SystemExit(2)
