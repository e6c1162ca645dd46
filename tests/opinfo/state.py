"""The file of what is done: one line of JSON for each verdict, so that a sweep can go on where it was stopped.

What another build of coop did proves nothing: lines of other builds are not read.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

from coop import _C
from opinfo.verdicts import Verdict

_BUILD = hashlib.sha256(Path(_C.__file__).read_bytes()).hexdigest()[:16]


def read(state: Path | None) -> list[Verdict]:
    if state is None or not state.exists():
        return []
    lines = state.read_text().split("\n")[:-1]  # the last may have been cut off
    known = [json.loads(line) for line in lines if line.endswith("}}")]
    return [Verdict(**line["verdict"]) for line in known if line["build"] == _BUILD]


def write(state: Path | None, verdict: Verdict) -> None:
    if state is None:
        return
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.open("a") as file:
        file.write(json.dumps({"build": _BUILD, "verdict": dataclasses.asdict(verdict)}) + "\n")
