"""The machine: grows programs without end, compares each with plain eager, shrinks and keeps those
that differ.

    PYTHONPATH=tests python -m hunt.machine --minutes 10 --folder results/hunt/programs

Program number n is a pure function of the seed, of n and of the corpus so far: new, or grown from
the corpus. A program that shows something new (features.py) joins the corpus. The folder keeps
everything, and a later run continues from there.
"""

import argparse
import dataclasses
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hunt.child import Child
from hunt.compare import Settings, random_settings
from hunt.mutate import mutate
from hunt.program import Program, random_program, script
from hunt.shrink import shrink

BUDGETS = 1
"""Budgets for each program."""
RENEW = 500
"""After so many programs the child is replaced: reference cycles through autograd are never freed,
nor are their scopes."""
SHRUNK = 3
"""Findings of one kind that are shrunk; the others are only kept."""


@dataclasses.dataclass
class State:
    """The state from which a later run continues."""

    seed: int = 0
    programs: int = 0
    steps: int = 0
    no_room: int = 0
    unstable: int = 0
    seconds: float = 0.0
    """The child's processor time."""
    findings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    features: list[int] = dataclasses.field(default_factory=list)


class Machine:
    def __init__(self, folder: Path, seed: int = 0, resume: bool = True, planted: str = "") -> None:
        self.folder = folder
        self.child = Child(planted)
        self.corpus: list[Program] = []
        self.state = State(seed)
        (folder / "findings").mkdir(parents=True, exist_ok=True)
        if resume and (folder / "state.json").exists():
            self.state = State(**json.loads((folder / "state.json").read_text()))
            self.corpus = [Program.load(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
        else:
            (folder / "corpus.jsonl").write_text("")
        self.features = set(self.state.features)

    def case(self, number: int) -> tuple[Program, list[Settings]]:
        rng = random.Random(f"{self.state.seed} {number}")
        if self.corpus and rng.random() < 0.6:
            program = mutate(rng.choice(self.corpus), rng.choice(self.corpus), rng)
        else:
            program = random_program(rng)
        return program, [random_settings(rng) for _ in range(BUDGETS)]

    def step(self) -> str | None:
        """Tries one more program. Returns a finding, as a script."""
        state = self.state
        program, settings = self.case(state.programs)
        if state.programs % RENEW == 0:
            self.child.stop()
        answer = self.child.attempt((program.dump(), settings))
        state.programs += 1
        state.steps += len(program.steps)
        state.seconds += answer["seconds"]
        state.no_room += answer["no room"]
        if answer["status"] == "unstable":
            state.unstable += 1
            self._keep("unstable", program, settings, answer["what"])
        elif answer["status"] == "different":
            return self._found(program, settings, answer)
        elif new := set(answer["features"]) - self.features:
            self.features |= new
            self.corpus.append(program)
            with (self.folder / "corpus.jsonl").open("a") as file:
                file.write(program.dump() + "\n")
        return None

    def save(self) -> None:
        self.state.features = sorted(self.features)
        (self.folder / "state.json").write_text(json.dumps(dataclasses.asdict(self.state)))

    def _found(self, program: Program, settings: list[Settings], answer: dict[str, Any]) -> str:
        kind = _kind(answer["what"])
        suspects = settings if answer["at"] is None else [settings[answer["at"]]]

        def fails(smaller: Program, fewer: Settings) -> bool:
            found = self.child.attempt((smaller.dump(), [fewer]), 20)
            return found["status"] == "different" and _kind(found["what"]) == kind

        seen = sum(finding["kind"] == kind for finding in self.state.findings)
        culprit = next((one for one in suspects if fails(program, one)), None)
        if culprit is not None and seen < SHRUNK:
            program, culprit = shrink(program, culprit, fails)
            answer = self.child.attempt((program.dump(), [culprit]))
        elif culprit is None:
            answer = {**answer, "what": answer["what"] + " (not again)"}
        text = self._keep("finding", program, [culprit or suspects[0]], answer["what"], answer.get("raised", []))
        self.state.findings.append({"number": self.state.programs, "kind": kind, "what": answer["what"]})
        self.save()
        return text

    def _keep(self, kind: str, program: Program, settings: list[Settings], what: str, raised: Any = ()) -> str:
        name = self.folder / "findings" / f"{kind}-{self.state.seed}-{self.state.programs}"
        text = f"# {' '.join(what.split())[:300]}\n" + script(program, settings[0], raised)
        name.with_suffix(".py").write_text(text)
        name.with_suffix(".json").write_text(
            json.dumps({"program": program.dump(), "settings": settings, "what": what})
        )
        return text


def _kind(what: str) -> str:
    """The part of the result that differs, without its number."""
    return what.split(":")[0].split("[")[0]


def report(state: State, corpus: int) -> str:
    return (
        f"{state.programs:,} programs of {state.steps:,} steps, {state.seconds / 3600:.2f} hours of processor time "
        f"({1000 * state.seconds / max(state.programs, 1):.0f} ms each); {corpus:,} in the corpus, {len(state.features):,} features; "
        f"{state.no_room:,} runs without room, {state.unstable:,} programs that differ plainly; {len(state.findings)} findings"
    )


def run(machine: Machine, more: Callable[[State], bool], console: Console) -> None:
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("random programs", total=None)
        try:
            while more(machine.state):
                if finding := machine.step():
                    progress.console.print(finding, markup=False, highlight=False)
                if machine.state.programs % 50 == 0:
                    machine.save()
                progress.update(
                    task,
                    description=f"{machine.state.programs:,} programs, {len(machine.corpus):,} in the corpus, "
                    f"{len(machine.features):,} features, {len(machine.state.findings)} findings",
                )
        except KeyboardInterrupt:
            console.print("stopped; the next run goes on from here")
        finally:
            machine.save()
            machine.child.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="stop after so long; without it and --programs: never")
    parser.add_argument(
        "--programs", type=int, help="stop when so many have been tried, those of earlier runs included"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("results/hunt/programs"), help="keeps the corpus, findings and counts"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="do not go on from what the folder holds")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    most = arguments.programs or float("inf")
    console = Console()
    machine = Machine(arguments.folder, arguments.seed, not arguments.fresh)
    before = len(machine.state.findings)
    run(machine, lambda state: state.programs < most and time.monotonic() < end, console)
    console.print(report(machine.state, len(machine.corpus)))
    return 1 if len(machine.state.findings) > before else 0


if __name__ == "__main__":
    sys.exit(main())
