"""`coop simulate` and `coop memory-map`: what they print and write, and what they say to bad
input."""

import gzip
import json
import sys

import pytest

from command import coop, refused
from coop.simulate import Player, ideal
from coop.sizes import format_bytes, parse_budget
from coop.trace import Op, Output, Release, Source, Trace, dtr_log, write
from step_traces import convolutions, transformer

SCHEMA = {
    "trace": str,
    "policy": str,
    "steps": int,
    "status": str,
    "overhead": float,
    "budget": int,
    "ratio": float,
    "peak": int,
    "evictions": int,
    "rematerialisations": int,
    "moves": int,
    "moved_bytes": int,
    "fragmentation": float,
    "searches": int,
    "search_seconds": float,
    "unlimited_peak": int,
    "floor": int,
}
STEP = transformer()
PLAYER = Player(STEP)


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "step.trace"
    write(STEP, path)
    return path


def figures(capsys, *arguments):
    ended = coop(capsys, "simulate", *arguments, "--json")
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out)


# --- simulate ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("50%", 0.5),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1.0", 1.0),
        ("1.", 1.0),
        ("150 %", 1.5),
        ("33.3%", 0.333),
        ("600MiB", 600 << 20),
        ("1.5GiB", 3 << 29),
        ("12345", 12345),
        ("1", 1),
    ],
)
def test_a_budget_is_bytes_or_a_share(text, budget):
    assert parse_budget(text) == pytest.approx(budget)
    assert type(parse_budget(text)) is type(budget)


@pytest.mark.parametrize("text", ["", "half", "0%", "0.0", "-50%", "0", "50%%", "1e9", "nan", "20000%", "5 apples"])
def test_other_budgets_are_refused(text, step, capsys):
    sentence = refused(capsys, "simulate", step, f"--budget={text}")
    assert "is not a size" in sentence or "a budget must be more than 0" in sentence


def test_json_has_the_fields_that_are_promised(step, capsys):
    found = figures(capsys, step, "--budget", "60%")
    assert {name: type(value) for name, value in found.items()} == SCHEMA
    assert (found["status"], found["trace"], found["policy"]) == ("ok", "transformer", "coop")
    assert found["overhead"] > 1 and found["evictions"] > 0 and found["peak"] <= found["budget"]


def test_the_command_and_the_library_agree(step, capsys):
    found = figures(capsys, step, "--budget", "0.6", "--policy", "dtr", "--steps", 2)
    expected = PLAYER.play(0.6, "dtr", steps=2).to_json()
    assert {k: v for k, v in found.items() if k in expected and k != "search_seconds"} == {
        k: v for k, v in expected.items() if k != "search_seconds"
    }
    assert figures(capsys, step, "--budget", int(0.6 * PLAYER.peak), "--policy", "dtr")["overhead"] == pytest.approx(
        PLAYER.play(0.6, "dtr").overhead
    )


def test_switches_reach_the_engine(step, capsys):
    found = figures(capsys, step, "--budget", "50%", "--no-window", "--no-per-byte")
    assert found["policy"] == "coop+no-window+no-per-byte"
    assert found["overhead"] == pytest.approx(PLAYER.play(0.5, "coop", window=False, per_byte=False).overhead)
    assert found["overhead"] != pytest.approx(PLAYER.play(0.5, "coop").overhead)


def test_a_run_that_does_not_fit_is_an_answer(tmp_path, capsys):
    write(convolutions(48), tmp_path / "tower.trace")
    player = Player(convolutions(48))
    found = figures(capsys, tmp_path / "tower.trace", "--budget", player.floor().bytes)
    assert found["status"] in ("thrash", "out_of_memory")
    assert found["failed"]["op"]
    found = figures(capsys, tmp_path / "tower.trace", "--budget", "50%", "--limit", "1.1")
    assert found["status"] == "thrash"
    shown = coop(capsys, "simulate", tmp_path / "tower.trace", "--budget", "50%", "--limit", "1.1")
    assert shown.code == 0 and "thrash" in shown.out and "failed" in shown.out


def test_without_json_a_table_is_printed(step, capsys):
    ended = coop(capsys, "simulate", step, "--budget", "60%")
    assert (ended.code, ended.err) == (0, "")
    for words in ("transformer, coop", "status", "ok", "60.0% of the step's own peak", "rematerialisations", "floor"):
        assert words in ended.out


def test_a_budget_below_the_floor_names_the_op_and_the_bytes(step, capsys):
    sentence = refused(capsys, "simulate", step, "--budget", "30%")
    floor, setter = PLAYER.floor()
    assert f"op {STEP.instructions[setter].name!r}" in sentence
    assert f"needs {format_bytes(floor)} ({floor} bytes)" in sentence
    assert int(sentence.partition("instruction ")[2].partition(")")[0]) == setter
    share = sentence.partition("a share of ")[2].partition("%")[0]
    assert floor <= float(share) / 100 * PLAYER.peak < floor + 0.002 * PLAYER.peak
    assert coop(capsys, "simulate", step, "--budget", f"{share}%").code == 0


def test_blocks_are_aligned_as_on_the_device_that_the_trace_is_of(tmp_path, capsys):
    odd = [Source(0, 100), Op("double", (0,), (Output(1, 100),), 5)]
    for about, peak in (({}, 256), ({"alignment": 512}, 1024)):
        write(Trace(odd, about=about), tmp_path / "odd.trace")
        assert figures(capsys, tmp_path / "odd.trace", "--budget", "4KiB")["unlimited_peak"] == peak
    for wrong in ("wide", 100, None):
        trace = Trace(odd)
        trace.about["alignment"] = wrong  # too late to be refused here
        write(trace, tmp_path / "odd.trace")
        assert "alignment must be a power of two" in refused(
            capsys, "simulate", tmp_path / "odd.trace", "--budget", "4KiB"
        )


def test_an_unknown_policy_is_answered_with_the_known_ones(step, capsys):
    sentence = refused(capsys, "simulate", step, "--budget", "50%", "--policy", "fifo")
    assert sentence == "unknown policy 'fifo'; the known ones are coop, coop-paper, dtr, dtr-eq, dte, delta, lru"


def _newer(content):
    return content.replace(b'"version":1', b'"version":9')


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda raw: raw[: len(raw) // 2], "is cut off after line"),
        (lambda raw: raw[:60] + bytes(40) + raw[100:], "is "),
        (lambda raw: b"", "is empty"),
        (lambda raw: b"\x1f\x8bnonsense", "is not a trace"),
        (
            lambda raw: gzip.compress(_newer(gzip.decompress(raw))),
            "is a trace of version 9, and this coop reads version 1",
        ),
        (lambda raw: gzip.compress(b"[]\n"), "is not a trace: it does not begin with a header"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:-40]), ""),
        (lambda raw: b"a text that is no log\n", ""),
        (lambda raw: bytes(range(256)), ""),
    ],
)
def test_files_that_hold_no_trace_are_refused(step, tmp_path, capsys, damage, sentence):
    path = tmp_path / "bad.trace"
    path.write_bytes(damage(step.read_bytes()))
    for command in (["simulate", path], ["memory-map", path, "-o", tmp_path / "map.png"]):
        said = refused(capsys, *command, "--budget", "50%")
        assert "bad.trace" in said
        assert sentence in said


def test_files_that_cannot_be_opened_are_refused(tmp_path, capsys):
    assert refused(capsys, "simulate", tmp_path / "none", "--budget", "50%").endswith("none: No such file or directory")
    assert refused(capsys, "simulate", tmp_path, "--budget", "50%").endswith(": Is a directory")


def test_a_trace_that_reads_what_nobody_holds_is_refused(tmp_path, capsys):
    wrong = [Source(0, 64), Release(0), Op("late", (0,), (Output(1, 64),), 5)]
    write(Trace(wrong), tmp_path / "wrong.trace")
    sentence = refused(capsys, "simulate", tmp_path / "wrong.trace", "--budget", "50%")
    assert sentence == "the trace cannot be played: instruction 2 uses tensor 0, which nobody holds"


def test_sizes_beyond_64_bits_are_refused(tmp_path, capsys):
    for size in (2**70, 2**60):
        write(Trace([Source(0, 123456), Op("huge", (0,), (Output(1, 1),), 5)]), path := tmp_path / "huge.trace")
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"123456", str(size).encode())))
        sentence = refused(capsys, "simulate", path, "--budget", "50%")
        assert "huge.trace: instruction" in sentence
        assert "is not a size in bytes" in sentence or "too large to be added up" in sentence


def test_traces_without_anything_to_play_are_refused(tmp_path, capsys):
    for content in ([], [Op("nothing", (), (), 5)]):
        write(Trace(content), tmp_path / "empty.trace")
        assert "no ops" in (said := refused(capsys, "simulate", tmp_path / "empty.trace", "--budget", "50%")) or (
            "needs no memory" in said
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["simulate"], "Missing argument 'FILE'"),
        (["simulate", "x"], "Missing option '--budget'"),
        (["simulate", "x", "--budget", "50%", "--steps", "0"], "Invalid value for '--steps'"),
        (["simulate", "x", "--budget", "50%", "--limit", "1"], "Invalid value for '--limit'"),
        (["simulate", "x", "--budget", "50%", "--no-brakes"], "No such option '--no-brakes'"),
        (["simulate", "x", "--budget", "50%", "--ideal", "--steps", "2"], "--ideal has no addresses"),
        (["memory-map", "x", "--budget", "50%"], "Missing option '-o'"),
        (["memory-map", "x", "--budget", "50%", "-o", "map.jpeg"], "map.jpeg is not a picture that can be written"),
        (["memory-map", "x", "--budget", "50%", "-o", "m.png", "--policy", "coop,dtrr"], "unknown policy 'dtrr'"),
        (["memory-map", "x", "--budget", "50%", "-o", "m.png", "--policy", "dtr+wings"], "unknown switch 'wings'"),
    ],
)
def test_wrong_commands_are_refused(capsys, arguments, sentence):
    assert refused(capsys, *arguments).startswith(sentence)


def test_ideal_plays_traces_and_operator_logs_without_addresses(step, tmp_path, capsys):
    log = tmp_path / "step.log"
    dtr_log.write(STEP, log)
    found = figures(capsys, log, "--budget", "50%", "--ideal", "--policy", "msps")
    assert {name: type(value) for name, value in found.items()} == {
        name: kind for name, kind in SCHEMA.items() if name not in ("floor", "moved_bytes")
    }
    expected = ideal(STEP, 0.5, "msps")
    assert (found["status"], found["overhead"], found["peak"]) == (expected.status, expected.overhead, expected.peak)
    assert figures(capsys, step, "--budget", "50%", "--ideal", "--policy", "msps")["overhead"] == expected.overhead
    dtr_log.write(STEP, tmp_path / "step.log.gz")
    assert figures(capsys, tmp_path / "step.log.gz", "--budget", "50%", "--ideal", "--policy", "msps") == found
    assert figures(capsys, log, "--budget", "60%")["status"] == "ok"  # on the engine


# --- memory-map ----------------------------------------------------------------------------------------------------------


def test_a_memory_map_is_written_in_the_format_of_its_name(step, tmp_path, capsys):
    ended = coop(capsys, "memory-map", step, "--budget", "60%", "-o", tmp_path / "new" / "map.png", "--by", "events")
    assert (ended.code, ended.out, ended.err) == (0, f"written: {tmp_path}/new/map.png\n", "")
    assert (tmp_path / "new" / "map.png").read_bytes().startswith(b"\x89PNG")


def test_without_an_ending_both_formats_are_written_and_policies_are_stacked(step, tmp_path, capsys):
    ended = coop(capsys, "memory-map", step, "--budget", "60%", "--policy", "coop,dtr", "-o", tmp_path / "both")
    assert ended.code == 0
    assert (tmp_path / "both.png").exists()
    drawing = (tmp_path / "both.svg").read_text()
    assert "coop in 60% of the memory" in drawing and "dtr in 60% of the memory" in drawing


def test_without_matplotlib_the_tip_is_how_to_get_it(step, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sentence = refused(capsys, "memory-map", step, "--budget", "60%", "-o", tmp_path / "map.png")
    assert sentence.endswith("Tip: pip install 'coop-memory[plots]'")
