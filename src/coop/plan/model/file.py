"""Plan files: gzip'ed JSON lines.

1. The header.
2. A line for each node of the step: its op, the values that it makes (number, bytes, and the value
   whose bytes it takes over or -1), and its scratch.
3. A line for each step of the plan.
4. A line for each address: the step at which the interval begins, its value then (-1: scratch), and
   the offset. A plan may have none, and files of version 1 have none.
5. How many there are of each.

{"format": "coop-plan", "version": 2, "graph": "...", "budget": ..., "planner": ..., ...}
["aten::relu", [[18, 4096, -1]], 0]
...
["compute", 17]
["free", 12]
...
[0, 18, 65536]
...
{"nodes": 393, "steps": 1024, "addresses": 402}

The end and the bytes of each interval follow from the steps. A plan that is read is checked
(check.py), as far as that can be done without the graph.
"""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from coop.plan.model.addresses import Addresses, Interval
from coop.plan.model.check import check_addresses, check_figures, check_followable
from coop.plan.model.graph import NONE
from coop.plan.model.plan import KINDS, STATUSES, Line, Plan, PlanError, Step
from coop.plan.model.timeline import timeline_of
from coop.trace.content import Unreadable, is_whole, lines_of, parse

_T = TypeVar("_T")
FORMAT = "coop-plan"
VERSION = 2
OLDEST = 1
"""The first version that is still read. It has no addresses."""


def _is_text(value: Any) -> bool:
    """JSON can hold halves of surrogate pairs. They are not text, and the engine refuses them."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


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
    counts = {"nodes": len(plan.program), "steps": len(plan.steps)}
    placed: list[tuple[int, int, int]] = []
    if plan.addresses is not None:
        placed = [(interval.begin, interval.first, interval.offset) for interval in plan.addresses.intervals]
        counts["addresses"] = len(placed)
    lines = [header, *plan.program, *plan.steps, *placed, counts]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    Path(path).write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: str | Path) -> Plan:
    """Raises PlanError when the file holds no plan that this version can follow, OSError when it
    cannot be opened.

    This does not say whether the plan is legal for a step: `check` decides this, and needs the
    graph.
    """
    lines = _lines(path)
    header = _header(path, lines)
    end = lines[-1]
    counts: list[Any] = [end.get("nodes"), end.get("steps"), end.get("addresses", 0)] if isinstance(end, dict) else []
    if not counts or not all(map(is_whole, counts)) or sum(counts) != len(lines) - 2:
        raise PlanError(f"{path} is cut off: it has {len(lines) - 1} of its lines")
    nodes, steps = 1 + counts[0], 1 + counts[0] + counts[1]
    """The numbers of the lines after the last node, and after the last step."""
    plan = Plan(
        tuple(_parsed(path, lines, range(nodes, steps), _step, "a step")),
        **{name: header[name] for name in _FIELDS},
        program=tuple(_parsed(path, lines, range(1, nodes), _node, "a node")),
    )
    places = _parsed(path, lines, range(steps, len(lines) - 1), _place, "an address")
    try:
        check_followable(plan)
        check_figures(plan)
        if "addresses" in end:
            plan = replace(plan, addresses=_addresses(plan, places))
            check_addresses(plan)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
    return plan


def _lines(path: str | Path) -> list[Any]:
    number, lines = 0, []
    try:
        for number, line in lines_of(path):  # noqa: B007  used in the message below
            lines.append(parse(line))
    except Unreadable as error:
        where = f"line {number} is " if str(error).startswith("not") else "it "
        raise PlanError(f"{path} is not a plan: {where}{error}") from None
    return lines


def _header(path: str | Path, lines: list[Any]) -> dict[str, Any]:
    header = lines[0] if lines else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise PlanError(f"{path} is not a plan: it does not begin with a header of format {FORMAT!r}")
    if not is_whole(header.get("version"), OLDEST, VERSION):
        newer = is_whole(header.get("version"), VERSION + 1)
        tip = " Tip: read it with a newer coop." if newer else ""
        raise PlanError(
            f"{path} is a plan of version {repr(header.get('version'))[:100]}, and this coop reads versions {OLDEST} to "
            f"{VERSION}.{tip}"
        )
    for name, good in _FIELDS.items():
        if not good(header.get(name)):
            raise PlanError(f"{path} is damaged: its header says {repr(header.get(name))[:100]} for {name}")
    return header


def _parsed(
    path: str | Path, lines: list[Any], numbers: range, parsed: Callable[[Any], _T | None], what: str
) -> list[_T]:
    found = []
    for number in numbers:
        thing = parsed(lines[number])
        if thing is None:
            raise PlanError(f"{path}, line {number + 1}: not {what}: {str(lines[number])[:100]}")
        found.append(thing)
    return found


def _node(line: Any) -> Line | None:
    match line:
        case [name, list(outputs), scratch] if _is_text(name) and is_whole(scratch) and all(map(_is_output, outputs)):
            return Line(name, tuple(tuple(output) for output in outputs), scratch)
    return None


def _is_output(thing: Any) -> bool:
    match thing:
        case [value, size, over]:
            return is_whole(value) and is_whole(size) and is_whole(over, NONE)
    return False


def _step(line: Any) -> Step | None:
    match line:
        case [str(kind), what] if kind in KINDS and is_whole(what):
            return Step(kind, what)
    return None


def _place(line: Any) -> tuple[int, int, int] | None:
    """Of an interval: the step at which it begins, the value that it is then, and the offset."""
    match line:
        case [begin, value, offset] if is_whole(begin) and is_whole(value, NONE) and is_whole(offset):
            return begin, value, offset
    return None


def _addresses(plan: Plan, places: Sequence[tuple[int, int, int]]) -> Addresses:
    """The addresses as the file has them. For a value that is never in memory, the interval is
    empty, and `check_addresses` refuses it."""
    stays = {(stay.begin, stay.first): stay for stay in timeline_of(plan).intervals()}
    found = []
    for begin, value, offset in places:
        stay = stays.get((begin, value), Interval(value, 0, begin, begin, value))
        found.append(replace(stay, offset=offset))
    return Addresses(tuple(found))
