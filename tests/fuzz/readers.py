"""Every kind of file that coop reads: how a valid one is made, and how its content is used.

A reader returns usable content, or raises its own error, with a text that is one sentence and names
the file. The content is then used: traces are played in two budgets and planned, plans are
followed, devices give the cost of an op, events are drawn. That may raise one of the errors that
are made for users, and no other.
"""

import functools
import gzip
import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coop.event_file import EventFile, EventWriter, rows_of
from coop.events import Event
from coop.plan import PlanError, graph_of, peak_of, solve
from coop.plan.model import file as plan_file
from coop.plan.model.plan import Step
from coop.plan.running.follow import planned
from coop.plan.running.packing import assign, with_addresses
from coop.policies import options_for
from coop.report.memory_map import paint
from coop.report.rebuild import rebuild
from coop.simulate import ideal
from coop.simulate.checked import above_the_floor, player_of
from coop.simulate.player import Player
from coop.trace import Trace, TraceError, dtr_log, execution, read, write
from coop.trace.device import Device, load
from coop.trace.paging import Paging
from random_traces import build
from step_traces import convolutions, transformer

DATA = Path(__file__).parents[1] / "trace" / "data"
LIMIT = 1.5
"""The overhead from which playing is ended: a case takes milliseconds."""


@dataclass(frozen=True)
class Reader:
    name: str
    ending: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    use: Callable[[Any], None]
    error: type[Exception]
    accepts: bool = True
    """The result can be used. A log may be for the ideal simulator only, and an empty trace is not
    played."""

    def take(self, path: Path) -> str:
        """The outcome: read, used or refused. Any other error is a finding."""
        try:
            found = self.read(path)
        except self.error as error:
            sentence = str(error)
            assert path.name in sentence, f"the file is not named: {sentence}"
            assert len(sentence) < 1000, f"{len(sentence)} characters"
            return "refused"
        try:
            self.use(found)
        except self.error as error:
            assert not self.accepts and 0 < len(str(error)) < 1000, f"it was accepted: {error}"
            return "read"
        return "used"


# --- seeds ---------------------------------------------------------------------------------------


def _written(write_to: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_to(path := Path(folder) / "seed")
        return path.read_bytes()


def _traces() -> list[Trace]:
    found = [transformer(1), convolutions(3)]
    found += [build(random.Random(seed).randbytes(160)) for seed in range(4)]
    found[0].about |= {"alignment": 512, "copy_bandwidth": 1e12, "swap_bandwidth": [1e10, 2e10]}
    return found


def _trace_files() -> list[bytes]:
    return [_written(lambda path, trace=trace: write(trace, path)) for trace in _traces()]


def _logs() -> list[bytes]:
    logs = [_written(lambda path, trace=trace: dtr_log.write(trace, path)) for trace in _traces()]
    return [*logs, gzip.compress(logs[0])]


STEP = transformer(2)
"""The step that the plans are for."""
GRAPH = graph_of(STEP)


def _plans() -> list[bytes]:
    made = [solve(GRAPH, 1.0, "keep-all"), solve(GRAPH, 0.8, "treewidth")]
    at = next(at for at, step in enumerate(made[1].steps) if step == Step("compute", 0)) + 1
    value = GRAPH.nodes[0].outputs[0]
    there_and_back = (Step("out", value), Step("free", value), Step("in", value))
    about = {"paging": asdict(Paging(1e-5, 1e10, 1e-5, 1e10))}
    steps = (*made[1].steps[:at], *there_and_back, *made[1].steps[at:])
    made.append(with_addresses(replace(made[1], steps=steps, about=about)))
    made.append(replace(made[0], addresses=None))  # as files of version 1 are
    return [_written(lambda path, plan=plan: plan_file.write(plan, path)) for plan in made]


def _devices() -> list[bytes]:
    folder = Path(execution.__file__).parent / "devices"
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


def _event_files() -> list[bytes]:
    files = []
    for switches in ({}, {"swap": True}, {"plan": solve(GRAPH, 0.8, "treewidth")}):
        run = _player().play(0.85, events=True, steps=2, **switches)
        options = options_for("coop", run.budget, 0, {})

        def write_to(path: Path, run: Any = run, options: Any = options) -> None:
            with EventWriter(path, options, "coop", "step") as writer:
                writer.write(rows_of(run.events))

        files.append(_written(write_to))
    return files


# --- what is done with it ------------------------------------------------------------------------


def _play(trace: Trace) -> None:
    player = player_of(trace)
    for share, switches in ((1.0, {}), (0.6, {"swap": True})):
        try:
            budget = above_the_floor(player, share, player.floor(**switches))
        except ValueError as error:
            assert "below the floor" in str(error)
            continue
        played = player.play(budget, limit=LIMIT, steps=2, **switches)
        assert played.status in ("ok", "out_of_memory", "thrash") and played.stats.peak <= budget
    assert ideal(trace, 0.7).status in ("ok", "out_of_memory", "thrash")
    graph = graph_of(trace)
    assert peak_of(graph) >= 0 and (not graph.nodes or solve(graph, peak_of(graph), "keep-all").steps)


def _follow(plan: Any) -> None:
    planned(plan, 2 * plan.peak, live=True)
    assert assign(plan).needed >= 0
    player = _player()
    if plan.graph == GRAPH.fingerprint:
        played = player.play(max(plan.peak, 2 * player.peak), plan=plan, limit=LIMIT, checks=1)
        assert played.status in ("ok", "thrash")


def _cost(device: Device) -> None:
    x = torch.empty(64, 64, device="meta")
    cost = device.cost(torch.ops.aten.mm.default, (x, x), {}, x, False)
    Trace([], "", device.name, device.about)
    assert 0 <= cost < 2**200


@functools.cache
def _player() -> Player:
    return Player(STEP)


def _events(path: Path) -> tuple[int, list[Event]]:
    found = EventFile(path)
    return found.budget, list(found)


def _picture(found: tuple[int, list[Event]]) -> None:
    """Events that do not begin with the arena empty are read, and cannot be drawn."""
    budget, events = found
    for by in ("time", "events"):
        run = rebuild(events, by)
        paint(run, budget, run.end - run.start or 1.0, 80, 60)
        rebuild(events, by, since=run.end / 2 if by == "time" else 0.0)


def _execution(path: Path) -> Trace:
    return execution.read(path, None, load("a100"))


READERS = {
    reader.name: reader
    for reader in (
        Reader("trace", ".trace", _trace_files, read, _play, TraceError, accepts=False),
        Reader("log", ".log", _logs, dtr_log.read, _play, TraceError, accepts=False),
        Reader("plan", ".plan", _plans, plan_file.read, _follow, PlanError),
        Reader("execution", ".json", lambda: [(DATA / "gpu_et.json").read_bytes()], _execution, _play, TraceError, accepts=False),
        Reader("kineto", ".json", lambda: [(DATA / "gpu_kineto.json").read_bytes()],
               lambda path: execution.read(DATA / "gpu_et.json", path), _play, TraceError, accepts=False),
        Reader("device", ".toml", _devices, load, _cost, ValueError),
        Reader("events", ".events", _event_files, _events, _picture, ValueError, accepts=False),
    )
}  # fmt: skip
