"""Work that is spread over dask workers gives what it gives here, and loses nothing that is
finished.

Schedulers and workers are processes of their own, as on other machines.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from command import coop, refused
from coop.plan import check, graph_of
from coop.plan import read as read_plan
from coop.report.points import Point
from coop.report.sweep import Sweep
from coop.trace import write
from coop.trace.formats import read_any
from step_traces import convolutions, transformer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("dask") is None, reason="dask is not installed")]

QUIET = os.environ | {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error", "OMP_NUM_THREADS": "1"}


def start(module: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"distributed.cli.{module}", *map(str, args)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=QUIET)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@contextmanager
def cluster(folder: Path, workers: int = 2):
    """The file that tells where the scheduler is, its process, and those of its workers."""
    file = folder / "scheduler.json"
    scheduler = start("dask_scheduler", "--port", 0, "--no-dashboard", "--scheduler-file", file, "--host", "127.0.0.1")
    started = [scheduler]
    try:
        wait_for(file.exists, "the scheduler")
        for number in range(workers):
            place = folder / f"worker{number}"
            started.append(
                start(
                    "dask_worker", "--scheduler-file", file, "--nthreads", 1, "--no-dashboard", "--no-nanny",
                    "--local-directory", place, "--host", "127.0.0.1",
                )
            )  # fmt: skip
        yield file, scheduler, started[1:]
    finally:
        for process in reversed(started):
            end(process)


def wait_for(there, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.05)


def command(*args: object) -> subprocess.Popen[str]:
    """The command in a process of its own: here `distributed` is a folder of tests."""
    whole = [sys.executable, "-m", "coop", *map(str, args)]
    return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=QUIET)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("cluster")) as (file, _, _):
        yield file


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    files = {}
    for trace in (transformer(3, 128), convolutions(6)):
        files[trace.name] = folder / f"{trace.name}.trace"
        write(trace, files[trace.name])
    return files


def comparing(traces, out: Path, ratios: str, *args: object) -> subprocess.Popen[str]:
    folder = next(iter(traces.values())).parent
    return command(
        "compare", "--traces", folder, "--policies", "coop,dtr", "--ratios", ratios, "-o", out, "--no-pictures", *args
    )


def points_in(folder: Path) -> list[Path]:
    return [file for file in (folder / "points").rglob("*.json") if not file.name.startswith(".")]


def test_a_comparison_on_two_workers_is_that_of_one_machine(two_workers, traces, tmp_path):
    out = tmp_path / "there"
    process = comparing(traces, out, "0.6:1.0:0.1", "--lowest", "--on", two_workers)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    here, there = Sweep(traces, tmp_path / "here"), Sweep(traces, out)
    ratios = (None, 1.0, 0.9, 0.8, 0.7, 0.6)
    wanted = [Point(n, v, r) for n in traces for v in ("coop", "dtr") for r in ratios]
    here.run(wanted, 1, lambda _: None)
    assert there.missing(wanted) == []
    measured = {"seconds", "search_seconds", "search_times"}
    for point in wanted:
        mine, theirs = (
            {name: value for name, value in sweep.read(point).items() if name not in measured}
            for sweep in (here, there)
        )
        assert mine == theirs


def test_plans_of_several_steps_and_budgets_are_found_on_the_workers(two_workers, traces, tmp_path):
    out = tmp_path / "plans"
    process = command(
        "plan", *traces.values(), "--budget", "80%", "--budget", "10%", "--budget", "100%", "--planner", "treewidth",
        "--time-limit", 5, "-o", out, "--on", two_workers, "--json",
    )  # fmt: skip
    printed, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert re.search(r"2 of 6 plans were not found, such as \w+@10%: a budget of .* is below the floor", err)
    assert "the 4 that were found are written" in err
    rows = json.loads(printed)
    assert [(Path(row["trace"]).stem, row["asked"]) for row in rows] == [
        (n, b) for n in traces for b in ("80%", "100%")
    ]
    for row in rows:
        graph = graph_of(read_any(row["trace"]))
        plan = read_plan(out / f"{Path(row['trace']).stem}@{row['asked']}.plan")
        check(plan, graph)
        assert plan.peak == row["peak"] <= row["budget"]


def test_a_point_that_cannot_be_played_does_not_stop_the_others(two_workers, traces, tmp_path):
    traces["transformer"].write_bytes(b"\x1f\x8bnonsense")
    out = tmp_path / "there"
    process = comparing(traces, out, "1.0", "--on", two_workers)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert re.search(r"2 of 4 points could not be played, such as transformer, .*transformer.trace is not a trace", err)
    assert len(points_in(out)) == 2


def test_a_worker_that_dies_loses_nothing(traces, tmp_path):
    with cluster(tmp_path) as (file, _, workers):
        out = tmp_path / "there"
        process = comparing(traces, out, "0.5:1.0:0.005", "--on", file)
        wait_for(lambda: len(points_in(out)) >= 20, "the first points")
        workers[0].send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert len(points_in(out)) == 2 * 2 * 101


def test_without_its_scheduler_a_comparison_ends_with_what_is_finished_and_goes_on_later(traces, tmp_path):
    out = tmp_path / "there"
    with cluster(tmp_path, workers=1) as (file, scheduler, _):
        process = comparing(traces, out, "0.5:1.0:0.002", "--on", file)
        wait_for(lambda: len(points_in(out)) >= 20, "the first points")
        scheduler.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 2 and "Traceback" not in err, err
    kept = len(points_in(out))
    assert 20 <= kept < 2 * 2 * 251
    assert re.search(
        r"the scheduler at .* is lost after \d+ of 1004 calls; what is finished is kept, and the same", err
    )
    wanted = [Point(n, v, r) for n in traces for v in ("coop", "dtr") for r in (1.0, 0.998)]
    sweep, played = Sweep(traces, out), []
    missing = sweep.missing(wanted)
    sweep.run(wanted, 1, played.append)
    assert sorted(played) == sorted(missing) and len(missing) < len(wanted)


def test_nobody_there_is_told_at_once(traces, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("coop.spread._PATIENCE", 1.0)
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = refused(
        capsys, "compare", "--traces", tmp_path / "traces", "-o", tmp_path, "--no-pictures", "--on", "tcp://127.0.0.1:9"
    )
    assert said == (
        "work is spread to tcp://127.0.0.1:9 by dask.distributed, which is not installed. Tip: pip install "
        "'coop-memory[cluster]'"
    )


def test_a_scheduler_that_does_not_answer_and_workers_of_another_build_are_told(two_workers):
    code = f"""
from coop import spread
def tell(*args):
    try:
        spread.Cluster(*args).__enter__()
    except spread.ClusterError as error:
        print(error)
tell("tcp://127.0.0.1:9", 1)
spread.engine_stamp = lambda: "another"
tell({str(two_workers)!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=QUIET, timeout=60)
    first, second = done.stdout.splitlines()
    assert re.match(r"no scheduler answers at tcp://127.0.0.1:9 within 1 s \(.*\)\. Tip: `dask scheduler`", first), done
    assert "has another build of coop" in second and "install the same wheel there" in second, done


# --- sets of plans, here -------------------------------------------------------------------------


def test_several_plans_are_found_here_one_after_the_other(traces, tmp_path, capsys):
    out = tmp_path / "plans"
    ended = coop(
        capsys,
        "plan",
        traces["transformer"],
        "--budget",
        "80%",
        "--budget",
        "90%",
        "--planner",
        "chen-greedy",
        "-o",
        out,
    )
    assert ended.code == 0 and "80%" in ended.out and "90%" in ended.out
    assert sorted(file.name for file in out.iterdir()) == ["transformer@80%.plan", "transformer@90%.plan"]


def test_what_does_not_go_together_is_told(traces, tmp_path, capsys):
    step = traces["transformer"]
    two = ["plan", step, "--budget", "80%", "--budget", "90%", "--planner", "chen-greedy"]
    assert refused(capsys, *two, "--plot", tmp_path / "x.png") == "--plot draws one plan, and 2 are asked for"
    (tmp_path / "file").write_text("")
    assert "is a file, and several plans need a folder" in refused(capsys, *two, "-o", tmp_path / "file")
    assert "different names" in refused(capsys, "plan", step, step, "--budget", "80%")
