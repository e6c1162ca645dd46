"""A sample of what `make hunt-files` does: mutated files are used or refused, with one sentence,
in little time and memory.

From the command line, a refusal is one line on stderr and exit code 2.
"""

import gzip
import random

import pytest
from hunt_files import hunt
from mutate import mutate
from readers import READERS, STEP, Reader

from command import coop
from coop.event_file import EventFile, EventFileError
from coop.plan import PlanError, solve
from coop.plan.model import file as plan_file
from coop.simulate import Player
from coop.trace import TraceError, content, read, write
from coop.trace.execution import read as read_execution

SAMPLE = 4.0
"""Seconds for each reader."""


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_a_mutated_file_is_used_or_refused(reader: Reader):
    became, findings = hunt(reader, 10_000, first=1_000_000, seconds=SAMPLE)
    assert not findings, findings[0].what
    assert became["refused"] > 20 and became["used"] > 0


COMMANDS = {
    "trace": ("simulate", "{}", "--budget", "100%"),
    "log": ("plan", "{}", "--budget", "100%", "--planner", "keep-all"),
    "plan": ("simulate", "{step}", "--budget", "300%", "--plan", "{}"),
    "execution": ("trace", "{}", "-o", "{out}"),
    "kineto": ("trace", "{et}", "--kineto", "{}", "-o", "{out}"),
    "device": ("trace", "{et}", "--device", "{}", "-o", "{out}"),
    "events": ("memory-map", "{}", "-o", "{picture}"),
}


@pytest.mark.parametrize("name", READERS)
def test_from_the_command_line_a_refusal_is_one_sentence(name, tmp_path, capsys):
    reader, choose = READERS[name], random.Random(name)
    seeds = reader.seeds()
    write(STEP, tmp_path / "step.trace")
    (tmp_path / "et.json").write_bytes(READERS["execution"].seeds()[0])
    path = tmp_path / f"case{reader.ending}"
    paths = {"step": tmp_path / "step.trace", "et": tmp_path / "et.json", "out": tmp_path / "out.trace"}
    paths["picture"] = tmp_path / "map.png"
    codes = []
    for case in range(40):
        path.write_bytes(mutate(choose.choice(seeds), choose) if case else seeds[0])
        ended = coop(capsys, *(part.format(path, **paths) for part in COMMANDS[name]))
        codes.append(ended.code)
        if ended.code:
            assert (ended.code, ended.out) == (2, ""), ended
            last = ended.err.splitlines()[-1]  # above it, how a plan was searched for
            assert last.startswith("coop: ") and len(last) < 1000, last
            assert "Traceback" not in ended.err
    assert codes[0] == 0 and 2 in codes


# --- limits --------------------------------------------------------------------------------------


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(content, "LARGEST", 1 << 20)
    monkeypatch.setattr(content, "LONGEST", 1 << 16)


@pytest.mark.parametrize(
    ("reader", "error"),
    [(read, TraceError), (plan_file.read, PlanError), (read_execution, TraceError), (EventFile, EventFileError)],
)
@pytest.mark.parametrize("line", [b" " * (1 << 22), b"{}\n" * (1 << 20)], ids=["one line", "lines"])
def test_what_unpacks_to_more_than_the_limit_is_refused(reader, error, line, small_limits, tmp_path):
    """A small file may unpack to anything."""
    (path := tmp_path / "bomb").write_bytes(gzip.compress(line))
    with pytest.raises(error, match="bomb"):
        reader(path)


@pytest.mark.parametrize("reader", [read, plan_file.read, read_execution, EventFile])
def test_json_that_nests_too_deep_is_refused(reader, tmp_path):
    (path := tmp_path / "deep").write_bytes(gzip.compress(b"[" * 100_000 + b"\n"))
    with pytest.raises(ValueError, match=r"deep.*not JSON"):
        reader(path)


# --- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('["free",', '["in",', "cannot be carried out"),
        ('["free",', '["out",', "it pages, and does not say how fast|cannot be carried out"),
        ('["compute",3]\n', '["compute",2]\n', "cannot be carried out|never computed"),
        (',-1]],0]', ',0]],0]', "cannot take over the bytes"),
        ('"peak":', '"peak":1,"old":', "its values alone take"),
        ('"duration":', '"duration":1,"old":', "says that it takes 1 ns"),
        ('"status":"', '"status":"very ', "for status"),
        ('"about":{', '"about":{"paging":{"in_bandwidth":0},', "it pages|paged to"),
        ('"seconds":', '"seconds":1e999,"old":', "for seconds"),
        ('["sgd_",', '["\\ud800",', "not a node"),
        ('"addresses":', '"old":', "cut off"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_followed_is_refused_when_it_is_read(old, new, why, tmp_path):
    plan_file.write(solve(STEP, 0.8, "treewidth"), path := tmp_path / "step.plan")
    assert Player(STEP).play(1.0, plan=plan_file.read(path)).status == "ok"
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    path.write_bytes(gzip.compress(text.replace(old, new, 1).encode()))
    with pytest.raises(PlanError, match=rf"step\.plan.*({why})"):
        plan_file.read(path)
