"""Event files: what is written is read, a live run writes its own, and a killed one can be
read."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch

import coop
from command import coop as command
from command import refused
from coop.event_file import EventFile, EventFileError, EventWriter, is_event_file, rows_of
from coop.events import EVENT_KINDS
from coop.policies import options_for
from coop.report.rebuild import rebuild
from coop.simulate import Player
from coop.trace import write
from step_traces import transformer

PLAYER = Player(transformer())
RUN = PLAYER.play(0.5, events=True, steps=2, swap=True)


@pytest.fixture
def path(tmp_path):
    with EventWriter(path := tmp_path / "run.events", options_for("coop", RUN.budget, 0, {}), "coop", "a step") as file:
        file.write(rows_of(RUN.events))
    return path


def train(steps=2):
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1024, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_written_is_read_to_the_nanosecond(path):
    file = EventFile(path)
    assert (file.budget, file.policy, file.program, file.coop) == (RUN.budget, "coop", "a step", coop.__version__)
    assert file.options["alignment"] == 64 and file.options["placement"] == "two_ended"
    assert file.whole is None
    read = list(file)
    assert file.whole is True and len(read) == len(RUN.events) == len(list(file))
    for was, now in zip(RUN.events, read, strict=True):
        assert (was.kind, was.storage, was.offset, was.bytes) == (now.kind, now.storage, now.offset, now.bytes)
        assert (now.time, now.value, now.waited) == pytest.approx((was.time, was.value, was.waited), abs=1e-9, rel=0)
    assert is_event_file(path) and path.stat().st_size < 15 * len(read)


def test_a_picture_is_the_same_from_the_file(path):
    before, after = rebuild(RUN.events), rebuild(EventFile(path))
    assert [(s.kind, s.storage, s.offset) for s in before.spans] == [(s.kind, s.storage, s.offset) for s in after.spans]
    assert [mark.kind for mark in before.marks] == [mark.kind for mark in after.marks]
    assert len(before.transfers) == len(after.transfers) > 0
    assert after.end == pytest.approx(before.end)


def test_a_file_that_is_cut_off_is_read_up_to_there(path):
    content = path.read_bytes()
    for length in (1000, len(content) // 2, len(content) - 20):
        path.write_bytes(content[:length])
        file = EventFile(path)
        read = list(file)
        assert file.whole is False and [e.kind for e in read] == [e.kind for e in RUN.events[: len(read)]]
    assert len(read) > 100
    path.write_bytes(content[:50])
    with pytest.raises(EventFileError, match=r"run\.events is not an event file: it does not begin with a header"):
        EventFile(path)


HEADER = {
    "format": "coop-events",
    "version": 1,
    "coop": "1",
    "budget": 64,
    "policy": "coop",
    "program": "",
    "options": {},
}
PLACE = ["place", 0.0, 0, 0, 64]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "does not begin with a header"),
        ([[1]], "does not begin with a header"),
        ([HEADER | {"version": 2}], r"version 2, and this coop reads version 1\. Tip"),
        ([HEADER | {"version": True}], "version True"),
        ([HEADER | {"budget": 0}], "its header says 0 for budget"),
        ([HEADER | {"options": []}], r"its header says \[\] for options"),
        ([HEADER, ["place", 0.0]], "line 2: not an event"),
        ([HEADER, ["explode", 0.0, 0, 0, 0]], "line 2: not an event"),
        ([HEADER, ["place", -1.0, 0, 0, 0]], "line 2: not an event"),
        ([HEADER, ["place", 0.0, 0, -64, 0]], "line 2: not an event"),
        ([HEADER, ["move", 0.0, 0, 0, 0, 0.5]], "line 2: not an event"),
        ([HEADER, ["place", 1.0, 0, 0, 64], PLACE], "line 3: before the event above it"),
        ([HEADER, PLACE, {"events": 2}], "should have 2 events, and has 1"),
        ([HEADER, {"events": 0}, PLACE], "line 3 follows its end"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(lines, why, tmp_path):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path := tmp_path / "bad.events").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(EventFileError, match=rf"bad\.events.*{why}"):
        list(EventFile(path))


def test_every_kind_can_be_written(tmp_path):
    rows = [(kind, 1.0, 1, 64, 64, 2.0, 0.5) for kind in EVENT_KINDS]
    with EventWriter(tmp_path / "all", options_for("dtr", 64, 0, {}), "dtr") as file:
        file.write(rows)
    assert list(rows_of(EventFile(tmp_path / "all"))) == rows


# --- live ----------------------------------------------------------------------------------------


def test_a_live_run_writes_its_events(tmp_path):
    with coop.budget("4MiB", "lru", events=tmp_path / "run.events") as memory:
        train()
        with pytest.raises(RuntimeError, match=r"written to .*run\.events"):
            memory.events()
    file, stats = EventFile(tmp_path / "run.events"), memory.stats()
    seen = rebuild(file)
    assert file.whole and (file.policy, file.budget) == ("lru", 4 << 20)
    assert seen.count("evict") == stats.evictions > 0
    assert seen.count("restore") == stats.rematerialisations
    assert sum(span.bytes for span in seen.last) == stats.budget // 64 * 64 - stats.free
    assert not [thread for thread in threading.enumerate() if thread.name == "coop-events"]


def test_a_program_that_raises_leaves_all_of_its_events(tmp_path):
    with pytest.raises(KeyError), coop.budget("4MiB", events=str(tmp_path / "run.events")):
        train(1)
        raise KeyError
    file = EventFile(tmp_path / "run.events")
    assert len(list(file)) > 100 and file.whole


def test_events_are_written_while_the_program_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("coop.live_events.INTERVAL", 0.002)
    path = tmp_path / "run.events"
    with coop.budget("4MiB", events=path):
        counts = []
        for _ in range(3):
            train(4)
            time.sleep(0.1)
            file = EventFile(path)
            counts.append(len(list(file)))
            assert not file.whole
    assert 0 < counts[0] < counts[1] < counts[2] <= len(list(EventFile(path)))


def test_without_a_place_to_write_to_nothing_is_left_half_done(tmp_path):
    with pytest.raises(FileNotFoundError), coop.budget("4MiB", events=tmp_path / "nowhere" / "run.events"):
        pass
    with pytest.raises(OSError, match="No space left"), coop.budget("4MiB", events="/dev/full"):
        pass
    with coop.budget("4MiB"):
        torch.ones(1)


def test_a_disk_that_is_full_does_not_end_the_program(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    sentence = r"run\.events: the events after the first 0 could not be written: No space"
    with pytest.warns(UserWarning, match=sentence), coop.budget("4MiB", events=tmp_path / "run.events"):
        monkeypatch.setattr(EventWriter, "write", full)
        train()
    assert EventFile(tmp_path / "run.events").budget == 4 << 20


@pytest.mark.slow
def test_a_forked_child_writes_nothing(tmp_path):
    with coop.budget("4MiB", events=tmp_path / "run.events"):
        train(1)
        child = os.fork()
        if not child:
            warnings.simplefilter("ignore")
            torch.ones(1000).sum()
            sys.stdout = sys.stderr = None
            os._exit(0)
        os.waitpid(child, 0)
        train(1)
    file = EventFile(tmp_path / "run.events")
    assert rebuild(file).end > 0 and file.whole


SCRIPT = """
import os, signal, sys, time, torch
x = [torch.ones(1000) + i for i in range(100)]
if "--exit" in sys.argv:
    sys.exit(3)
time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--exit"]], ids=["killed", "exit"])
def test_a_script_writes_its_events_however_it_ends(arguments, tmp_path, capsys):
    (tmp_path / "script.py").write_text(SCRIPT)
    start = [sys.executable, "-m", "coop", "run", "--budget", "64MiB", "--events", "run.events", "script.py"]
    done = subprocess.run([*start, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == (3 if arguments else -signal.SIGKILL)
    file = EventFile(tmp_path / "run.events")
    assert len(list(file)) > 100 and file.whole == bool(arguments) and file.program == "script.py"
    assert ("run.events" in done.stderr) == bool(arguments)
    drawn = command(capsys, "memory-map", tmp_path / "run.events", "-o", tmp_path / "map.png")
    assert drawn.code == 0 and ("the program was killed" in drawn.err) != bool(arguments)


# --- commands ------------------------------------------------------------------------------------


def test_a_simulation_writes_events_and_a_map_is_drawn_of_them(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    write(PLAYER.trace, step := tmp_path / "step.trace")
    given = ("simulate", step, "--budget", "50%", "--swap", "--steps", "2", "--events", tmp_path / "s.events")
    assert command(capsys, *given).code == 0
    assert [event.kind for event in EventFile(tmp_path / "s.events")] == [event.kind for event in RUN.events]
    drawn = command(capsys, "memory-map", tmp_path / "s.events", "-o", tmp_path / "map.svg", "--to", 0.01)
    assert (drawn.code, drawn.err) == (0, "")
    assert "coop+swap in 164.00 MiB: " in (tmp_path / "map.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["memory-map", "run.events", "-o", "m.png", "--budget", "50%"], "--budget is for a trace; run.events holds"),
        (["memory-map", "run.events", "-o", "m.png", "--steps", "2"], "--steps is for a trace"),
        (["memory-map", "run.events", "-o", "m.png", "--from", "9"], "run.events: from 9 s on there is nothing"),
        (["memory-map", "step.trace", "-o", "m.png"], "--budget is missing: step.trace is not an event file"),
        (["memory-map", "gone.events", "-o", "m.png"], "gone.events: No such file"),
        (["simulate", "run.events", "--budget", "50%"], "run.events holds the events of a run, not a trace"),
        (["plan", "run.events", "--budget", "50%"], "run.events holds the events of a run, not a trace"),
        (["run", "--measure", "--events", "x", "s.py"], "--events is for a budget; --measure has none"),
        (["run", "--budget", "1MiB", "--events", "no/x", "s.py"], "cannot write the events to 'no/x': No such file"),
    ],
)
def test_wrong_commands_are_refused(arguments, sentence, path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(path.parent)
    write(PLAYER.trace, "step.trace")
    (path.parent / "s.py").write_text("")
    assert refused(capsys, *arguments).startswith(sentence)
