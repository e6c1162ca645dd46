"""DTR operator logs: JSON lines, plain or gzip'ed, as the authors of Dynamic Tensor
Rematerialization published them.

Numbers are decimal strings, of bytes and nanoseconds; tensors have names. What a line means here:

    ANNOTATE   everything up to the first START is dropped; ops after BACKWARD are in the backward
               phase
    CONSTANT   a source; its MEMORY line follows
    CALL       an op; a MEMORY and an ALIAS line follow for each result. A view has no size of its
               own: what the line says is ignored
    MUTATE     an op with a new version of each argument that it writes to; the name moves to it,
               the old version is released
    COPY       one more name for a tensor: a hold
    COPY_FROM  the name DST moves to another tensor: a release and a hold
    RELEASE    a release; names that were never declared are ignored

A log cannot say everything that a trace can. Writing one loses: kinds of sources and what they
carry, scratch, which ops cannot run twice, and all phases but one switch to backward. An op that
writes to its inputs becomes a MUTATE if its results are just their new versions and the old ones
are released at once. Otherwise its new versions are fresh results, as they are in DTR's reading of
a MUTATE anyway.

Tensors that are held at the end come back in the order of the log's names; a name keeps its place
when it moves. If that is not the order in which `write` would name a trace's tensors, the trace
stores it as about["end_order"].
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coop.trace.content import MOST, Unreadable, is_whole, lines_of, parse
from coop.trace.trace import FRESH, Hold, Instruction, Op, Output, Release, Source, Trace, TraceError, storages_of

END_ORDER = "end_order"

_TEXT, _TEXTS, _NUMBER, _NUMBERS = "a name", "a list of names", "a whole number", "a list of indices"
_FIELDS = {
    "ANNOTATE": {"ANNOTATION": _TEXT},
    "CONSTANT": {"NAME": _TEXT},
    "MEMORY": {"NAME": _TEXT, "MEMORY": _NUMBER},
    "ALIAS": {"NAME": _TEXT, "ALIAS": _NUMBER},
    "CALL": {"NAME": _TEXT, "ARGS": _TEXTS, "RESULT": _TEXTS, "TIME": _NUMBER},
    "MUTATE": {"NAME": _TEXT, "ARGS": _TEXTS, "MUTATE": _NUMBERS, "TIME": _NUMBER},
    "COPY": {"DST": _TEXT, "SRC": _TEXT},
    "COPY_FROM": {"DST": _TEXT, "SRC": _TEXT},
    "RELEASE": {"NAME": _TEXT},
}


def read(path: str | Path) -> Trace:
    """Raises TraceError, with the line's number, if the file holds no DTR log, and OSError if it
    cannot be opened."""
    lines = list(_lines(path))
    starts = (at for at, (_, line) in enumerate(lines, start=1) if line.get("ANNOTATION") == "START")
    reader = _Reader(path, lines[next(starts, 0) :])
    instructions, name = reader.read(), Path(path).name.removesuffix(".gz").removesuffix(".log")
    try:
        trace = Trace(instructions, name)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    order = reader.end_order()
    if order != end_order(trace):
        trace.about[END_ORDER] = order
    return trace


def write(trace: Trace, path: str | Path) -> None:
    """Gzip'ed if the file's name ends in .gz."""
    lines = (json.dumps(line) for line in _Writer(trace).lines())
    text = "".join(f"{line}\n" for line in lines).encode()
    Path(path).write_bytes(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def end_order(trace: Trace) -> list[int]:
    """The tensors held at the end, in the order in which they must become resident."""
    names = _Names()
    for instruction, in_place in _grouped(trace.instructions):
        names.follow(instruction, in_place)
    order = names.order()
    given = trace.about.get(END_ORDER)
    if given is None:
        return order
    if not isinstance(given, list) or not all(map(is_whole, given)) or sorted(given) != sorted(order):
        raise TraceError(f"about[{END_ORDER!r}] should name the {len(order)} tensors held at the end, each once")
    return list(given)


def _lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines with their numbers. Each has a known instruction with its fields, and numbers are
    ints."""
    number = 0
    try:
        for number, text in lines_of(path):
            if text.strip():
                yield number, _fields(_object(text))
    except _Bad as bad:
        raise TraceError(f"{path}, line {number}: {bad}") from None
    except Unreadable as error:
        raise TraceError(f"{path} {error}") from None


def _object(text: bytes) -> Any:
    try:
        return parse(text)
    except Unreadable as error:
        raise _Bad(str(error)) from None


class _Bad(Exception):
    """What is wrong with a line, as text."""


def _fields(line: Any) -> dict[str, Any]:
    kind = line.get("INSTRUCTION") if isinstance(line, dict) else None
    if not isinstance(kind, str):
        raise _Bad("no INSTRUCTION")
    if kind not in _FIELDS:
        raise _Bad(f"unknown instruction {kind!r}; the known ones are {', '.join(_FIELDS)}")
    fields: dict[str, Any] = {"INSTRUCTION": kind}
    for field, sort in _FIELDS[kind].items():
        if field not in line:
            raise _Bad(f"{kind} has no {field}")
        try:
            fields[field] = _value(line[field], sort, at_least=-1 if field == "ALIAS" else 0)
        except ValueError:
            raise _Bad(f"{kind} has {field} {str(line[field])[:60]!r}, which is not {sort}") from None
    return fields


def _value(value: Any, sort: str, at_least: int) -> Any:
    if sort in (_TEXTS, _NUMBERS):
        if not isinstance(value, list):
            raise ValueError
        return [_value(v, _TEXT if sort == _TEXTS else _NUMBER, at_least) for v in value]
    if sort == _TEXT:
        if not isinstance(value, str):
            raise ValueError
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    number = int(value)
    if not at_least <= number <= MOST:
        raise ValueError
    return number


class _Reader:
    def __init__(self, path: str | Path, lines: Sequence[tuple[int, dict[str, Any]]]) -> None:
        self.path = path
        self.lines = iter(lines)
        self.instructions: list[Instruction] = []
        self.names: dict[str, int] = {}
        self.references: list[int] = []
        self.phase = "forward"

    def read(self) -> list[Instruction]:
        for number, line in self.lines:
            try:
                self.instruction(line)
            except _Bad as bad:
                raise TraceError(f"{self.path}, line {number}: {bad}") from None
        return self.instructions

    def end_order(self) -> list[int]:
        # A name that was released still has its place, if another one holds the tensor.
        return list(dict.fromkeys(tensor for tensor in self.names.values() if self.references[tensor]))

    def instruction(self, line: dict[str, Any]) -> None:
        match line["INSTRUCTION"]:
            case "ANNOTATE":
                if line["ANNOTATION"] == "BACKWARD":
                    self.phase = "backward"
            case "CONSTANT":
                size = self.follower("MEMORY", line["NAME"])
                self.instructions.append(Source(self.declare(line["NAME"]), size))
            case "CALL":
                self.call(line)
            case "MUTATE":
                self.mutate(line)
            case "COPY":
                tensor = self.held(line["SRC"])
                self.declare(line["DST"], tensor)
                self.instructions.append(Hold(tensor))
            case "COPY_FROM":
                old, new = self.held(line["DST"]), self.held(line["SRC"])
                self.names[line["DST"]] = new
                if old != new:
                    self.release(old)
                    self.references[new] += 1
                    self.instructions.append(Hold(new))
            case "RELEASE":
                if line["NAME"] in self.names:
                    self.release(self.held(line["NAME"]))
            case kind:
                raise _Bad(f"{kind} of {line['NAME']}, which does not follow a CONSTANT or CALL of it")

    def call(self, line: dict[str, Any]) -> None:
        inputs = tuple(map(self.known, line["ARGS"]))
        outputs = []
        for name in line["RESULT"]:
            size = self.follower("MEMORY", name)
            alias = self.follower("ALIAS", name)
            if alias >= len(inputs):
                raise _Bad(f"{name} is a view of argument {alias}, and there are {len(inputs)}")
            outputs.append(Output(self.declare(name), 0 if alias != FRESH else size, alias))
        self.instructions.append(Op(line["NAME"], inputs, tuple(outputs), line["TIME"], self.phase))

    def mutate(self, line: dict[str, Any]) -> None:
        inputs = tuple(map(self.known, line["ARGS"]))
        writes = tuple(line["MUTATE"])
        if any(index >= len(inputs) for index in writes):
            raise _Bad(f"it writes to argument {max(writes)}, and there are {len(inputs)}")
        outputs = tuple(Output(len(self.references) + i, 0, index) for i, index in enumerate(writes))
        self.references += [1] * len(outputs)
        self.instructions.append(Op(line["NAME"], inputs, outputs, line["TIME"], self.phase, writes))
        for output in outputs:
            name = line["ARGS"][output.alias]
            old = self.held(name)
            self.names[name] = output.tensor
            self.release(old)

    def follower(self, kind: str, name: str) -> int:
        """The number on the next line, which must be of that kind and for that name."""
        number, line = next(self.lines, (0, None))
        if line is None or line["INSTRUCTION"] != kind or line["NAME"] != name:
            found = "the log ends" if line is None else f"line {number} is {line['INSTRUCTION']} {line.get('NAME', '')}"
            raise _Bad(f"the {kind} of {name} is missing: {found.rstrip()}")
        return int(line[kind])

    def declare(self, name: str, tensor: int | None = None) -> int:
        if name in self.names:
            raise _Bad(f"the name {name} is taken already")
        if tensor is None:
            tensor = len(self.references)
            self.references.append(0)
        self.references[tensor] += 1
        self.names[name] = tensor
        return tensor

    def known(self, name: str) -> int:
        if name not in self.names:
            raise _Bad(f"there is no tensor {name}")
        return self.names[name]

    def held(self, name: str) -> int:
        tensor = self.known(name)
        if not self.references[tensor]:
            raise _Bad(f"{name} has been released already")
        return tensor

    def release(self, tensor: int) -> None:
        self.references[tensor] -= 1
        self.instructions.append(Release(tensor))


def _grouped(instructions: Sequence[Instruction]) -> Iterator[tuple[Instruction, bool]]:
    """The instructions, and whether each is a MUTATE. Releases that are part of a MUTATE are left
    out."""
    at = 0
    while at < len(instructions):
        instruction = instructions[at]
        at += 1
        if isinstance(instruction, Op) and instruction.writes:
            old = [instruction.inputs[index] for index in instruction.writes]
            in_place = (
                tuple(output.alias for output in instruction.outputs) == instruction.writes
                and len(set(old)) == len(old)
                and instructions[at : at + len(old)] == [Release(tensor) for tensor in old]
            )
            yield instruction, in_place
            at += len(old) if in_place else 0
        else:
            yield instruction, False


class _Names:
    """The names that a log gives to tensors, numbered: one for each reference. The latest is
    released first."""

    def __init__(self) -> None:
        self.tensor: dict[int, int] = {}
        """The tensor of each name, in the order of declaration. Released names stay."""
        self.held: list[list[int]] = []
        """For each tensor, its names that are not released."""
        self.last: list[int] = []
        """For each tensor, a name that means it, as long as there is one."""

    def declare(self, tensor: int) -> int:
        name = len(self.tensor)
        self.bind(name, tensor)
        return name

    def bind(self, name: int, tensor: int) -> None:
        self.tensor[name] = tensor
        if tensor == len(self.held):
            self.held.append([])
            self.last.append(name)
        self.held[tensor].append(name)

    def release(self, tensor: int) -> int:
        self.last[tensor] = self.held[tensor].pop()
        return self.last[tensor]

    def follow(self, instruction: Instruction, in_place: bool) -> None:
        match instruction:
            case Source(tensor) | Hold(tensor):
                self.declare(tensor)
            case Release(tensor):
                self.release(tensor)
            case Op(inputs=inputs, outputs=outputs) if in_place:
                for output in outputs:
                    old = inputs[output.alias]
                    self.bind(self.held[old].pop(), output.tensor)
            case Op(outputs=outputs):
                for output in outputs:
                    self.declare(output.tensor)

    def order(self) -> list[int]:
        return list(dict.fromkeys(tensor for tensor in self.tensor.values() if self.held[tensor]))

    def __call__(self, tensor: int) -> str:
        name = self.held[tensor][-1] if self.held[tensor] else self.last[tensor]
        if self.tensor[name] != tensor:
            raise TraceError(f"tensor {tensor} is used after it was overwritten: a DTR log has no name for it")
        return f"x{name}"


class _Writer:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names = _Names()
        storage, sizes = storages_of(trace.instructions)
        self.sizes = [str(sizes[number]) for number in storage]

    def lines(self) -> Iterator[dict[str, Any]]:
        backward = False
        yield {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}
        for instruction, in_place in _grouped(self.trace.instructions):
            if isinstance(instruction, Op) and instruction.phase != "forward" and not backward:
                backward = True
                yield {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}
            yield from self.instruction(instruction, in_place)
        yield from self.reorder(end_order(self.trace))

    def instruction(self, instruction: Instruction, in_place: bool) -> Iterator[dict[str, Any]]:
        names = self.names
        match instruction:
            case Source(tensor, size):
                names.follow(instruction, in_place)
                yield {"INSTRUCTION": "CONSTANT", "NAME": names(tensor)}
                yield {"INSTRUCTION": "MEMORY", "NAME": names(tensor), "MEMORY": str(size)}
            case Op(name, inputs, outputs, cost):
                line = {"NAME": name, "ARGS": [names(tensor) for tensor in inputs], "TIME": str(cost)}
                names.follow(instruction, in_place)
                if in_place:
                    yield {"INSTRUCTION": "MUTATE"} | line | {"MUTATE": list(instruction.writes)}
                    return
                yield {"INSTRUCTION": "CALL"} | line | {"RESULT": [names(o.tensor) for o in outputs]}
                for output in outputs:
                    alias = FRESH if output.alias in instruction.writes else output.alias
                    name = names(output.tensor)
                    yield {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": self.sizes[output.tensor]}
                    yield {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": str(alias)}
            case Hold(tensor):
                source = names(tensor)
                names.follow(instruction, in_place)
                yield {"INSTRUCTION": "COPY", "DST": names(tensor), "SRC": source}
            case Release(tensor):
                yield {"INSTRUCTION": "RELEASE", "NAME": names(tensor)}
                names.follow(instruction, in_place)

    def reorder(self, order: list[int]) -> Iterator[dict[str, Any]]:
        """Moves the first names to the tensors in that order. Each tensor keeps its number of
        references."""
        names = self.names
        if names.order() == order:
            return
        first = [(name, tensor) for name, tensor in names.tensor.items() if names.held[tensor]][: len(order)]
        taken = Counter(tensor for _, tensor in first)
        copies = {tensor: max(1, taken[tensor]) for tensor in order}
        for tensor, count in copies.items():
            for _ in range(count):
                yield from self.instruction(Hold(tensor), False)
        for (name, old), tensor in zip(first, order, strict=True):
            if old != tensor:
                yield {"INSTRUCTION": "COPY_FROM", "DST": f"x{name}", "SRC": names(tensor)}
        for tensor, count in copies.items():
            for _ in range(count + 1 - taken[tensor]):
                yield {"INSTRUCTION": "RELEASE", "NAME": names(tensor)}
