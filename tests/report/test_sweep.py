"""A sweep: every point has its file, nothing finished is lost, nothing stale is used."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from coop.report import points
from coop.report.points import Point, neighbours, parse_ratios
from coop.report.sweep import PRECISION, Sweep, SweepError, lowest
from coop.report.variants import ABLATION, Variant, ablation_of
from coop.simulate import Player
from coop.trace import write
from step_traces import convolutions, transformer

pytestmark = pytest.mark.slow


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    files = {}
    for trace in (transformer(3, 128), convolutions(6)):
        files[trace.name] = folder / f"{trace.name}.trace"
        write(trace, files[trace.name])
    return files


def run(sweep, wanted, jobs=1):
    played = []
    sweep.run(wanted, jobs, played.append)
    return played


GRID = [Point(n, v, r) for n in ("transformer", "convolutions") for v in ("coop", "dtr") for r in (1.0, 0.7)]


# --- points --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ratios"),
    [
        ("0.3:1.0:0.1", [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]),
        ("0.5", [0.5]),
        ("0.4,0.5,0.45:0.55:0.05", [0.55, 0.5, 0.45, 0.4]),
        ("0.3:1.0:0.3", [0.9, 0.6, 0.3]),
    ],
)
def test_ratios_are_lists_and_ranges(text, ratios):
    assert parse_ratios(text) == ratios


@pytest.mark.parametrize("text", ["", "a", "0.5:0.4:0.1", "0.3:0.5", "0.3:0.5:0", "0:1:0.1", "-0.5", "0.5,,0.6", "1/0"])
def test_other_ratios_are_refused(text):
    with pytest.raises(ValueError, match="ratio"):
        parse_ratios(text)


def test_neighbours_are_the_ratio_and_one_on_each_side():
    assert neighbours(0.5, 0.02) == (0.48, 0.5, 0.52)
    assert neighbours(0.5, 0.0) == (0.5,)


@pytest.mark.parametrize("text", ["coop", "coop+no-window", "dtr+two-ended+partition", "dte+union-find-cost+no-rescue"])
def test_a_variant_is_named_as_it_is_written(text):
    assert Variant.parse(text).label == text


def test_unknown_variants_are_answered_with_the_known_words():
    with pytest.raises(ValueError, match="unknown policy 'dt'; the known ones are coop"):
        Variant.parse("dt")
    with pytest.raises(ValueError, match=r"unknown switch 'no-gravity'.*window, partition.*two-ended, best-fit"):
        Variant.parse("coop+no-gravity")


def test_every_part_has_a_line_in_the_ablation():
    assert [variant.label for variant in ablation_of(Variant("coop"))] == [
        f"coop+no-{n.replace('_', '-')}" for n in ABLATION
    ]


# --- the sweep -----------------------------------------------------------------------------------


def test_every_point_has_a_file_with_the_simulators_figures(traces, tmp_path):
    sweep = Sweep(traces, tmp_path)
    assert sorted(run(sweep, GRID)) == sorted(GRID)
    for point in GRID:
        content = json.loads(point.file(tmp_path).read_text())
        assert (content["network"], content["variant"], content["ratio"]) == (point.network, point.variant, point.ratio)
        assert content["stamp"]["engine"] == points.engine_stamp()
        figures = sweep.read(point)
        assert figures == content["figures"]
        expected = Player(transformer(3, 128) if point.network == "transformer" else convolutions(6)).play(
            point.ratio, point.variant
        )
        for name, value in expected.to_json().items():
            assert name == "search_seconds" or figures[name] == value
        assert sum(count for _, count in figures["search_times"]) >= figures["searches"]


def test_what_is_finished_is_not_played_again(traces, tmp_path):
    sweep = Sweep(traces, tmp_path)
    run(sweep, GRID[:3])
    assert sorted(run(sweep, GRID)) == sorted(GRID[3:])
    assert run(Sweep(traces, tmp_path), GRID) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_text(""),
        lambda file: file.write_text("[1]"),
        lambda file: file.write_text('{"stamp": {}}'),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: file.unlink(),
        lambda file: file.write_text(file.read_text().replace('"ratio": 1.0', '"ratio": 0.9', 1)),
    ],
)
def test_a_file_that_is_not_whole_is_played_again(traces, tmp_path, damage):
    sweep = Sweep(traces, tmp_path)
    run(sweep, GRID)
    damage(GRID[0].file(tmp_path))
    assert run(sweep, GRID) == [GRID[0]]


def test_answers_of_other_traces_settings_and_engines_are_stale(traces, tmp_path, monkeypatch):
    run(Sweep(traces, tmp_path), GRID)
    assert len(Sweep(traces, tmp_path, steps=2).missing(GRID)) == len(GRID)
    assert len(Sweep(traces, tmp_path, limit=3.0).missing(GRID)) == len(GRID)
    write(transformer(2, 128), traces["transformer"])
    assert {point.network for point in Sweep(traces, tmp_path).missing(GRID)} == {"transformer"}
    monkeypatch.setattr(points, "engine_stamp", lambda: "another")
    assert len(Sweep(traces, tmp_path).missing(GRID)) == len(GRID)


def test_an_interrupt_loses_nothing_that_is_finished(traces, tmp_path):
    sweep = Sweep(traces, tmp_path)
    played = []

    def tick(point):
        played.append(point)
        if len(played) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(GRID, 1, tick)
    assert sorted(run(sweep, GRID)) == sorted(set(GRID) - set(played))


def test_a_point_that_cannot_be_played_does_not_stop_the_others(traces, tmp_path):
    traces["transformer"].write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(SweepError, match=r"4 of 8 points could not be played, such as transformer, .* is not a trace"):
        run(Sweep(traces, tmp_path), GRID)
    assert {point.network for point in Sweep(traces, tmp_path).missing(GRID)} == {"transformer"}


def test_no_file_is_left_behind_half_written(traces, tmp_path, monkeypatch):
    sweep = Sweep(traces, tmp_path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(SweepError, match="disk full"):
        run(sweep, GRID[:1])
    assert [file for file in (tmp_path / "points").rglob("*") if file.is_file()] == []


def test_parallel_processes_give_the_same_and_survive_an_interrupt(traces, tmp_path):
    """One command, interrupted as a terminal does it, and given again."""
    command = [sys.executable, "-m", "coop", "compare", "--models", "all", "--policies", "coop,dtr", "--jobs", "2"]
    command += ["--ratios", "0.5:1.0:0.001", "--traces", str(tmp_path / "traces"), "-o", str(tmp_path / "out")]
    command += ["--no-pictures"]
    folder = tmp_path / "out" / "points"
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(list(folder.rglob("*.json"))) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    finished = sorted(file for file in folder.rglob("*.json") if not file.name.startswith("."))
    assert 20 <= len(finished) < 2004
    assert f"interrupted with {len(finished)} of 2004 points done; the same command goes on from there" in err
    for file in finished:
        assert json.loads(file.read_text())["figures"]["status"]
    sweep = Sweep({"transformer": traces["transformer"], "convolutions": traces["convolutions"]}, tmp_path / "out")
    wanted = [Point(n, v, r) for n in traces for v in ("coop", "dtr") for r in parse_ratios("0.5:1.0:0.001")]
    assert len(sweep.missing(wanted)) == len(wanted) - len(finished)


# --- the lowest ratio ----------------------------------------------------------------------------


def _serving(*stretches):
    """A program that runs at ratios inside of these stretches."""
    return lambda ratio: SimpleNamespace(status="ok" if any(a <= ratio <= b for a, b in stretches) else "thrash")


def test_the_lowest_ratio_is_found_to_its_precision():
    found = lowest(_serving((0.3717, 2.0)), 0.1)
    assert found["status"] == "ok"
    assert 0.3717 <= found["lowest"] <= 0.3717 + PRECISION


def test_a_lucky_ratio_far_below_does_not_count():
    assert lowest(_serving((0.2, 0.3), (0.61, 2.0)), 0.1)["lowest"] == pytest.approx(0.61, abs=PRECISION)


def test_nothing_is_tried_below_the_floor():
    found = lowest(_serving((0.0, 2.0)), 0.444)
    assert min(ratio for ratio, _ in found["tried"]) >= 0.444
    assert found["lowest"] <= 0.444 + PRECISION


def test_a_network_that_never_runs_has_no_lowest_ratio():
    assert lowest(_serving(), 0.1)["lowest"] is None
