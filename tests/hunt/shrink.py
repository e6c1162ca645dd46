"""Shrinks a program that differs: fewer steps, smaller numbers, fewer settings."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from hunt.program import Program

Fails = Callable[[Program, dict[str, Any]], bool]


def shrink(program: Program, settings: dict[str, Any], fails: Fails, most: int = 600) -> tuple[Program, dict[str, Any]]:
    """Leaves out steps and settings and makes numbers smaller as long as it fails, in at most
    `most` runs."""
    left = most

    def attempt(smaller: Program, fewer: dict[str, Any]) -> bool:
        nonlocal left, program, settings
        if left <= 0 or (smaller, fewer) == (program, settings):
            return False
        left -= 1
        if not fails(smaller, fewer):
            return False
        program, settings = smaller, fewer
        return True

    def with_steps(steps: Any) -> Program:
        return dataclasses.replace(program, steps=tuple(steps))

    before = None
    while before != (program, settings) and left > 0:
        before = program, settings
        size = max(len(program.steps) // 2, 1)
        while size:
            at = 0
            while at < len(program.steps):
                steps = program.steps
                if not attempt(with_steps(steps[:at] + steps[at + size :]), settings):
                    at += size
            size //= 2
        for name in sorted(set(settings) - {"ratio"}):
            attempt(program, {key: value for key, value in settings.items() if key != name})
        for name, value in (("ratio", 0.0), ("checks", 2), ("checks", 0)):
            attempt(program, {**settings, name: value})
        for change in ({"threads": 1}, {"size": 0}, {"size": 1}, {"seed": 0}):
            attempt(dataclasses.replace(program, **change), settings)
        for at, field in itertools.product(range(len(program.steps)), range(1, 5)):
            step = list(program.steps[at])
            for value in (0, 1, step[field] // 2):
                if value < step[field]:
                    smaller = [*step[:field], value, *step[field + 1 :]]
                    if attempt(with_steps([*program.steps[:at], tuple(smaller), *program.steps[at + 1 :]]), settings):
                        break
    return program, settings
