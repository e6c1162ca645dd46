"""Pictures and pages: they are written, they say what the points say, and thousands of blocks are
drawn fast."""

import time
from dataclasses import replace

import numpy as np
import pytest

from command import coop, refused
from coop.events import Event
from coop.plan import graph_of, solve
from coop.plan.model.plan import Step
from coop.report import memory_map, networks
from coop.report import plan as plan_picture
from coop.report.points import Point
from coop.report.rebuild import rebuild
from coop.report.results import Results
from coop.report.sweep import Sweep
from coop.report.variants import ABLATION
from coop.simulate import Player
from coop.trace import write
from step_traces import convolutions, transformer

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A whole comparison, with everything there is to draw."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "traces").mkdir()
    for trace in (transformer(3, 128), convolutions(6)):
        write(trace, folder / "traces" / f"{trace.name}.trace")
    return folder


COMMAND = ["compare", "--policies", "coop,dtr", "--ratios", "0.4:1.0:0.3", "--neighbours", "0.02", "--jobs", "1"]


def test_a_comparison_writes_points_pictures_and_a_page(compared, capsys):
    ended = coop(capsys, *COMMAND, "--ablation", "--lowest", "--traces", compared / "traces", "-o", compared)
    assert ended.code == 0, ended.err
    assert "overhead in %" in ended.out and ended.out.endswith("index.md\n")
    text = (compared / "index.md").read_text()
    for name in ("overhead", "fragmentation", "search", "ablation", "lowest"):
        assert f"({name}.svg)" in text
        assert (compared / f"{name}.svg").read_text().startswith("<?xml")
        assert (compared / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for network in ("convolutions", "transformer"):
        assert len(list((compared / "points" / network).glob("*.json"))) == (2 + len(ABLATION)) * 3 * 3
        assert len(list((compared / "lowest" / network).glob("*.json"))) == 2


def test_given_again_it_only_draws_and_the_pictures_are_the_same(compared, capsys):
    before = {file: file.read_bytes() for file in compared.glob("*.*")}
    points = {file: file.stat().st_mtime_ns for file in compared.rglob("*.json")}
    assert coop(capsys, *COMMAND, "--ablation", "--lowest", "--traces", compared / "traces", "-o", compared).code == 0
    assert {file: file.read_bytes() for file in compared.glob("*.*")} == before
    assert {file: file.stat().st_mtime_ns for file in compared.rglob("*.json")} == points


def test_a_cell_is_the_mean_of_its_neighbours_that_ran(compared):
    sweep = Sweep({"transformer": compared / "traces" / "transformer.trace"}, compared)
    results = Results(sweep, ["coop", "dtr"], [1.0, 0.7, 0.4], 0.02)
    cell = results.cell("transformer", "coop", 0.7)
    three = [sweep.read(Point("transformer", "coop", ratio))["overhead"] for ratio in (0.68, 0.7, 0.72)]
    assert cell.complete
    assert cell.overhead == pytest.approx(sum(three) / 3 - 1)
    assert f"{100 * cell.overhead:.1f} %" in (compared / "index.md").read_text()
    partly = results.cell("transformer", "coop", 0.4)  # near its limit
    ran = [answer["overhead"] for answer in partly.answers if answer["status"] == "ok"]
    assert len(partly.answers) == 3 and not partly.complete
    assert partly.overhead == (pytest.approx(sum(ran) / len(ran) - 1) if ran else None)
    gap = results.difference("coop", "dtr")
    ran = [r for r in (1.0, 0.7) if results.cell("transformer", "dtr", r).complete]
    assert gap.compared == len(ran)
    mean = sum(
        results.cell("transformer", "coop", r).overhead - results.cell("transformer", "dtr", r).overhead for r in ran
    )
    assert gap.mean == pytest.approx(mean / len(ran))


def test_networks_may_be_files_and_one_is_enough(compared, tmp_path, capsys):
    file = compared / "traces" / "transformer.trace"
    ended = coop(capsys, *COMMAND[:5], "--jobs", 1, "--models", file, "--no-pictures", "-o", tmp_path / "one")
    assert ended.code == 0, ended.err
    assert "![" not in (tmp_path / "one" / "index.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "alexnet"], "unknown network 'alexnet': there is no "),
        (["--models", "alexnet"], "the known ones are convolutions, transformer"),
        (["--policies", "coop,fifo"], "unknown policy 'fifo'; the known ones are coop"),
        (["--policies", "coop+no-gravity"], "unknown switch 'no-gravity' in 'coop+no-gravity'"),
        (["--ratios", "1.0:0.3:0.1"], "'1.0:0.3:0.1' is not a ratio such as 0.5, nor a range"),
        (["--jobs", "0"], "Invalid value for '--jobs'"),
        (["--traces", "/nowhere"], "there are no traces (*.trace) in /nowhere"),
    ],
)
def test_wrong_comparisons_are_refused(compared, tmp_path, capsys, arguments, sentence):
    given = ["compare", "-o", tmp_path / "out", "--traces", compared / "traces", *arguments]
    assert sentence in refused(capsys, *given)
    assert not (tmp_path / "out" / "index.md").exists()


def test_networks_of_coops_own_are_traced_once(tmp_path, capsys, monkeypatch):
    """Tracing takes long: only the calls are checked here."""
    asked = []

    def shape_trace(network, batch, device, progress):
        asked.append((network.name, batch, device.name))
        progress("tracing")
        return convolutions(6, name=network.name)

    monkeypatch.setattr(networks.shapes, "shape_trace", shape_trace)
    given = ["compare", "--ratios", "0.8", "--jobs", 1, "--no-pictures", "-o", tmp_path]
    assert coop(capsys, *given, "--models", "unet,spos").code == 0
    assert coop(capsys, *given, "--models", "spos").code == 0
    assert asked == [("unet", None, "a100"), ("spos", None, "a100")]
    assert (tmp_path / "traces" / "a100" / "spos.trace").exists()
    sentence = refused(capsys, *given, "--models", "three")
    assert sentence.startswith("there is no network and no file 'three'; the known networks are")
    assert "bert-large" in sentence


def test_a_corrupt_trace_is_refused_and_the_rest_is_kept(compared, tmp_path, capsys):
    (tmp_path / "bad.trace").write_bytes(b"\x1f\x8bnonsense")
    models = f"{tmp_path / 'bad.trace'},{compared / 'traces' / 'transformer.trace'}"
    sentence = refused_after_work(capsys, *COMMAND[:5], "--jobs", 1, "--models", models, "-o", tmp_path / "out")
    assert "points could not be played, such as bad" in sentence and "is not a trace" in sentence
    assert len(list((tmp_path / "out" / "points" / "transformer").glob("*.json"))) == 6


def refused_after_work(capsys, *arguments):
    """As refused, but a progress bar comes before the sentence."""
    ended = coop(capsys, *arguments)
    assert ended.code == 2 and "Traceback" not in ended.err
    return ended.err.splitlines()[-1]


# --- memory map ----------------------------------------------------------------------------------


def test_pixels_are_where_the_blocks_are():
    events = [
        Event("place", 0.0, 0, 0, 4 * MIB, 0.0),
        Event("bind", 0.0, 1, 0, 4 * MIB, 0.0),
        Event("place", 2.0, 0, 8 * MIB, 2 * MIB, 0.0),
        Event("bind", 2.0, 2, 8 * MIB, 2 * MIB, 0.0),
        Event("record", 2.0, 2, 8 * MIB, 2 * MIB, 1e-3),
        Event("evict", 6.0, 2, 8 * MIB, 2 * MIB, 0.0),
        Event("search", 10.0, 0, 0, MIB, 1e-6),
    ]
    image = memory_map.paint(rebuild(events), 16 * MIB, 20.0, width=200, height=160)
    grey, orange, white, after = ((120,) * 3, (230, 120, 40), (255,) * 3, (244,) * 3)
    for x, y, colour in [
        (5, 20, grey),
        (95, 20, grey),
        (30, 90, orange),
        (15, 90, white),
        (70, 90, white),
        (30, 60, white),
        (30, 120, white),
        (150, 20, after),
    ]:
        assert tuple(image[y, x]) == colour, (x, y)
    assert tuple(image[90, 59]) == (20, 20, 20)  # the eviction


def test_free_pixels_are_the_free_share_of_the_arena():
    run = Player(transformer()).play(0.6, events=True)
    seen = rebuild(run.events)
    image = memory_map.paint(seen, run.budget, seen.end)
    white = np.all(image == 255, axis=2).mean()
    used = sum(span.bytes * (span.end - span.start) for span in seen.spans) / (run.budget * seen.end)
    assert white == pytest.approx(1 - used, abs=0.02)


def test_thirty_thousand_blocks_are_painted_in_a_moment():
    rng = np.random.default_rng(0)
    events = []
    for i in range(30_000):
        offset = int(rng.integers(1000)) * MIB + 1
        events.append(Event("place", i * 1e-3, 0, offset + i % 64, 100, 0.0))
        events.append(Event("free", (i + 1) * 1e-3, 0, offset + i % 64, 100, 0.0))
    started = time.process_time()
    seen = rebuild(events)
    memory_map.paint(seen, 1001 * MIB, seen.end)
    assert time.process_time() - started < 3


def test_a_map_can_be_drawn_of_a_run_that_ended_badly(tmp_path):
    player = Player(convolutions())
    run = player.play(0.3, events=True)
    assert run.status != "ok"
    assert memory_map.draw(run.events, run.budget, tmp_path / "bad.svg") == [tmp_path / "bad.svg"]
    assert memory_map.draw([], MIB, tmp_path / "none.png", "nothing happened") == [tmp_path / "none.png"]


def test_transfers_have_colours_strips_and_words_of_their_own(tmp_path):
    player = Player(transformer())
    run = player.play(0.5, events=True, steps=2, swap=True)
    seen = rebuild(run.events)
    image = memory_map.paint(seen, run.budget, seen.end)
    for colour in (memory_map._OUT, memory_map._IN):
        assert np.all(image == colour, axis=2).mean() > 0.001
    memory_map.draw(run.events, run.budget, tmp_path / "swap.svg")
    memory_map.draw(player.play(0.5, events=True).events, run.budget, tmp_path / "plain.svg")
    swapped, plain = ((tmp_path / f"{name}.svg").read_text() for name in ("swap", "plain"))
    for words in ("being written out", "being read back", "transfers in", "waiting for them"):
        assert words in swapped and words not in plain
    assert "a plan is in force" not in swapped
    lost = [Event("plan_adopted", 0.0, 0, 0, 0, 9.0), *run.events, Event("plan_lost", seen.end, 0, 0, 0, 3.0)]
    memory_map.draw(lost, run.budget, tmp_path / "lost.svg")
    drawing = (tmp_path / "lost.svg").read_text()
    assert "a plan is in force" in drawing and "the plan is lost" in drawing


def test_a_plan_that_pages_shows_its_transfers(tmp_path):
    graph = graph_of(transformer())
    plan = solve(graph, 1.0, "keep-all")
    at = plan.steps.index(Step("compute", 0)) + 1
    value = graph.nodes[0].outputs[0]
    paged = (Step("out", value), Step("free", value), Step("in", value))
    for steps, shown in ((plan.steps, False), ((*plan.steps[:at], *paged, *plan.steps[at:]), True)):
        (drawn,) = plan_picture.draw(replace(plan, steps=steps), graph, tmp_path / "plan.svg")
        assert ("written out" in drawn.read_text()) == ("read back" in drawn.read_text()) == shown
