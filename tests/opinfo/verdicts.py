"""Runs a case: each of its programs plainly, twice, then in six kinds of scopes, and compares bit
for bit.

In the scopes, everything evictable is evicted after every op (checks=3), tiny storages too, and
freed bytes are overwritten.
"""

import dataclasses
import random
import warnings
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

import coop
from opinfo.cases import Case
from opinfo.catalog import programs
from opinfo.known import reason
from opinfo.leaves import findings, wrong_in_scope
from same import Program, difference, seeded

Note = Callable[[str], None]
BUDGET = "1GiB"
THREADS = 2
SETTINGS: dict[str, dict[str, Any]] = {
    f"{policy}{' and swap' if swap else ''}": {"policy": policy, "swap": swap}
    for policy in ("coop", "dtr", "dte")
    for swap in (None, "64MiB")
}


@dataclasses.dataclass
class Verdict:
    """The outcome of a case."""

    case: str
    status: str = "same"
    """same, listed, different, broken (an error that plain PyTorch does not have), crashed or
    stuck."""
    programs: int = 0
    runs: int = 0
    """In scopes."""
    raised: int = 0
    """Programs that raise in plain PyTorch too; they must raise the same in a scope."""
    evictions: int = 0
    seconds: float = 0.0
    where: str = ""
    """The first program and setting that were not right."""
    what: str = ""
    found: list[str] = dataclasses.field(default_factory=list)
    """About the operator's leaves, that their schemas do not say."""

    @property
    def is_fine(self) -> bool:
        return self.status in ("same", "listed")


@dataclasses.dataclass(frozen=True)
class Raised:
    """An exception, without what its traceback keeps alive."""

    kind: str
    text: str


def outcome(program: Program) -> Any:
    """The program's result and the random state after it, or what it raised."""
    try:
        return seeded(program)
    except Exception as error:
        return Raised(type(error).__name__, str(error))


def examine(case: Case, note: Note = lambda text: None, limit: int = 0) -> Verdict:
    """The case's verdict, from all of its programs or from `limit` of them, chosen at random but
    always the same ones. `note` is called with the position, in case this never returns."""
    torch.set_num_threads(THREADS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*when the budget's scope ended.*")
        chosen = list(enumerate(programs(case)))
        if limit and len(chosen) > limit:
            chosen = sorted(random.Random(case.key).sample(chosen, limit), key=itemgetter(0))
        return (_examine_leaves if case.kind == "leaves" else _examine_programs)(case, note, chosen)


def _examine_programs(case: Case, note: Note, chosen: list[tuple[int, Program]]) -> Verdict:
    """Stops at the first program that is not right. A listed case continues, to see that it does
    not crash."""
    verdict = Verdict(case.key)
    listed = reason(case) is not None
    for number, program in chosen:
        verdict.programs += 1
        note(f"program {number}, plainly")
        expected = outcome(program)
        verdict.raised += isinstance(expected, Raised)
        plain = difference(expected, outcome(program))
        for name in SETTINGS:
            where = f"program {number}, {name}"
            note(where)
            _compare(verdict, where, program, expected, name)
            if verdict.status == "different" and listed:
                verdict.status = "listed"
            if not verdict.is_fine:
                return verdict
        if plain and not listed:
            verdict.status, verdict.where = "different", f"program {number}"
            verdict.what = f"two plain runs differ, and known.py does not say why: {plain}"
            return verdict
    return verdict


def _compare(verdict: Verdict, where: str, program: Program, expected: Any, setting: str) -> None:
    verdict.runs += 1
    try:
        with coop.budget(BUDGET, checks=3, tiny=0, **SETTINGS[setting]) as memory:
            actual = outcome(program)
            memory.check()
        verdict.evictions += memory.stats().evictions
    except Exception as error:
        verdict.status, verdict.where, verdict.what = "broken", where, f"{type(error).__name__}: {error}"
        return
    if what := difference(expected, actual):
        failed = isinstance(actual, Raised) and not isinstance(expected, Raised)
        verdict.status, verdict.where = "broken" if failed else "different", where
        verdict.what = f"{actual.kind}: {actual.text}" if failed else what


def _examine_leaves(case: Case, note: Note, chosen: list[tuple[int, Program]]) -> Verdict:
    """The leaves that the case calls: what their schemas do not say, and whether coop knows."""
    verdict = Verdict(case.key)
    note("plainly, leaf by leaf")
    verdict.programs = len(chosen)
    for finding in findings(program for _, program in chosen):
        verdict.runs += 1
        verdict.found.append(f"{finding.name}: {finding.kind}: {finding.what}")
        note(verdict.found[-1])
        if what := wrong_in_scope(finding):
            verdict.status, verdict.what = "different", f"{verdict.what}\n{what}".strip()
    return verdict
