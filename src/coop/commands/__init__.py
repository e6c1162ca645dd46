"""The commands that have a file of their own. cli.py puts them together.

A command checks its arguments while click runs, and returns its work as a function.
"""

import sys
from collections.abc import Callable
from typing import NoReturn

Work = Callable[[], None]


def refuse(sentence: str) -> NoReturn:
    """Ends with one sentence that says what is wrong, without a traceback."""
    print(f"coop: {sentence}", file=sys.stderr)
    raise SystemExit(2)
