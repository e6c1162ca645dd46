"""Random traces of steps that look like training, and shrinking of a trace that fails."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from coop.trace.trace import FRESH, Hold, Instruction, Op, Output, Release, Source, Trace


class Writer:
    """Writes a trace, and knows which tensors the program still holds."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.instructions: list[Instruction] = []
        self.references: list[int] = []
        self.origin: list[int | None] = []
        """For each tensor, the source whose storage it views."""
        self.unit = rng.choice([64, 100, 1000, 1024])
        self.cheap = rng.choice([1, 100, 1000])
        self.same_costs = rng.random() < 0.3

    def chance(self, percent: float) -> bool:
        return self.rng.random() * 100 < percent

    @property
    def held(self) -> list[int]:
        return [tensor for tensor, count in enumerate(self.references) if count]

    def size(self) -> int:
        kind = self.rng.random()
        if kind < 0.04:
            return 0
        if kind < 0.12:
            return self.rng.randint(1, 512)
        if kind < 0.5:
            return self.unit * self.rng.choice([1, 2, 4, 8])
        return self.rng.randint(513, 10 * self.unit + 600)

    def cost(self) -> int:
        if self.same_costs:
            return 1000 * self.rng.choice([1, 1, 1, 10])
        if self.chance(4):
            return 0
        return self.rng.randint(1, 100) * self.cheap * self.rng.choice([1, 1, 1, 100])

    def _born(self, origin: int | None = None) -> int:
        self.references.append(1)
        self.origin.append(origin)
        return len(self.references) - 1

    def source(self, kind: str = "") -> int:
        tensor = self._born(len(self.references))
        self.instructions.append(Source(tensor, self.size(), kind))
        return tensor

    def op(
        self,
        inputs: Sequence[int],
        fresh: int = 1,
        writes: Sequence[int] = (),
        views: Sequence[int] = (),
        phase: str = "forward",
    ) -> list[int]:
        """Returns the new tensors: fresh ones, then new versions, then views."""
        aliases = [FRESH] * fresh + [*writes, *views]
        outputs = []
        for alias in aliases:
            tensor = self._born(None if alias == FRESH else self.origin[inputs[alias]])
            outputs.append(Output(tensor, self.size() if alias == FRESH else 0, alias))
        if self.chance(20):
            order = list(outputs)
            self.rng.shuffle(order)
            # The numbers stay in order; the tensors that they stand for do not.
            outputs = [replace(o, tensor=outputs[i].tensor) for i, o in enumerate(order)]
            for output in outputs:
                self.origin[output.tensor] = None if output.alias == FRESH else self.origin[inputs[output.alias]]
        self.instructions.append(
            Op(
                "op",
                tuple(inputs),
                tuple(outputs),
                self.cost(),
                phase,
                tuple(writes),
                self.size() if self.chance(15) else 0,
                not self.chance(6),
            )
        )
        return [output.tensor for output in outputs]

    def hold(self, tensor: int) -> None:
        self.references[tensor] += 1
        self.instructions.append(Hold(tensor))

    def release(self, tensor: int) -> None:
        if self.references[tensor]:
            self.references[tensor] -= 1
            self.instructions.append(Release(tensor))

    def finish(self) -> Trace:
        """In the next step, each source continues as its last version of this step."""
        carried: dict[int, int] = {}
        for tensor in self.held:
            origin = self.origin[tensor]
            if origin is not None:
                carried[origin] = tensor
        for at, instruction in enumerate(self.instructions):
            if (
                isinstance(instruction, Source)
                and carried.get(instruction.tensor, instruction.tensor) != instruction.tensor
            ):
                self.instructions[at] = replace(instruction, carries=carried[instruction.tensor])
        return Trace(self.instructions)


def training(rng: random.Random, length: int) -> Trace:
    """Forward through layers, backward through what was saved, then an optimizer that writes to the
    parameters."""
    w = Writer(rng)
    parameters = [w.source("parameter") for _ in range(rng.randint(1, 5))]
    states = [w.source() for _ in range(rng.randint(0, 2))]
    x = w.source()
    saved: list[tuple[int, ...]] = []
    recent = [x]
    for _ in range(length):
        inputs = [x]
        if w.chance(50):
            inputs.append(rng.choice(parameters))
        if w.chance(20):
            inputs.append(rng.choice(w.held))
        kind = rng.random()
        if kind < 0.12:
            outputs = w.op(inputs, fresh=0, views=[0])
        elif kind < 0.3:
            outputs = w.op(inputs, fresh=rng.choice([0, 0, 0, 1]), writes=[0])
        elif kind < 0.36 and states:
            at = rng.randrange(len(states))
            outputs = w.op([*inputs, states[at]], fresh=1, writes=[len(inputs)])
            w.release(states[at])
            states[at] = next(tensor for tensor in outputs if w.origin[tensor] is not None)
            outputs.remove(states[at])
        elif kind < 0.46:  # both versions of one storage are needed later
            first = w.op(inputs)[0]
            other = w.op([first])[0]
            second = w.op([first, *inputs[1:]], fresh=0, writes=[0])[0]
            w.release(first)
            inputs = [other, second]
            outputs = w.op(inputs)
        else:
            outputs = w.op(inputs, fresh=rng.choice([1, 1, 1, 2, 3]), views=[0] if w.chance(10) else [])
        saved.append(tuple(inputs))
        if w.chance(50) and w.references[inputs[0]]:
            w.hold(inputs[0])
        before, x = x, rng.choice(outputs)
        recent.append(x)
        for tensor in [before, *outputs]:
            if tensor != x and tensor not in states and w.references[tensor] and w.chance(70):
                w.release(tensor)
        if w.chance(10):
            tensor = rng.choice(w.held)
            if tensor not in parameters + states and tensor != x:
                w.release(tensor)
    gradients: dict[int, int] = {}
    gradient = w.op([x], phase="backward")[0]
    for inputs in reversed(saved):
        reads = [gradient, *(t for t in inputs if w.references[t])]
        outputs = w.op(reads, fresh=rng.choice([1, 1, 2]), phase="backward", writes=[0] if w.chance(10) else [])
        for tensor in inputs:
            if tensor in parameters and tensor not in gradients and w.chance(70):
                gradients[tensor] = w.op([gradient], phase="backward")[0]
            elif tensor not in parameters + states:
                w.release(tensor)
        w.release(gradient)
        gradient = rng.choice(outputs)
        for tensor in outputs:
            if tensor != gradient and w.chance(80):
                w.release(tensor)
    for parameter, gradient in gradients.items():
        if w.chance(80):
            reads, writes = [parameter, gradient], [0]
            if states and w.chance(50):
                reads.append(states[0])
            w.op(reads, fresh=rng.choice([0, 0, 1]), writes=writes, phase="optimizer")
            if w.chance(80):
                w.release(parameter)
        if w.chance(80):
            w.release(gradient)
    for tensor in w.held:
        if w.origin[tensor] is None and w.chance(85):
            w.release(tensor)
    return w.finish()


def chaos(rng: random.Random, length: int) -> Trace:
    """Any op on any held tensor."""
    w = Writer(rng)
    for _ in range(rng.randint(1, 5)):
        w.source(rng.choice(["", "parameter"]))
    few = rng.randint(3, 25)
    for _ in range(length):
        if w.chance(4) or not w.held:
            w.source()
        inputs = rng.sample(w.held, min(len(w.held), rng.choice([0, 1, 1, 2, 2, 3])))
        if inputs and w.chance(5):
            inputs.append(inputs[0])
        phase = rng.choice(["forward"] * 6 + ["backward", "optimizer"])
        if inputs and w.chance(25):
            writes = rng.sample(range(len(inputs)), 1 if w.chance(80) else len(inputs))
            new = w.op(inputs, rng.choice([0, 0, 1]), writes, phase=phase)
            for index in writes:
                if w.chance(70):
                    w.release(inputs[index])
        elif inputs and w.chance(12):
            new = w.op(inputs, rng.choice([0, 0, 1]), views=rng.sample(range(len(inputs)), 1), phase=phase)
        else:
            new = w.op(inputs, rng.choice([0] + [1] * 10 + [2, 2, 3]), phase=phase)
        if w.chance(8) and w.held:
            w.hold(rng.choice(w.held))
        while len(w.held) > few:
            w.release(rng.choice(w.held))
        for tensor in new:
            if w.chance(15):
                w.release(tensor)
    return w.finish()


def random_trace(rng: random.Random) -> Trace:
    make = rng.choice([training, chaos])
    return make(rng, rng.choice([4, 8, 12, 20, 40]))


def without(instructions: Sequence[Instruction], leave_out: set[int]) -> list[Instruction]:
    """The trace without some instructions and everything that depends on them, with tensors
    renumbered."""
    new: dict[int, int] = {}
    kept: list[Instruction] = []
    for at, instruction in enumerate(instructions):
        if at in leave_out:
            continue
        if isinstance(instruction, Source):
            new[instruction.tensor] = len(new)
            kept.append(replace(instruction, tensor=new[instruction.tensor]))
        elif isinstance(instruction, Op):
            if any(tensor not in new for tensor in instruction.inputs):
                continue
            outputs = []
            for output in instruction.outputs:
                new[output.tensor] = len(new)
                outputs.append(replace(output, tensor=new[output.tensor]))
            kept.append(replace(instruction, inputs=tuple(new[t] for t in instruction.inputs), outputs=tuple(outputs)))
        elif instruction.tensor in new:
            kept.append(type(instruction)(new[instruction.tensor]))
    return [
        replace(i, carries=new.get(i.carries)) if isinstance(i, Source) and i.carries is not None else i for i in kept
    ]


def shrink(trace: Trace, fails: Callable[[Trace], bool]) -> Trace:
    """A small trace that still fails: leaves out instructions and rounds numbers as long as it
    does."""

    def attempt(instructions: list[Instruction]) -> bool:
        nonlocal trace
        try:
            smaller = Trace(instructions)
            if not fails(smaller):
                return False
        except ValueError:  # not a trace, or one that uses a released tensor
            return False
        trace = smaller
        return True

    size = len(trace.instructions)
    while size:
        at = 0
        while at < len(trace.instructions):
            if not attempt(without(trace.instructions, set(range(at, at + size)))):
                at += size
        size //= 2
    for at in range(len(trace.instructions)):
        for change in ({"scratch": 0}, {"replayable": True}, {"cost": 1000}, {"phase": "forward"}, {"bytes": 1024}):
            instruction = trace.instructions[at]
            if all(hasattr(instruction, name) for name in change):
                attempt([*trace.instructions[:at], replace(instruction, **change), *trace.instructions[at + 1 :]])
    return trace
