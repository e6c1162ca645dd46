"""The file of verdicts: one line of JSON for each, so that a sweep can continue where it was
stopped.

Verdicts of another build of coop prove nothing, so they are not read.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

from coop import _C
from opinfo.verdicts import Verdict

_BUILD = hashlib.sha256(Path(_C.__file__).read_bytes()).hexdigest()[:16]


class State:
    """Without a path nothing is kept. Verdicts from `limit` programs of each case are kept apart
    from those of all."""

    def __init__(self, path: Path | None, limit: int = 0) -> None:
        self.path = path
        self._sign = f"{_BUILD}, {limit} programs" if limit else _BUILD

    def verdicts(self) -> list[Verdict]:
        if self.path is None or not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().split("\n") if line.endswith("}}")]
        return [Verdict(**line["verdict"]) for line in lines if line["build"] == self._sign]

    def add(self, verdict: Verdict) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"build": self._sign, "verdict": dataclasses.asdict(verdict)})
        with self.path.open("a") as file:
            file.write(f"\n{line}\n")  # on a line of its own, even if the last one was cut off
