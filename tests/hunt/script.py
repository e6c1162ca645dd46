"""What a printed script needs: everything that its lines name, and `compare`."""
# ruff: noqa: F401  names for the scripts

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.nn import functional as F

from hunt import compare as comparing
from hunt.blocks import BLOCKS, on_thread
from hunt.program import SIZES, Interpreter, Program
from hunt.scenes import *  # noqa: F403
from hunt.scenes import Machine
from hunt.shapes import distinct, f32, fit, flt, index, mat, out, resizable, span, square, vec

__all__ = [name for name in dir() if not name.startswith("_") and name != "comparing"] + ["compare"]


def compare(program: Callable[[Machine], Any], size: tuple[int, int], seed: int, threads: int, **settings: Any) -> None:
    """Prints where the program's results in a budget differ from those of a plain run."""
    for where, difference in differences(program, size, seed, threads, **settings).items():
        print(f"{where}: {difference or 'the same'}")


def differences(
    program: Callable[[Machine], Any], size: tuple[int, int], seed: int, threads: int, **settings: Any
) -> dict[str, str]:
    """From a plain run, without a limit and in a budget; empty where there are none."""

    class Written(Interpreter):
        def run(self) -> "Written":
            program(self.machine)
            return self

    original, comparing.Interpreter = comparing.Interpreter, Written  # type: ignore[misc]
    try:
        shell = Program((), SIZES.index(size), seed, threads)
        expected = comparing.plain(shell)
        measured, actual = comparing.without_limit(shell)
        found = comparing.in_budget(shell, measured, settings)
    finally:
        comparing.Interpreter = original  # type: ignore[misc]
    return {
        "without a limit": comparing.difference(expected, actual),
        "in a budget": "no room" if found is None else comparing.difference(expected, found),
    }
