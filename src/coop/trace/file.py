"""Trace files: gzip'ed JSON lines. docs/trace-format.md describes them.

The first line is the header, each further line one instruction, the last one the number of instructions: a file that
was cut off is noticed. Reading and writing go line by line.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """Raises TraceError when the file holds no trace that this version can read, OSError when it cannot be opened."""
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
            if "instructions" in content:
                count = content["instructions"]
            else:
                instructions.append(_decode(content))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise TraceError(f"{path}, line {number}: not an instruction: {str(content)[:100]}") from error
    if count is None:
        raise TraceError(f"{path} is cut off after {len(instructions)} instructions")
    if count != len(instructions):
        raise TraceError(f"{path} should have {count} instructions, and has {len(instructions)}")
    try:
        return Trace(instructions, header.get("name", ""), header.get("device", ""), header.get("about", {}))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


def _lines(path: str | Path) -> Iterator[Any]:
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007  used in the message below
                yield json.loads(line)
    except EOFError:
        raise TraceError(f"{path} is cut off after line {number}") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        if number == 0:
            raise TraceError(f"{path} is not a trace: {error}") from None
        raise TraceError(f"{path} is damaged after line {number}: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise TraceError(f"{path}, line {number}: not JSON") from None


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
    if "op" in content:
        return Op(
            name=str(content["op"]),
            inputs=tuple(map(int, content["in"])),
            outputs=tuple(Output(*map(int, output)) for output in content["out"]),
            cost=int(content["cost"]),
            phase=content.get("phase", "forward"),
            writes=tuple(map(int, content.get("writes", ()))),
            scratch=int(content.get("scratch", 0)),
            replayable=not content.get("once", False),
        )
    if "source" in content:
        carries = content.get("carries")
        return Source(
            int(content["source"]),
            int(content["bytes"]),
            content.get("kind", ""),
            None if carries is None else int(carries),
        )
    if "hold" in content:
        return Hold(int(content["hold"]))
    return Release(int(content["release"]))
