"""The sweep itself: what it must notice, it notices."""

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from coop import _C
from opinfo import state, verdicts
from opinfo.cases import Case
from opinfo.catalog import all_cases
from opinfo.known import KNOWN
from opinfo.leaves import Leaves
from opinfo.report import show
from opinfo.state import State
from opinfo.verdicts import Verdict, examine
from opinfo.workers import run_all

CASE = Case("op", "made up", "float32", "function")


def verdict_on(monkeypatch: pytest.MonkeyPatch, program: Callable[[], Any]) -> Verdict:
    monkeypatch.setattr(verdicts, "programs", lambda case: iter([program]))
    return examine(CASE)


def test_equal_bits_and_evictions_are_counted(monkeypatch):
    verdict = verdict_on(monkeypatch, lambda: torch.ones(100).cos().sin())
    assert (verdict.status, verdict.programs, verdict.runs) == ("same", 1, len(verdicts.SETTINGS))
    assert verdict.evictions > 0


def test_a_bit_that_differs_in_a_scope_is_a_difference(monkeypatch):
    verdict = verdict_on(monkeypatch, lambda: torch.tensor([1.0, float(_C.is_open())]))
    assert (verdict.status, verdict.where) == ("different", "program 0, coop")


def test_an_error_in_a_scope_alone_is_a_break(monkeypatch):
    verdict = verdict_on(monkeypatch, lambda: torch.ones(2 if _C.is_open() else 3) + torch.ones(3))
    assert verdict.status == "broken" and "must match the size" in verdict.what


def test_the_same_error_in_plain_pytorch_is_no_finding(monkeypatch):
    verdict = verdict_on(monkeypatch, lambda: torch.ones(2) + torch.ones(3))
    assert (verdict.status, verdict.raised) == ("same", 1)


def test_two_plain_runs_that_differ_need_a_reason(monkeypatch):
    numbers = iter(range(100))
    verdict = verdict_on(monkeypatch, lambda: torch.tensor(next(numbers) if not _C.is_open() else 0))
    assert verdict.status == "different" and "two plain runs differ" in verdict.what


def test_a_listed_case_may_differ_but_not_break(monkeypatch):
    monkeypatch.setattr(verdicts, "reason", lambda case: "made up")
    assert verdict_on(monkeypatch, lambda: torch.tensor([1.0, float(_C.is_open())])).status == "listed"
    assert verdict_on(monkeypatch, lambda: torch.ones(2 if _C.is_open() else 3) + torch.ones(3)).status == "broken"


def test_every_listed_entry_covers_a_case():
    cases = all_cases()
    assert [known for known in KNOWN if not any(known.covers(case) for case in cases)] == []


def _judge(case: Case, note: Callable[[str], None]) -> Verdict:
    note("half way")
    if case.form == "abort":
        os.write(2, b"the last words")
        os.abort()
    if case.form == "hang":
        time.sleep(100)
    if case.form == "raise":
        raise ValueError("no samples")
    return Verdict(case.key)


def test_a_crash_and_a_hang_are_findings_and_the_sweep_goes_on():
    forms = ["fine", "abort", "fine too", "raise", "hang", "fine at last"]
    cases = [Case("op", "made up", "float32", form) for form in forms]
    found = {verdict.case.split("/")[-1]: verdict for verdict in run_all(cases, jobs=1, timeout=1.0, judge=_judge)}
    assert [found[form].status for form in forms] == ["same", "crashed", "same", "broken", "stuck", "same"]
    assert found["abort"].where == found["hang"].where == "half way"
    assert "SIGABRT" in found["abort"].what and "the last words" in found["abort"].what
    assert "no samples" in found["raise"].what


def test_what_is_done_is_read_again_unless_another_build_did_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "results" / "state.jsonl"
    verdict = Verdict("op/add/float32/function", evictions=7)
    State(file).add(verdict)
    with file.open("a") as cut:
        cut.write('{"build": "')
    State(file).add(verdict)
    assert State(file).verdicts() == [verdict, verdict]
    assert State(file, limit=2).verdicts() == []
    monkeypatch.setattr(state, "_BUILD", "another")
    assert State(file).verdicts() == []


@pytest.mark.parametrize("status", ["same", "listed", "different", "broken", "crashed", "stuck"])
def test_a_report_fails_with_a_finding_and_without_evictions(status: str):
    console = Console(file=io.StringIO())
    verdict = Verdict(CASE.key, status, evictions=1)
    assert show([verdict], console) == verdict.is_fine == (status in ("same", "listed"))
    assert not show([Verdict(CASE.key, status)], console)


def found_by(call: Callable[[], Any]) -> set[tuple[str, str]]:
    with Leaves() as leaves:
        call()
    return set(leaves.findings)


def test_leaves_that_are_not_deterministic_or_write_secretly_are_found():
    x, mean = torch.randn(4, 3), torch.zeros(3)
    assert found_by(lambda: x.exp().matmul(torch.ones(3, 2)).add_(1)) == set()
    assert found_by(lambda: x.put(torch.tensor([1]), torch.ones(1))) == {("aten::put", "not deterministic")}
    norm = found_by(lambda: torch.native_batch_norm(x, None, None, mean, torch.ones(3), True, 0.1, 1e-5))
    assert norm == {("aten::native_batch_norm", "hidden write")}
