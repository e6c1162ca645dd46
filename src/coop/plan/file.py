"""Plan files: gzip'ed JSON lines. The first line is the header; then one line for each node of the step, with its op and the
values that it makes (number, bytes, and the value whose bytes it takes over or -1) and its scratch; then one for each step of the plan; the last
says how many of both there are.

{"format": "coop-plan", "version": 1, "graph": "...", "budget": ..., "planner": ..., ...}
["aten::relu", [[18, 4096, -1]], 0]
...
["compute", 17]
["free", 12]
...
{"nodes": 393, "steps": 1024}
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from coop.plan.plan import KINDS, Line, Plan, PlanError, Step

FORMAT = "coop-plan"
VERSION = 1
_FIELDS: dict[str, Any] = {
    "graph": str,
    "budget": int,
    "planner": str,
    "duration": int,
    "base_duration": int,
    "peak": int,
    "bound": int,
    "status": str,
    "seconds": (int, float),
    "about": dict,
}


def write(plan: Plan, path: str | Path) -> None:
    header = {"format": FORMAT, "version": VERSION} | {name: getattr(plan, name) for name in _FIELDS}
    lines = [header, *plan.program, *plan.steps, {"nodes": len(plan.program), "steps": len(plan.steps)}]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    Path(path).write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: str | Path) -> Plan:
    """Raises PlanError when the file holds no plan that this version can read, OSError when it cannot be opened.

    Whether the plan is legal is for `check` to say, which needs the graph.
    """
    try:
        lines = [json.loads(line) for line in gzip.decompress(Path(path).read_bytes()).splitlines()]
    except EOFError:
        raise PlanError(f"{path} is cut off") from None
    except (gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise PlanError(f"{path} is not a plan: {error}") from None
    header = lines[0] if lines else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise PlanError(f"{path} is not a plan: it does not begin with a header of format {FORMAT!r}")
    if header.get("version") != VERSION:
        newer = isinstance(header.get("version"), int) and header["version"] > VERSION
        tip = " Tip: read it with a newer coop." if newer else ""
        raise PlanError(
            f"{path} is a plan of version {header.get('version')!r}, and this coop reads version {VERSION}.{tip}"
        )
    for name, kind in _FIELDS.items():
        if not isinstance(header.get(name), kind):
            raise PlanError(f"{path} is damaged: its header says {header.get(name)!r} for {name}")
    end = lines[-1]
    nodes = end.get("nodes") if isinstance(end, dict) else None
    if not isinstance(nodes, int) or end.get("steps") != len(lines) - 2 - nodes or nodes < 0:
        raise PlanError(f"{path} is cut off: it has {len(lines) - 1} of its lines")
    program = []
    for number, line in enumerate(lines[1 : 1 + nodes], start=2):
        match line:
            case [str(name), list(outputs), int(scratch)] if all(_is_output(output) for output in outputs):
                program.append(Line(name, tuple(tuple(output) for output in outputs), scratch))
            case _:
                raise PlanError(f"{path}, line {number}: not a node: {str(line)[:100]}")
    steps = []
    for number, line in enumerate(lines[1 + nodes : -1], start=2 + nodes):
        match line:
            case [str(kind), int(what)] if kind in KINDS:
                steps.append(Step(kind, what))
            case _:
                raise PlanError(f"{path}, line {number}: not a step: {str(line)[:100]}")
    return Plan(tuple(steps), **{name: header[name] for name in _FIELDS}, program=tuple(program))


def _is_output(thing: Any) -> bool:
    return isinstance(thing, list) and len(thing) == 3 and all(isinstance(number, int) for number in thing)
