"""The trace and its file: what is written is read, and what is wrong is refused with the place
where it is wrong."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coop.trace import Hold, Op, Output, Release, Source, Trace, TraceError, read, write

STEP = Trace(
    [
        Source(0, 400, "parameter", carries=4),
        Source(1, 80),
        Op("aten::mm", (0, 1), (Output(2, 40), Output(3, 8)), 5000, scratch=64),
        Op("aten::add_", (0, 2), (Output(4, 0, 0),), 10, "optimizer", writes=(0,), replayable=False),
        Release(0),
        Op("aten::view", (2,), (Output(5, 0, 0),), 1, "backward"),
        Hold(5),
        Release(2),
    ],
    name="tiny",
    device="a100",
    about={"batch": 2},
)


@st.composite
def traces(draw):
    """Any instructions that make sense."""
    instructions, held = [Source(0, draw(st.integers(0, 100)))], [0]
    for _ in range(draw(st.integers(0, 20))):
        tensors = sum(isinstance(i, Source) + len(getattr(i, "outputs", ())) for i in instructions)
        kind = draw(st.sampled_from(["source", "op", "hold", "release"] if held else ["source"]))
        if kind == "source":
            instructions.append(
                Source(tensors, draw(st.integers(0, 2**40)), draw(st.sampled_from(["", "data", "state"])))
            )
            held.append(tensors)
        elif kind == "op":
            inputs = tuple(draw(st.lists(st.sampled_from(held), max_size=3)))
            writes = (draw(st.integers(0, len(inputs) - 1)),) if inputs and draw(st.booleans()) else ()
            outputs = [Output(tensors + k, 0, index) for k, index in enumerate(writes)]
            outputs += [
                Output(tensors + len(writes) + k, draw(st.integers(0, 2**40))) for k in range(draw(st.integers(0, 2)))
            ]
            instructions.append(
                Op(
                    draw(st.text(max_size=5)),
                    inputs,
                    tuple(outputs),
                    draw(st.integers(0, 2**50)),
                    draw(st.sampled_from(["forward", "backward", "optimizer"])),
                    writes,
                    draw(st.integers(0, 10)),
                    draw(st.booleans()),
                )
            )
            held += [output.tensor for output in outputs]
        else:
            tensor = draw(st.sampled_from(held))
            instructions.append(Hold(tensor) if kind == "hold" else Release(tensor))
            if kind == "hold":
                held.append(tensor)
            else:
                held.remove(tensor)
    return Trace(instructions, draw(st.text()), draw(st.text()), {"n": draw(st.integers())})


@given(traces())
@settings(max_examples=200, derandomize=True, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("trace") / "step.trace"
    write(trace, path)
    assert read(path) == trace


def test_the_same_trace_gives_the_same_bytes(tmp_path):
    write(STEP, tmp_path / "a")
    write(STEP, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read(tmp_path / "a") == STEP


def rewritten(tmp_path, change):
    """STEP's file with its lines changed."""
    write(STEP, tmp_path / "good.trace")
    with gzip.open(tmp_path / "good.trace") as file:
        lines = [json.loads(line) for line in file]
    change(lines)
    with gzip.open(tmp_path / "bad.trace", "wb") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)).encode() + b"\n")
    return tmp_path / "bad.trace"


def change_line(number, **fields):
    return lambda lines: lines[number].update(fields)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (change_line(0, format="other"), "not a trace"),
        (change_line(0, version=2), "version 2, and this coop reads version 1. Tip: read it with a newer coop"),
        (change_line(0, version="x"), "version 'x'"),
        (lambda lines: lines.pop(), "cut off after 8 instructions"),
        (lambda lines: lines.pop(4), "should have 8 instructions, and has 7"),
        (lambda lines: lines.append({"release": 1}), "line 11: the trace has ended already"),
        (change_line(3, **{"in": [0, 9]}), "there is no tensor 9 yet"),
        (change_line(3, cost="dear"), "line 4: not an instruction"),
        (lambda lines: lines.insert(3, {"wish": 1}), "line 4: not an instruction"),
        (lambda lines: lines.insert(3, "{nonsense"), "line 4: not JSON"),
        (lambda lines: lines.insert(3, "[]"), "line 4: not an instruction"),
        (change_line(3, phase="sideways"), "unknown phase"),
        (change_line(4, writes=[1]), "input 1 is overwritten, but has no new version"),
        (change_line(4, out=[[4, 8, 0]]), "a view has no bytes of its own"),
        (change_line(4, out=[[7, 0, 0]]), "the next tensor is 4, not 7"),
        (change_line(1, carries=0), "tensor 0 is not held at the end"),
        (change_line(1, bytes=-1), "not a size in bytes"),
        (lambda lines: lines.insert(9, {"release": 0}) or lines[-1].update(instructions=9), "nobody holds that tensor"),
    ],
)
def test_what_is_wrong_is_refused(tmp_path, change, sentence):
    with pytest.raises(TraceError, match=sentence):
        read(rewritten(tmp_path, change))


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "step.trace"
    write(STEP, path)
    whole = path.read_bytes()
    for damaged in (
        whole[:-9],
        whole[: len(whole) // 2],
        whole[:12],
        b"",
        b"hello",
        whole[:40] + b"\0" * 40 + whole[80:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"cut off|damaged|not a trace|not JSON"):
            read(path)
    with pytest.raises(OSError):
        read(tmp_path / "none.trace")
