"""A new program from one or two that went before."""

import dataclasses
import random

from hunt.program import NUMBERS, SIZES, Program, Step, random_step
from hunt.scenes import REGISTERS

MOST_STEPS = 80


def mutate(program: Program, other: Program, rng: random.Random) -> Program:
    """One to four small changes; now and then the end of another program."""
    steps = list(program.steps)
    if rng.random() < 0.2:
        steps = steps[: rng.randrange(len(steps) + 1)] + list(other.steps[rng.randrange(len(other.steps) + 1) :])
    for _ in range(rng.randint(1, 4)):
        _change(steps, rng)
    program = dataclasses.replace(program, steps=tuple(steps[:MOST_STEPS]))
    if rng.random() < 0.1:
        program = dataclasses.replace(program, size=rng.randrange(len(SIZES)))
    if rng.random() < 0.1:
        program = dataclasses.replace(program, seed=rng.randrange(1 << 16))
    return program


def _change(steps: list[Step], rng: random.Random) -> None:
    at = rng.randrange(len(steps) + 1)
    kind = rng.random()
    if kind < 0.35 or len(steps) < 2:
        steps.insert(at, random_step(rng))
    elif kind < 0.5:
        del steps[at : at + rng.randint(1, 3)]
    elif kind < 0.6:
        other = rng.randrange(len(steps))
        at %= len(steps)
        steps[at], steps[other] = steps[other], steps[at]
    elif kind < 0.7:  # the same again, somewhere else
        steps.insert(at, rng.choice(steps))
    elif kind < 0.8:  # another step on the same registers
        at %= len(steps)
        steps[at] = (random_step(rng)[0], *steps[at][1:])
    else:
        at %= len(steps)
        name, *numbers = steps[at]
        field = rng.randrange(4)
        numbers[field] = rng.randrange(NUMBERS if field == 3 else REGISTERS)
        steps[at] = (name, numbers[0], numbers[1], numbers[2], numbers[3])
