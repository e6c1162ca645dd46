"""Steps of ranks are recorded, simulated, planned and followed, and no collective is run again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coop.simulate.player import Player
from coop.trace import Op, Trace, read
from coop.trace.collectives import is_collective
from coop.trace.device import load
from coop.trace.peak import peak_bytes
from coop.trace.script_shapes import trace_shapes
from ranks.recording import LATE, PROGRAMS, STEPS

pytestmark = pytest.mark.slow

RECORDING = Path(__file__).with_name("recording.py")
RANKS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("recorded") / "found"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(RECORDING), str(out), *PROGRAMS], env=environment, capture_output=True, text=True, timeout=300
    )
    files = [Path(f"{out}.{rank}.json") for rank in range(RANKS)]
    assert all(file.exists() for file in files), done.stdout[-2000:] + done.stderr[-4000:]
    return out


def row(found: Path, name: str, rank: int) -> dict:
    rows = json.loads(Path(f"{found}.{rank}.json").read_text())
    (mine,) = (row for row in rows if row["program"] == name)
    assert "error" not in mine, mine["error"]
    return mine


def trace_of(found: Path, name: str, rank: int) -> Trace:
    return read(f"{found}.{name}.{rank}.trace")


def collectives(trace: Trace) -> list[Op]:
    return [op for op in trace.ops if is_collective(op.name)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_ranks_collectives_write_and_cannot_be_repeated(found, name, rank):
    trace = trace_of(found, name, rank)
    called = collectives(trace)
    assert called and (trace.about["rank"], trace.about["world_size"]) == (rank, RANKS)
    assert all(op.writes and not op.replayable for op in called)


@pytest.mark.parametrize("name", PROGRAMS)
def test_waiting_for_a_late_rank_is_no_cost(found, name):
    trace = trace_of(found, name, 0)
    assert trace.cost < 1e9 * LATE
    assert all(0 < op.cost < 1e9 * LATE / 2 for op in collectives(trace))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_ranks_step_is_simulated_and_no_collective_is_run_again(found, name, rank):
    trace = trace_of(found, name, rank)
    played = Player(trace).play(0.6, limit=4.0)
    assert played.status == "ok" and played.replays
    again = [trace.instructions[which] for _, which in played.replays]
    assert not any(is_collective(op.name) for op in again)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_follows_its_plan_to_the_same_bits_and_no_collective_is_planned_again(found, name, rank):
    mine = row(found, name, rank)
    assert mine["same"] and mine["evictions"] > 0
    assert mine["planned_steps"] >= STEPS - 2  # the first makes the optimizer's state
    assert mine["again"] and not any(is_collective(op) for op in mine["again"])


FAKE = """
import sys
sys.path.insert(0, {tests!r})
import torch.distributed as dist
from ranks.recording import training
dist.init_process_group("gloo")
step, _ = training({name!r}, 0)
for _ in range(4):
    step()
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rank_by_shapes_alone_needs_what_the_live_rank_needs(found, name, monkeypatch):
    for attribute in ("argv", "path"):
        monkeypatch.setattr(sys, attribute, list(getattr(sys, attribute)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = FAKE.format(tests=str(RECORDING.parents[1]), name=name).encode()
    fake = trace_shapes("train.py", script, [], device=load("cpu"), world_size=RANKS)
    live = trace_of(found, name, 0)
    assert fake is not None
    expected, got = ([op.name for op in collectives(trace)] for trace in (live, fake))
    # Of a layer, weight and bias may be ready in another order, and buckets begin elsewhere.
    assert abs(len(expected) - len(got)) <= 1 and set(expected) == set(got) if name == "ddp" else expected == got
    assert peak_bytes(fake, 64) == pytest.approx(peak_bytes(live, 64), rel=0.03)
    if name != "ddp":  # whose gradients are copied into buckets by a hook
        gloo = {"aten::copy_", "aten::split.Tensor"}  # copies what it has reduced when somebody waits
        assert {op.name for op in fake.ops} == {op.name for op in live.ops} - gloo
