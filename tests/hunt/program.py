"""Programs as plain data: a list of steps (name, a, b, c, k), an interpreter, a generator, and a
script for people.

Every list is a program: registers are taken modulo their number, and a step that does not apply
raises, in a plain run and in a budget alike.
"""

import copy
import dataclasses
import json
import pickle
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

import coop
from hunt import shapes
from hunt.blocks import BLOCKS, on_thread
from hunt.ops import COMPUTE, IN_PLACE, VIEWS
from hunt.scenes import GRAPH, REGISTERS, SCENES, Machine

Step = tuple[str, int, int, int, int]

SIZES = [(16, 16), (32, 32), (48, 48), (7, 33), (64, 64), (5, 3), (24, 64), (33, 17), (1, 512), (90, 90)]
NUMBERS = 16
"""k is below this."""

_NAMES = {
    name: getattr(shapes, name)
    for name in ("flt", "f32", "fit", "mat", "vec", "span", "square", "index", "distinct", "out", "resizable")
}
_SCOPE = {"torch": torch, "F": F, "copy": copy, "pickle": pickle, **_NAMES}

SOURCES: dict[str, str] = (
    {f"compute {name}": f"z = {text}" for name, text in COMPUTE.items()}
    | {f"view {name}": f"z = {text}" for name, text in VIEWS.items()}
    | {f"in place {name}": text for name, text in IN_PLACE.items()}
    | {f"quietly {name}": text for name, text in IN_PLACE.items()}  # under no_grad
)
KINDS: dict[str, list[str]] = {
    "compute": [name for name in SOURCES if name.startswith("compute")],
    "view": [name for name in SOURCES if name.startswith("view")],
    "in place": [name for name in SOURCES if name.startswith("in place")],
    "quietly": [name for name in SOURCES if name.startswith("quietly")],
    "graph": [f"scene {name}" for name in GRAPH],
    "scene": [f"scene {name}" for name in SCENES if name not in GRAPH],
    "block": [f"block {name}" for name in BLOCKS],
}
OFTEN = {"compute": 30, "view": 22, "in place": 6, "quietly": 22, "graph": 9, "scene": 8, "block": 3}


def _compiled(text: str) -> Callable[..., Any]:
    space: dict[str, Any] = dict(_SCOPE)
    if text.startswith("z = "):
        exec(f"def step(x, y, z, k, w):\n    return {text[4:]}", space)
    else:
        exec(f"def step(x, y, z, k, w):\n    {text}", space)
    step: Callable[..., Any] = space["step"]
    return step


_STEPS = {name: _compiled(text) for name, text in SOURCES.items()}


@dataclasses.dataclass(frozen=True)
class Program:
    steps: tuple[Step, ...]
    size: int = 0
    """The size of the registers at the start: an index in `SIZES`."""
    seed: int = 0
    threads: int = 1

    def dump(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def load(cls, text: str) -> "Program":
        data = json.loads(text)
        return cls(**{**data, "steps": tuple(tuple(step) for step in data["steps"])})


def random_step(rng: random.Random) -> Step:
    kind = rng.choices(list(OFTEN), list(OFTEN.values()))[0]
    name = rng.choice(KINDS[kind])
    return (name, *(rng.randrange(REGISTERS) for _ in range(3)), rng.randrange(NUMBERS))  # type: ignore[return-value]


def random_program(rng: random.Random) -> Program:
    """A pure function of the random numbers."""
    length = rng.choice([6, 10, 20, 30, 40, 60])
    favourites = [random_step(rng)[0] for _ in range(8)]  # a few steps, again and again, meet each other more often
    steps = []
    for _ in range(length):
        step = random_step(rng)
        steps.append((rng.choice(favourites), *step[1:]) if rng.random() < 0.3 else step)
    return Program(tuple(steps), rng.randrange(len(SIZES)), rng.randrange(1 << 16), 2 if rng.random() < 0.05 else 1)


# --- running -----------------------------------------------------------------------------------------------------------


class OutOfRoom(Exception):
    """The budget is too small for this program: no difference."""


Watch = Callable[[Machine, Step, bool], None]


class Interpreter:
    """Runs a program once. `watch` is called before and after each step."""

    def __init__(self, program: Program, memory: coop.Memory | None = None, watch: Watch | None = None) -> None:
        self.program = program
        self.machine = Machine(*SIZES[program.size % len(SIZES)], program.seed, memory)
        self.watch = watch
        self.log: list[str] = []
        """For each step, what it raised."""
        self.messages: list[str] = []

    def run(self) -> "Interpreter":
        self._run(self.program.steps, 0)
        return self

    def _run(self, steps: Sequence[Step], depth: int) -> None:
        at = 0
        while at < len(steps):
            step = steps[at]
            at += 1
            if not step[0].startswith("block ") or depth >= 3:
                self._guarded(lambda step=step: self._step(step), step)
                continue
            name, k = step[0].removeprefix("block "), step[4]
            inner = steps[at : at + 1 + k % 6]
            at += len(inner)
            self._guarded(lambda name=name, k=k, inner=inner: self._block(name, k, inner, depth), None)

    def _block(self, name: str, k: int, steps: Sequence[Step], depth: int) -> None:
        if name == "thread":
            on_thread(lambda: self._run(steps, depth + 1))
            return
        with BLOCKS[name](self.machine, k):
            self._run(steps, depth + 1)

    def _guarded(self, action: Callable[[], None], step: Step | None) -> None:
        if self.watch and step:
            self.watch(self.machine, step, False)
        try:
            action()
            self.log.append("")
        except OutOfRoom:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if out_of_budget(error):
                raise OutOfRoom(str(error)) from None
            self.log.append(type(error).__name__)
            self.messages.append(f"{step}: {type(error).__name__}: {error}")
        if self.watch and step:
            self.watch(self.machine, step, True)

    def _step(self, step: Step) -> None:
        m = self.machine
        name, a, b, c, k = step
        a, b, c = a % REGISTERS, b % REGISTERS, c % REGISTERS
        kind, _, short = name.partition(" ")
        if kind == "scene":
            SCENES[short](m, a, b, c, k)
        elif kind == "quietly":
            with torch.no_grad():
                _STEPS[name](m.r[a], m.r[b], m.r[c], k, m.w)
        elif kind == "in":
            _STEPS[name](m.r[a], m.r[b], m.r[c], k, m.w)
        elif kind != "block":
            m.put(c, _STEPS[name](m.r[a], m.r[b], m.r[c], k, m.w))


def out_of_budget(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, coop.OutOfBudget):
            return True
        error = error.__cause__ or error.__context__
    return False


# --- scripts -----------------------------------------------------------------------------------------------------------


def script(program: Program, settings: dict[str, Any], raised: Sequence[str] = ()) -> str:
    """The program as Python for people. `raised`: of each step, in order, what it raises in a plain
    run."""
    lines = [
        "# Run with PYTHONPATH=tests",
        "from hunt.script import *",
        "",
        "def program(m):",
        "    r, w = m.r, m.w",
    ]
    left = list(raised)

    def emit(steps: Sequence[Step], indent: str, depth: int) -> None:
        at = 0
        if not steps:
            lines.append(f"{indent}pass")
        while at < len(steps):
            name, a, b, c, k = steps[at]
            at += 1
            kind, _, short = name.partition(" ")
            a, b, c = a % REGISTERS, b % REGISTERS, c % REGISTERS
            if kind == "block" and depth < 3:
                inner = steps[at : at + 1 + k % 6]
                at += len(inner)
                if short == "thread":
                    lines.extend([f"{indent}@on_thread", f"{indent}def work():"])
                else:
                    lines.append(f"{indent}with BLOCKS[{short!r}](m, {k}):")
                emit(inner, indent + "    ", depth + 1)
                if left:
                    left.pop(0)  # of the block itself
                continue
            fails = left.pop(0) if left else ""
            prefix = indent
            if fails:
                lines.append(f"{indent}with suppress({fails}):")
                prefix = indent + "    "
            lines.append(prefix + _line(kind, name, short, a, b, c, k))

    emit(program.steps, "    ", 0)
    header = (program.size % len(SIZES), program.seed, program.threads)
    lines += [
        "",
        f"compare(program, size={SIZES[header[0]]}, seed={header[1]}, threads={header[2]}, **{settings!r})",
        "",
    ]
    return "\n".join(lines)


def _line(kind: str, name: str, short: str, a: int, b: int, c: int, k: int) -> str:
    if kind == "scene":
        return f"{short}(m, {a}, {b}, {c}, {k})"
    if kind == "block":
        return "pass"
    names = {"x": f"r[{a}]", "y": f"r[{b}]", "z": f"r[{c}]", "k": str(k)}
    text = re.sub(r"(?<![\w.'])[xyzk]\b(?!')", lambda found: names[found.group()], SOURCES[name])
    if text.startswith(f"r[{c}] = "):
        text = f"m.put({c}, {text.split(' = ', 1)[1]})"
    return f"with torch.no_grad(): {text}" if kind == "quietly" else text
