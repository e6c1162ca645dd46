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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coop.plan.graph import NONE
from coop.plan.plan import KINDS, STATUSES, Line, Plan, PlanError, Step
from coop.plan.sound import refuse_unless_figures_agree, refuse_unless_sound
from coop.trace.content import Unreadable, is_whole, lines_of, parse

FORMAT = "coop-plan"
VERSION = 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "graph": _is_text,
    "budget": is_whole,
    "planner": _is_text,
    "duration": is_whole,
    "base_duration": is_whole,
    "peak": is_whole,
    "bound": is_whole,
    "status": lambda value: value in STATUSES,
    "seconds": lambda value: is_whole(value) or (isinstance(value, float) and 0 <= value < 1e18),
    "about": lambda value: isinstance(value, dict),
}


def write(plan: Plan, path: str | Path) -> None:
    header = {"format": FORMAT, "version": VERSION} | {name: getattr(plan, name) for name in _FIELDS}
    lines = [header, *plan.program, *plan.steps, {"nodes": len(plan.program), "steps": len(plan.steps)}]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    Path(path).write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: str | Path) -> Plan:
    """Raises PlanError when the file holds no plan that this version can follow, OSError when it cannot be opened.

    Whether the plan is legal for a step is for `check` to say, which needs the graph.
    """
    number, lines = 0, []
    try:
        for number, line in lines_of(path):  # noqa: B007  used in the message below
            lines.append(parse(line))
    except Unreadable as error:
        where = f"line {number} is " if str(error).startswith("not") else "it "
        raise PlanError(f"{path} is not a plan: {where}{error}") from None
    header = lines[0] if lines else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise PlanError(f"{path} is not a plan: it does not begin with a header of format {FORMAT!r}")
    if not is_whole(header.get("version"), VERSION, VERSION):
        newer = is_whole(header.get("version"), VERSION + 1)
        tip = " Tip: read it with a newer coop." if newer else ""
        raise PlanError(
            f"{path} is a plan of version {repr(header.get('version'))[:100]}, and this coop reads version {VERSION}.{tip}"
        )
    for name, good in _FIELDS.items():
        if not good(header.get(name)):
            raise PlanError(f"{path} is damaged: its header says {repr(header.get(name))[:100]} for {name}")
    end = lines[-1]
    counts: list[Any] = [end.get("nodes"), end.get("steps")] if isinstance(end, dict) else []
    if not counts or not all(map(is_whole, counts)) or sum(counts) != len(lines) - 2:
        raise PlanError(f"{path} is cut off: it has {len(lines) - 1} of its lines")
    nodes: int = counts[0]
    program = []
    for number, line in enumerate(lines[1 : 1 + nodes], start=2):
        match line:
            case [str(name), list(outputs), scratch] if is_whole(scratch) and all(map(_is_output, outputs)):
                program.append(Line(name, tuple(tuple(output) for output in outputs), scratch))
            case _:
                raise PlanError(f"{path}, line {number}: not a node: {str(line)[:100]}")
    steps = []
    for number, line in enumerate(lines[1 + nodes : -1], start=2 + nodes):
        match line:
            case [str(kind), what] if kind in KINDS and is_whole(what):
                steps.append(Step(kind, what))
            case _:
                raise PlanError(f"{path}, line {number}: not a step: {str(line)[:100]}")
    plan = Plan(tuple(steps), **{name: header[name] for name in _FIELDS}, program=tuple(program))
    try:
        refuse_unless_sound(plan)
        refuse_unless_figures_agree(plan)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
    return plan


def _is_output(thing: Any) -> bool:
    match thing:
        case [value, size, over]:
            return is_whole(value) and is_whole(size) and is_whole(over, NONE)
    return False
