"""Plan files: gzip'ed JSON lines. The first line is the header, each further line one step, the last the number of steps.

{"format": "coop-plan", "version": 1, "graph": "...", "budget": ..., "planner": ..., ...}
["compute", 17]
["free", 12]
...
{"steps": 1024}
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from coop.plan.plan import KINDS, Plan, PlanError, Step

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
    lines = [header, *plan.steps, {"steps": len(plan.steps)}]
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
    if not isinstance(end, dict) or end.get("steps") != len(lines) - 2:
        raise PlanError(f"{path} is cut off: it has {len(lines) - 1} of its lines")
    steps = []
    for number, line in enumerate(lines[1:-1], start=2):
        match line:
            case [str(kind), int(what)] if kind in KINDS:
                steps.append(Step(kind, what))
            case _:
                raise PlanError(f"{path}, line {number}: not a step: {str(line)[:100]}")
    return Plan(tuple(steps), **{name: header[name] for name in _FIELDS})
