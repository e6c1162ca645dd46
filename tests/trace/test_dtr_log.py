"""DTR logs are read as their page says, bad ones are refused with the line's number, and what is
written reads back."""

import gzip
import json
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coop.simulate import ideal
from coop.trace import Hold, Op, Output, Release, Source, Trace, TraceError
from coop.trace.dtr_log import END_ORDER, end_order, read, write
from random_traces import traces

START = {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}
on_random_traces = settings(
    derandomize=True, database=None, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck)
)


def constant(name, size="4"):
    return [{"INSTRUCTION": "CONSTANT", "NAME": name}, {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": size}]


def call(args, time="1", /, **results):
    """Results as name = size, or name = (size, index)."""
    lines = [{"INSTRUCTION": "CALL", "NAME": "f", "ARGS": args.split(), "RESULT": list(results), "TIME": time}]
    for name, result in results.items():
        size, alias = result if isinstance(result, tuple) else (result, -1)
        lines.append({"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)})
        lines.append({"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": str(alias)})
    return lines


def mutate(args, *indices):
    return [{"INSTRUCTION": "MUTATE", "NAME": "m_", "ARGS": args.split(), "MUTATE": list(indices), "TIME": "1"}]


def copy(target, source, kind="COPY"):
    return [{"INSTRUCTION": kind, "DST": target, "SRC": source}]


def release(name):
    return [{"INSTRUCTION": "RELEASE", "NAME": name}]


@pytest.fixture
def log(tmp_path):
    def written(*groups):
        path = tmp_path / "small.log"
        path.write_text("".join(json.dumps(line) + "\n" for group in groups for line in group))
        return path

    return written


def test_every_instruction_has_its_meaning(log):
    trace = read(log(
        constant("gone"), [START], constant("w"), call("w", "5", x=(10), y=7), call("x y", v=(10, 1)),
        [{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}], call("v", u=(99, 0)), mutate("w x y", 2, 0),
        copy("x2", "x"), release("x"), copy("x2", "u", "COPY_FROM"), release("gone"), call("w y", z=1),
    ))  # fmt: skip
    assert trace.name == "small"
    assert trace.instructions == [
        Source(0, 4),
        Op("f", (0,), (Output(1, 10), Output(2, 7)), 5),
        Op("f", (1, 2), (Output(3, 0, 1),), 1),
        Op("f", (3,), (Output(4, 0, 0),), 1, "backward"),
        Op("m_", (0, 1, 2), (Output(5, 0, 2), Output(6, 0, 0)), 1, "backward", (2, 0)),
        Release(2), Release(0),
        Hold(1), Release(1),
        Release(1), Hold(4),
        Op("f", (6, 5), (Output(7, 1),), 1, "backward"),
    ]  # fmt: skip


def test_backward_is_not_inferred_from_names(log):
    line = call("w", x=1)[0] | {"NAME": "conv_backward"}
    (op,) = read(log(constant("w"), [line], call("", x=1)[1:])).ops
    assert op.phase == "forward"


def test_without_a_start_the_log_begins_at_once(log):
    assert read(log(constant("w"))).instructions == [Source(0, 4)]


def test_a_name_that_moves_keeps_its_place_at_the_end(log):
    trace = read(log(constant("w"), call("w", a=1), call("w", b=1), mutate("a", 0)))
    assert end_order(trace) == [0, 3, 2]
    assert END_ORDER not in trace.about  # any log that writes this trace says so
    trace = read(log(constant("w"), call("w", a=1), call("w", b=1), call("w", c=1), copy("a", "c", "COPY_FROM")))
    assert end_order(trace) == trace.about[END_ORDER] == [0, 3, 2]


def test_a_released_name_has_its_place_while_another_holds_the_tensor(log):
    trace = read(log(constant("w"), call("w", a=1), call("w", b=1), copy("c", "a"), release("a")))
    assert end_order(trace) == [0, 1, 2]


def test_a_gzipped_log_is_read_and_written(log, tmp_path):
    trace = read(log(constant("w"), call("w", x=3)))
    write(trace, tmp_path / "packed.log.gz")
    assert gzip.decompress((tmp_path / "packed.log.gz").read_bytes()).startswith(b'{"INSTRUCTION": "ANNOTATE"')
    packed = read(tmp_path / "packed.log.gz")
    assert (packed.instructions, packed.name) == (trace.instructions, "packed")
    damaged = tmp_path / "damaged.log.gz"
    damaged.write_bytes((tmp_path / "packed.log.gz").read_bytes()[:-20])
    with pytest.raises(TraceError, match="is cut off after line"):
        read(damaged)


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ([[{"INSTRUCTION": "FREE", "NAME": "w"}]], "line 3: unknown instruction 'FREE'; the known ones are ANNOTATE, "),
        ([[{"NAME": "w"}]], "line 3: no INSTRUCTION"),
        ([[["CALL"]]], "line 3: no INSTRUCTION"),
        ([[{"INSTRUCTION": "COPY", "DST": "x"}]], "line 3: COPY has no SRC"),
        ([constant("x", "4.5")], "line 4: MEMORY has MEMORY '4.5', which is not a whole number"),
        ([constant("x", "-4")], "line 4: MEMORY has MEMORY '-4', which is not"),
        ([constant("x", "9" * 5000)], "line 4: MEMORY has MEMORY '999"),
        ([constant("x", True)], "line 4: MEMORY has MEMORY 'True', which is not"),
        ([call("w", "soon", x=1)], "line 3: CALL has TIME 'soon', which is not a whole number"),
        ([mutate("w", "first")], "line 3: MUTATE has MUTATE .* which is not a list of indices"),
        ([[call("w", x=1)[0] | {"ARGS": "w"}]], "line 3: CALL has ARGS 'w', which is not a list of names"),
        ([constant("x")[:1]], "line 3: the MEMORY of x is missing: the log ends"),
        ([constant("x")[:1], constant("y")], "line 3: the MEMORY of x is missing: line 4 is CONSTANT y"),
        ([call("w", x=1)[:2]], "line 3: the ALIAS of x is missing: the log ends"),
        ([call("w", x=1)[::2]], "line 3: the MEMORY of x is missing: line 4 is ALIAS x"),
        ([call("w", x=1), call("w", y=1)[1:]], "line 6: MEMORY of y, which does not follow"),
        ([call("w", x=(1, 1))], "line 3: x is a view of argument 1, and there are 1"),
        ([mutate("w", 3)], "line 3: it writes to argument 3, and there are 1"),
        ([call("q", x=1)], "line 3: there is no tensor q"),
        ([copy("x", "q")], "line 3: there is no tensor q"),
        ([constant("w")], "line 3: the name w is taken already"),
        ([release("w"), copy("x", "w")], "line 4: w has been released already"),
        ([release("w"), release("w")], "line 4: w has been released already"),
    ],
)
def test_a_bad_log_is_refused_with_the_line(log, groups, complaint):
    with pytest.raises(TraceError, match=complaint):
        read(log(constant("w"), *groups))


def test_what_is_not_json_is_refused(tmp_path):
    path = tmp_path / "text.log"
    path.write_text('{"INSTRUCTION": "RELEASE", "NAME": "x"}\n\nhello\n')
    with pytest.raises(TraceError, match=r"text.log, line 3: not JSON"):
        read(path)


@on_random_traces
@given(traces(steps=60))
def test_what_is_written_reads_back(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("logs") / "trace.log"
    write(trace, path)
    again = read(path)
    assert end_order(again) == end_order(trace)
    assert END_ORDER not in again.about
    assert again.instructions == [copied_on_write(trace, number) for number in range(len(trace.instructions))]
    write(again, path)
    assert read(path).instructions == again.instructions


def copied_on_write(trace, number):
    """What reading gives for an instruction: the same, unless it writes and its old versions are
    not released at once."""
    op = trace.instructions[number]
    if not isinstance(op, Op) or not op.writes:
        return op
    old = [op.inputs[index] for index in op.writes]
    if trace.instructions[number + 1 : number + 1 + len(old)] == [Release(tensor) for tensor in old]:
        return op
    sizes = {}
    for other in trace.instructions[:number]:
        if isinstance(other, Source):
            sizes[other.tensor] = other.bytes
        elif isinstance(other, Op):
            for o in other.outputs:
                sizes[o.tensor] = o.bytes if o.alias < 0 else sizes[other.inputs[o.alias]]
    outputs = tuple(Output(o.tensor, sizes[op.inputs[o.alias]]) for o in op.outputs)
    return Op(op.name, op.inputs, outputs, op.cost)


@on_random_traces
@given(traces(steps=40), st.randoms(use_true_random=False), st.sampled_from((0.4, 0.6, 0.8)))
def test_the_order_at_the_end_survives_a_log(tmp_path_factory, trace, random, share):
    order = end_order(trace)
    random.shuffle(order)
    trace = Trace(trace.instructions, about={END_ORDER: order})
    path = tmp_path_factory.mktemp("logs") / "trace.log"
    write(trace, path)
    again = read(path)
    assert end_order(again) == order
    for policy in ("dtr", "lru"):
        assert asdict(ideal(again, share, policy)) == asdict(ideal(trace, share, policy))


def test_an_order_of_other_tensors_is_refused():
    with pytest.raises(TraceError, match="should name the 1 tensors held at the end"):
        end_order(Trace([Source(0, 4)], about={END_ORDER: [1]}))


def test_what_a_log_has_no_name_for_is_refused(tmp_path):
    overwritten = [Op("w_", (0,), (Output(1, 0, 0),), writes=(0,)), Release(0)]
    with pytest.raises(TraceError, match="tensor 0 is used after it was overwritten"):
        write(Trace([Source(0, 4), *overwritten, Op("f", (0,), (Output(2, 4),))]), tmp_path / "trace.log")


def test_the_mark_comes_before_the_first_op_that_is_not_forward(tmp_path):
    ops = [Op("f", (0,), (Output(i, 4),), 1, phase) for i, phase in ((1, "forward"), (2, "backward"), (3, "optimizer"))]
    write(Trace([Source(0, 4), *ops]), tmp_path / "trace.log")
    assert [op.phase for op in read(tmp_path / "trace.log").ops] == ["forward", "backward", "backward"]
