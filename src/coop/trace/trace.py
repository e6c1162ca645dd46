"""The trace: what one step did, as the simulator and the planners see it.

A trace is a list of instructions over tensors, numbered in the order in which they appear.

    Source(tensor, bytes)     a tensor that nothing in the trace computes: a parameter, a moment,
                              a batch
    Op(...)                   one leaf operator call
    Hold(tensor)              the program takes one more reference
    Release(tensor)           the program gives one back

Every tensor begins with one reference. A tensor is a view of a storage, the unit of eviction. A
source and a fresh output have a storage of their own; a view, and the new version of an input that
an op writes to, share that of their input. A storage is held while one of its tensors is.

Times are whole nanoseconds and sizes whole bytes, so that a trace survives a file and sums do not
depend on their order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from coop.trace.content import MOST, BadContent, is_rate, is_whole

PHASES = ("forward", "backward", "optimizer")
KINDS = ("parameter", "buffer", "state", "gradient", "data", "")
FRESH = -1


class TraceError(BadContent):
    """A trace, or a file that should hold one, is not right. The text says where."""


@dataclass(slots=True, frozen=True)
class Source:
    tensor: int
    bytes: int
    kind: str = ""
    carries: int | None = None
    """In the following step, this source is what that tensor was at the end of this one."""


@dataclass(slots=True, frozen=True)
class Output:
    tensor: int
    bytes: int
    """Bytes of its storage, if fresh; 0 for views and new versions."""
    alias: int = FRESH
    """The index of the input whose storage it shares. If the op writes to that input, this is its
    new version."""


@dataclass(slots=True, frozen=True)
class Op:
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]
    cost: int = 0
    """Nanoseconds."""
    phase: str = "forward"
    writes: tuple[int, ...] = ()
    """Indices of the inputs that it overwrites. Each has a new version among the outputs."""
    scratch: int = 0
    """Bytes that it needs while it runs, besides its outputs."""
    replayable: bool = True
    """It can be run again, to the same bits."""


@dataclass(slots=True, frozen=True)
class Hold:
    tensor: int


@dataclass(slots=True, frozen=True)
class Release:
    tensor: int


Instruction = Source | Op | Hold | Release


ALIGNMENT = 64
LARGEST_ALIGNMENT = 1 << 30


@dataclass(slots=True)
class Trace:
    instructions: list[Instruction] = field(default_factory=list)
    name: str = ""
    device: str = ""
    """Where its costs come from: measured on a machine, or a device model."""
    about: dict[str, Any] = field(default_factory=dict)
    """Anything else that the recorder knows: batch, versions, options. Plain JSON."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.device, str):
            raise TraceError(
                f"its name and its device must be texts, not {_short(self.name)} and {_short(self.device)}"
            )
        if not isinstance(self.about, dict):
            raise TraceError(f"what a trace is about should be a table, not {_short(self.about)}")
        if not is_alignment(self.alignment):
            raise TraceError(f"its alignment must be a power of two up to 2**30, not {_short(self.alignment)}")
        bandwidth = self.copy_bandwidth
        if bandwidth is not None and not is_rate(bandwidth):
            raise TraceError(f"its copy_bandwidth must be a number of bytes per second, not {_short(bandwidth)}")
        link = self.about.get("swap_bandwidth")
        if link is not None and not (_pair(link) and all(map(is_rate, link))):
            raise TraceError(
                f"its swap_bandwidth must be two numbers of bytes per second, in and out, not {_short(link)}"
            )
        check(self.instructions)

    @property
    def copy_bandwidth(self) -> float | None:
        """Bytes per second for copies inside the device's memory, if known."""
        found: float | None = self.about.get("copy_bandwidth")
        return found

    @property
    def swap_bandwidth(self) -> tuple[float, float] | None:
        """Bytes per second to swap into the device's memory and out of it, if known."""
        found = self.about.get("swap_bandwidth")
        return (float(found[0]), float(found[1])) if found else None

    @property
    def alignment(self) -> int:
        """The alignment of blocks on the trace's device."""
        found: int = self.about.get("alignment", ALIGNMENT)
        return found

    @property
    def ops(self) -> Iterator[Op]:
        return (i for i in self.instructions if isinstance(i, Op))

    @property
    def cost(self) -> int:
        """Nanoseconds of all ops, each counted once."""
        return sum(op.cost for op in self.ops)


def is_alignment(value: Any) -> bool:
    return is_whole(value, 1, LARGEST_ALIGNMENT) and not value & (value - 1)


def _short(value: Any) -> str:
    """The value for a message, shortened: a file may say anything."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def storages_of(instructions: Iterable[Instruction]) -> tuple[list[int], list[int]]:
    """For each tensor the number of its storage, and for each storage its bytes."""
    storage: list[int] = []
    sizes: list[int] = []
    for instruction in instructions:
        if isinstance(instruction, Source):
            storage.append(len(sizes))
            sizes.append(instruction.bytes)
        elif isinstance(instruction, Op):
            for output in instruction.outputs:
                if output.alias == FRESH:
                    storage.append(len(sizes))
                    sizes.append(output.bytes)
                else:
                    storage.append(storage[instruction.inputs[output.alias]])
    return storage, sizes


def check(instructions: Sequence[Instruction]) -> None:
    """Raises TraceError, with the instruction's number, if the trace is not valid."""
    references: list[int] = []
    sizes = times = 0

    def refuse(number: int, why: str) -> TraceError:
        return TraceError(f"instruction {number} ({_short(instructions[number])}): {why}")

    def born(number: int, tensor: int, size: int) -> None:
        if tensor != len(references):
            raise refuse(number, f"the next tensor is {len(references)}, not {tensor}")
        if not is_whole(size):
            raise refuse(number, f"{size} is not a size in bytes, or too large: more than 2**60")
        references.append(1)
        add(number, size, 0)

    def add(number: int, size: int, time: int) -> None:
        nonlocal sizes, times
        sizes, times = sizes + size, times + time
        if max(sizes, times) > MOST:
            raise refuse(number, "all sizes, or all times, up to here are more than 2**60: too large to be added up")

    def known(number: int, tensor: int) -> None:
        if not 0 <= tensor < len(references):
            raise refuse(number, f"there is no tensor {tensor} yet")

    for number, instruction in enumerate(instructions):
        if isinstance(instruction, Source):
            born(number, instruction.tensor, instruction.bytes)
            if instruction.kind not in KINDS:
                raise refuse(number, f"unknown kind; the known ones are {', '.join(filter(None, KINDS))}")
        elif isinstance(instruction, Op):
            for tensor in instruction.inputs:
                known(number, tensor)
            if instruction.phase not in PHASES:
                raise refuse(number, f"unknown phase; the known ones are {', '.join(PHASES)}")
            if instruction.cost < 0 or instruction.scratch < 0:
                raise refuse(number, "cost and scratch cannot be negative")
            add(number, instruction.scratch, instruction.cost)
            arity = len(instruction.inputs)
            renewed = set()
            for output in instruction.outputs:
                if output.alias != FRESH and not 0 <= output.alias < arity:
                    raise refuse(number, f"there is no input {output.alias} to share a storage with")
                if output.alias != FRESH and output.bytes:
                    raise refuse(number, "a view has no bytes of its own")
                renewed.add(output.alias)
                born(number, output.tensor, output.bytes)
            for index in instruction.writes:
                if not 0 <= index < arity or index not in renewed:
                    raise refuse(number, f"input {index} is overwritten, but has no new version among the outputs")
        elif isinstance(instruction, Hold | Release):
            known(number, instruction.tensor)
            if not references[instruction.tensor]:
                raise refuse(number, "nobody holds that tensor any more")
            references[instruction.tensor] += 1 if isinstance(instruction, Hold) else -1
        else:
            raise TraceError(f"instruction {number} is a {type(instruction).__name__}")
    for number, instruction in enumerate(instructions):
        if isinstance(instruction, Source) and instruction.carries is not None:
            known(number, instruction.carries)
            if not references[instruction.carries]:
                raise refuse(number, f"tensor {instruction.carries} is not held at the end, and cannot be carried over")
