"""Trace files: gzip'ed JSON lines. docs/trace-format.md describes them.

The first line is the header, each further line one instruction, and the last one the number of
instructions, so that a truncated file is detected. Reading and writing go line by line.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coop.trace.content import Unreadable, is_whole, lines_of, parse
from coop.trace.trace import Hold, Instruction, Op, Output, Release, Source, Trace, TraceError

FORMAT = "coop-trace"
VERSION = 1


def write(trace: Trace, path: str | Path) -> None:
    # No name and no time in the gzip header: the same trace gives the same file.
    with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:

        def line(content: Any) -> None:
            file.write(json.dumps(content, separators=(",", ":")).encode() + b"\n")

        header = {"format": FORMAT, "version": VERSION, "name": trace.name, "device": trace.device}
        line(header | {"about": trace.about})
        for instruction in trace.instructions:
            line(_encode(instruction))
        line({"instructions": len(trace.instructions)})


def read(path: str | Path) -> Trace:
    """Raises TraceError if the file holds no trace that this version can read, and OSError if it
    cannot be opened."""
    lines = _lines(path)
    header = next(lines, None)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TraceError(f"{path} is not a trace: it does not begin with a header of format {FORMAT!r}")
    version = header.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        tip = " Tip: read it with a newer coop." if newer else ""
        raise TraceError(f"{path} is a trace of version {version!r}, and this coop reads version {VERSION}.{tip}")
    instructions: list[Instruction] = []
    count = None
    for number, content in enumerate(lines, start=2):
        if count is not None:
            raise TraceError(f"{path}, line {number}: the trace has ended already")
        try:
            if not isinstance(content, dict):
                raise TypeError
            if "instructions" in content:
                count = content["instructions"]
            else:
                instructions.append(_decode(content))
        except (KeyError, TypeError) as error:
            raise TraceError(f"{path}, line {number}: not an instruction: {str(content)[:100]}") from error
    if count is None:
        raise TraceError(f"{path} is cut off after {len(instructions)} instructions")
    if not is_whole(count) or count != len(instructions):
        raise TraceError(f"{path} should have {str(count)[:100]} instructions, and has {len(instructions)}")
    try:
        return Trace(instructions, header.get("name", ""), header.get("device", ""), header.get("about", {}))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


def _lines(path: str | Path) -> Iterator[Any]:
    number = 0
    try:
        for number, line in lines_of(path):  # noqa: B007  used in the messages below
            yield parse(line)
    except Unreadable as error:
        if str(error).startswith("not"):
            raise TraceError(f"{path}, line {number}: {error}") from None
        raise TraceError(f"{path} {error}" if number else f"{path} is not a trace: it {error}") from None


def _encode(instruction: Instruction) -> dict[str, Any]:
    match instruction:
        case Source(tensor, size, kind, carries):
            content: dict[str, Any] = {"source": tensor, "bytes": size}
            content |= {} if carries is None else {"carries": carries}
            optional: dict[str, Any] = {"kind": kind}
        case Op():
            content = {"op": instruction.name, "in": instruction.inputs, "cost": instruction.cost}
            content["out"] = [
                [o.tensor, o.bytes] if o.alias < 0 else [o.tensor, o.bytes, o.alias] for o in instruction.outputs
            ]
            optional = {"phase": "" if instruction.phase == "forward" else instruction.phase}
            optional |= {"writes": instruction.writes, "scratch": instruction.scratch}
            optional["once"] = not instruction.replayable
        case Hold(tensor):
            return {"hold": tensor}
        case Release(tensor):
            return {"release": tensor}
    return content | {key: value for key, value in optional.items() if value}


def _decode(content: dict[str, Any]) -> Instruction:
    """Raises KeyError and TypeError. Whether the instruction is valid at its place is checked by
    the trace."""
    if "op" in content:
        return Op(
            name=_text(content["op"]),
            inputs=_numbers(content["in"]),
            outputs=tuple(Output(*_numbers(output, 2, 3)) for output in content["out"]),
            cost=_number(content["cost"]),
            phase=_text(content.get("phase", "forward")),
            writes=_numbers(content.get("writes", [])),
            scratch=_number(content.get("scratch", 0)),
            replayable=not _flag(content.get("once", False)),
        )
    if "source" in content:
        carries = content.get("carries")
        return Source(
            _number(content["source"]),
            _number(content["bytes"]),
            _text(content.get("kind", "")),
            None if carries is None else _number(carries),
        )
    if "hold" in content:
        return Hold(_number(content["hold"]))
    return Release(_number(content["release"]))


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _numbers(value: Any, least: int = 0, most: int | None = None) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) < least or (most is not None and len(value) > most):
        raise TypeError
    return tuple(map(_number, value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value
