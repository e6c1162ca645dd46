"""Every status of the player prints, through every command that plays: as a table, as JSON, as a
line, as a title."""

import dataclasses
import json

import pytest

from command import coop
from coop import _C
from coop.plan import solve
from coop.plan import write as write_plan
from coop.simulate import Player, ideal
from coop.simulate.player import STATUSES
from coop.trace import Op, Output, Release, Source, Trace, write
from step_traces import transformer

STEP = transformer(2)
PLAYER = Player(STEP)


def fragmented() -> Trace:
    """There is enough room, but never in one piece: it runs out of memory above the floor."""
    at_once = [Source(0, 64)]
    at_once += [Op(f"small {i}", (0,), (Output(1 + i, 1 << 16),), 1000, replayable=False) for i in range(8)]
    at_once += [Release(i) for i in range(2, 8, 2)] + [Op("large", (0,), (Output(9, 3 << 16),), 1000)]
    return Trace(at_once, "fragmented")


@pytest.fixture(params=STATUSES)
def ended(request, monkeypatch):
    """The player ends every run with this status."""
    play = _C.play

    def played(options, program, steps, patience, watch, plan=None):
        result = play(options, program, steps, patience, watch, plan)
        if watch or plan is not None or steps != 1 or patience != 1.0:
            result |= {"status": request.param, "at": 1 if request.param != "ok" else result["at"]}
            result |= {"needed": 4096 if request.param == "out_of_memory" else 0}
        return result

    monkeypatch.setattr(_C, "play", played)
    return request.param


@pytest.fixture
def files(tmp_path):
    write(STEP, tmp_path / "step.trace")
    write_plan(solve(STEP, 0.8, "treewidth"), tmp_path / "step.plan")
    return tmp_path


COMMANDS = {
    "simulate": ("simulate", "step.trace", "--budget", "80%", "--steps", "2"),
    "simulate --plan": ("simulate", "step.trace", "--budget", "85%", "--plan", "step.plan"),
    "simulate --swap": ("simulate", "step.trace", "--budget", "80%", "--steps", "2", "--swap-bandwidth", "12GB,12GB"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_a_simulation_prints_whatever_its_status(command, as_json, ended, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    found = coop(capsys, *command, *(["--json"] if as_json else []))
    assert (found.code, found.err) == (0, "")
    assert ended.replace("_", " ") in found.out.replace("_", " ")
    if as_json:
        figures = json.loads(found.out, parse_constant=pytest.fail)  # NaN is no JSON
        assert (figures["overhead"] is None) == (ended != "ok") == ("failed" in figures)


@pytest.mark.parametrize("status", STATUSES)
def test_an_ideal_simulation_prints_whatever_its_status(status, files, capsys, monkeypatch):
    import coop.commands.simulate as module

    whole = dataclasses.replace(ideal(STEP, 0.9), status=status)
    monkeypatch.setattr(module, "ideal_simulator", lambda *_, **__: whole)
    monkeypatch.chdir(files)
    for extra in ([], ["--json"]):
        found = coop(capsys, "simulate", "step.trace", "--budget", "90%", "--policy", "dtr", "--ideal", *extra)
        assert found.code == 0 and status.replace("_", " ") in found.out.replace("_", " ")


def test_a_map_is_drawn_whatever_the_status(ended, files, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(files)
    found = coop(capsys, "memory-map", "step.trace", "--budget", "80%", "--policy", "coop,dtr", "-o", "map.png")
    assert (found.code, found.err) == (0, "") and (files / "map.png").stat().st_size > 1000


def test_a_comparison_prints_whatever_the_status(ended, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    found = coop(
        capsys, "compare", "--models", "step.trace", "--policies", "coop,lru", "--ratios", "0.8,0.9", "--jobs", "1",
        "--lowest", "--no-pictures", "-o", "out",
    )  # fmt: skip
    assert found.code == 0 and "overhead in %" in found.out
    assert (" - " in found.out) == (ended != "ok")


def test_a_simulation_is_one_line_whatever_its_status(ended):
    for plan in (None, solve(STEP, 0.8, "treewidth")):
        line = f"{PLAYER.play(0.85, plan=plan, events=True)}"
        assert "\n" not in line and ("more time" in line) == (ended == "ok")
        assert ended == "ok" or ended.replace("_", " ") in line


@pytest.mark.parametrize("planner", ["keep-all", "treewidth", "auto"])
@pytest.mark.parametrize("extra", [[], ["--json"]], ids=["table", "json"])
def test_a_plan_prints_whatever_its_status(planner, extra, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    share = "100%" if planner == "keep-all" else "85%"
    found = coop(capsys, "plan", "step.trace", "--budget", share, "--planner", planner, "--time-limit", "2", *extra)
    assert found.code == 0 and ("optimal" in found.out or "feasible" in found.out)


def test_each_status_is_reached_by_a_step(files):
    """The player reaches each status by itself."""
    found = {PLAYER.play(share, policy, limit=limit).status for share in (1.0, 0.75, 0.55) for policy in ("coop", "lru")
             for limit in (1.01, 2.0)}  # fmt: skip
    player = Player(fragmented())
    floor = player.floor("lru", rescue=False).bytes
    found |= {player.play(floor + extra, "lru", rescue=False).status for extra in range(0, 1 << 17, 1 << 14)}
    assert found == set(STATUSES)
