"""The commands that have a file of their own. cli.py puts them together.

A command checks what it was told while click is in charge, and returns its work as a function.
"""

import sys
from collections.abc import Callable
from typing import NoReturn

Work = Callable[[], None]


def refuse(sentence: str) -> NoReturn:
    """What is wrong is told in one sentence, without a traceback."""
    print(f"coop: {sentence}", file=sys.stderr)
    raise SystemExit(2)
