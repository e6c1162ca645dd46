"""Errors planted in managed runs, to check that the machine finds them."""

import os
import time
from collections.abc import Callable
from typing import Any

from coop import _C
from hunt import program

STEP = "compute tanh"


def _wrong(result: Any) -> Any:
    return result + 1e-6


def _crash(result: Any) -> Any:
    os.abort()


def _hang(result: Any) -> Any:
    time.sleep(3600)


def _raise(result: Any) -> Any:
    raise LookupError("planted")


PLANTS: dict[str, Callable[[Any], Any]] = {"wrong": _wrong, "crash": _crash, "hang": _hang, "raise": _raise}


def plant(name: str) -> None:
    """Makes the step return something else while a budget is in force."""
    original = program._STEPS[STEP]

    def planted(*arguments: Any) -> Any:
        result = original(*arguments)
        return PLANTS[name](result) if _C.is_open() else result

    program._STEPS[STEP] = planted
