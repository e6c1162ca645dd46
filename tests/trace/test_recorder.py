"""A recording says what happened: ops, sharing, writes, lifetimes."""

import numpy as np
import pytest
import torch
from steps import history, op, ops, recorded, releases_after, sources, training
from torch import nn
from torch.autograd.profiler import profile
from torch.nn import functional as F

import coop
from coop import models
from coop.trace import Op, Source, record
from coop.trace.device import load
from coop.trace.peak import peak_bytes
from coop.trace.shapes import shape_trace
from coop.trace.trace import FRESH

pytestmark = pytest.mark.slow


# Not swin-t: real and fake layer norm give gradients of other strides, and one copies where the
# other need not.
@pytest.mark.parametrize("name", ["unet", "bert-large", "spos"])
def test_fake_and_live_recordings_of_a_network_are_the_same_but_for_costs(name):
    network = models.get(name, small=True)
    fake = shape_trace(network, None, load("cpu"), lambda _: None)
    assert history(record(training(network))) == history(fake)


@pytest.mark.parametrize("name", ["unet", "bert-large", "swin-t", "bilstm"])
def test_the_peak_of_a_trace_is_what_a_scope_measures(name):
    network = models.get(name, small=True)
    trace = record(training(network))
    with coop.measure() as memory:
        step = training(network)
        for _ in range(3):
            step()
        del step
    assert memory.stats().peak == pytest.approx(peak_bytes(trace, 64), rel=0.03)


def test_scratch_is_what_a_kernel_allocates_beside_its_results():
    image, weight = torch.randn(4, 8, 32, 32), torch.randn(8, 8, 3, 3)
    with coop.measure() as memory:
        memory.adopt(image, weight)
        before = memory.stats().in_use
        F.conv2d(image, weight, padding=1)
        needed = memory.stats().peak - before
    trace = recorded(lambda: (F.conv2d(image, weight, padding=1), image.neg()))
    (convolution,) = ops(trace, "convolution")
    assert convolution.scratch > 0
    assert convolution.outputs[0].bytes + convolution.scratch == pytest.approx(needed, rel=0.01)
    assert op(trace, "neg").scratch == 0


@pytest.mark.parametrize("name", ["resnet50", "bert-large", "bilstm"])
def test_gradients_are_added_up_as_without_a_recorder(name):
    step = training(models.get(name, small=True))
    trace = record(step)
    with profile() as profiled:
        step()
    names = [event.name for event in profiled.function_events]
    for addition in ("add", "add_"):
        assert len(ops(trace, addition)) == names.count(f"aten::{addition}")


def test_nothing_but_sources_outlives_a_step_that_drops_its_gradients():
    events = history(record(training(models.get("bert-large", small=True))))
    sources = [event for event in events if event[0] == "source"]
    born = {s for event in events if event[0].startswith("aten") for s in event[3]} | set(range(len(sources)))
    assert born - {event[1] for event in events if event[0] == "dead"} == set(range(len(sources)))


def test_an_in_place_op_makes_a_new_version_and_the_old_one_is_released():
    trace = recorded(lambda: torch.ones(8).relu_().neg())
    ones, relu, neg = op(trace, "ones"), op(trace, "relu_"), op(trace, "neg")
    assert relu.inputs == (ones.outputs[0].tensor,) and relu.writes == (0,)
    assert relu.outputs[0].alias == 0 and relu.outputs[0].bytes == 0
    assert neg.inputs == (relu.outputs[0].tensor,)
    assert releases_after(trace, ones.outputs[0].tensor) == relu.name


def test_after_a_write_through_a_view_the_base_is_read_in_its_new_version():
    def step():
        base = torch.ones(4, 4)
        base[1].mul_(2)
        return base.neg()

    trace = recorded(step)
    write = op(trace, "mul_")
    assert op(trace, "neg").inputs == (write.outputs[0].tensor,)


def test_an_op_that_reads_what_it_writes_has_it_as_one_input():
    def step():
        x = torch.ones(4)
        x.add_(x)

    write = op(recorded(step), "add_")
    assert len(write.inputs) == 1 and write.writes == (0,)


def test_views_share_a_storage_cost_nothing_and_go_before_it():
    def step():
        base = torch.ones(4, 4)
        base.t().neg()
        base.neg()

    trace = recorded(step)
    view = op(trace, "t")
    assert view.cost == 0 and view.outputs[0].alias == 0 and view.outputs[0].bytes == 0
    assert ops(trace, "neg")[0].inputs == (view.outputs[0].tensor,)
    assert releases_after(trace, view.outputs[0].tensor) == "aten::neg"


def test_a_storage_lives_as_long_as_any_view_of_it():
    kept = []

    def step():
        kept[:] = [torch.ones(4, 4)[0]]

    trace = recorded(step)
    assert releases_after(trace, ops(trace, "ones")[0].outputs[0].tensor) == ""


def test_what_autograd_saves_lives_until_backward_has_used_it():
    weight = torch.ones(4, requires_grad=True)

    def step():
        weight.exp().sum().backward()
        weight.grad = None

    trace = recorded(step)
    saved = op(trace, "exp").outputs[0].tensor
    assert releases_after(trace, saved) == "aten::mul.Tensor"  # the gradient of exp
    assert [o.phase for o in ops(trace, "mul")] == ["backward"]


def test_ops_with_several_results_have_them_all():
    values, indices = op(recorded(lambda: torch.arange(8.0).topk(2)), "topk").outputs
    assert (values.bytes, indices.bytes) == (8, 16)
    pieces = op(recorded(lambda: torch.ones(6).split(2)), "split").outputs
    assert [(piece.bytes, piece.alias) for piece in pieces] == [(0, 0)] * 3


def test_ops_on_lists_write_to_every_tensor():
    tensors = [torch.ones(2), torch.ones(4)]
    write = op(recorded(lambda: torch._foreach_add_(tensors, 1)), "_foreach_add_")
    assert write.writes == (0, 1) and [output.alias for output in write.outputs] == [0, 1]


def test_batch_norm_updates_its_statistics_in_an_op_of_its_own():
    norm, x = nn.BatchNorm1d(4), torch.randn(8, 4)
    trace = recorded(lambda: norm(x))
    call, update = ops(trace, "native_batch_norm"), ops(trace, "native_batch_norm:statistics")
    statistics = {s.tensor for s in sources(trace, "buffer")}
    assert len(call) == len(update) == 1
    assert not call[0].writes and statistics.isdisjoint(call[0].inputs)
    assert update[0].writes == (0, 1) and statistics.issuperset(update[0].inputs)


def test_batch_norm_that_evaluates_only_reads_its_statistics():
    norm, x = nn.BatchNorm1d(4).eval(), torch.randn(8, 4)
    trace = recorded(lambda: norm(x))
    call = op(trace, "native_batch_norm")
    assert not call.writes and len({s.tensor for s in sources(trace, "buffer")}.intersection(call.inputs)) == 2
    assert not ops(trace, "native_batch_norm:statistics")


def test_dropout_is_a_write_of_random_numbers_that_can_be_replayed():
    x = torch.ones(8)
    random = op(recorded(lambda: F.dropout(x)), "bernoulli_")
    assert random.writes == (0,) and random.replayable


def test_shape_only_ops_need_no_input():
    x = torch.ones(8)
    assert op(recorded(lambda: torch.zeros_like(x)), "zeros_like").inputs == ()


def test_a_resized_result_is_a_fresh_storage():
    def step():
        out = torch.empty(0)
        torch.neg(torch.ones(8), out=out)
        return out.exp()

    trace = recorded(step)
    assert op(trace, "neg").outputs[-1].bytes == 32 and op(trace, "neg").outputs[-1].alias == FRESH
    assert op(trace, "exp").inputs == (op(trace, "neg").outputs[-1].tensor,)


def test_a_storage_that_is_resized_without_an_op_ends_and_begins_anew():
    kept = torch.ones(8)

    def step():
        kept.neg()
        kept.untyped_storage().resize_(0)
        torch.zeros(2)
        kept.untyped_storage().resize_(32)
        kept.fill_(1)

    trace = recorded(step)
    old, new = (i for i in trace.instructions if isinstance(i, Source))
    assert (old.kind, old.bytes, old.carries) == ("data", 32, None)
    assert (new.kind, new.bytes) == ("", 32)
    assert releases_after(trace, old.tensor) == "aten::neg"
    assert op(trace, "fill_").inputs == (new.tensor,)
    assert "resize_" not in vars(torch.UntypedStorage)


def test_autograd_functions_find_no_profiler_in_a_recording():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *values):
            return tuple(2 * value for value in values)

        @staticmethod
        def backward(ctx, *gradients):
            return tuple(2 * gradient for gradient in gradients)

    values = [torch.ones(4, requires_grad=True) for _ in range(8)]

    def step():
        assert not torch.autograd._profiler_enabled()
        sum(Twice.apply(*values)).sum().backward()

    assert len(ops(recorded(step), "mul")) == 16


def test_custom_ops_are_not_replayable():
    @torch.library.custom_op("coop_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    x = torch.ones(4)
    (call,) = recorded(lambda: twice(x)).ops
    assert call.name == "coop_tests::twice" and not call.replayable


def test_phases_are_forward_backward_and_optimizer():
    trace = record(training(models.get("bilstm", small=True)))
    phases = [o.phase for o in trace.ops]
    assert list(dict.fromkeys(phases)) == ["forward", "backward", "optimizer"]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)


def test_sources_are_what_the_step_uses_and_what_belongs_to_it():
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 2), "norm": nn.BatchNorm1d(4)})
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    x, foreign = torch.randn(3, 4), torch.randn(1000)
    trace = recorded(lambda: model["used"](x))
    sizes = {kind: sorted(s.bytes for s in sources(trace, kind)) for kind in ("parameter", "buffer", "state", "data")}
    assert sizes["parameter"] == sorted(4 * p.numel() for p in model.parameters())
    assert sizes["state"] == sorted([4] * 6 + 2 * sizes["parameter"])
    assert sizes["buffer"] == [8, 16, 16] and sizes["data"] == [48]
    assert foreign.numel() == 1000
    assert all(isinstance(i, Source) for i in trace.instructions[: sum(map(len, sizes.values()))])


def test_data_that_enters_in_mid_step_is_a_source_from_there_on():
    def step():
        x = torch.ones(4).neg()
        return x + torch.from_numpy(np.ones(4, dtype=np.float32))

    trace = recorded(step)
    kinds = [type(i).__name__ for i in trace.instructions if isinstance(i, Source | Op)]
    assert kinds == ["Op", "Op", "Source", "Op"]


def test_sources_carry_over_what_takes_their_place_in_the_next_step():
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    trace = record(step)
    updated = {o.tensor for update in ops(trace, "add_") for o in update.outputs}
    assert [s.carries in updated for s in sources(trace, "parameter")] == [True, True]
    made = {o.tensor for op in trace.ops if op.phase == "backward" for o in op.outputs}
    assert [s.carries in made for s in sources(trace, "gradient")] == [True, True]
    (data,) = sources(trace, "data")
    assert data.carries == data.tensor


def test_a_new_batch_is_not_carried_over():
    model = nn.Linear(4, 2)
    batches = iter([torch.randn(3, 4) for _ in range(3)])
    trace = record(lambda: model(next(batches)))
    (data,) = sources(trace, "data")
    assert data.carries is None


def test_live_costs_are_times():
    x = torch.randn(256, 256)
    trace = recorded(lambda: x @ x)
    assert 1_000 < op(trace, "mm").cost < 1_000_000_000


def test_a_step_that_fails_leaves_no_recorder_behind():
    def step():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        recorded(step)
    assert list(recorded(lambda: torch.ones(2)).ops)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_step_is_not_recorded_inside_a_budget():
    with coop.measure(), pytest.raises(RuntimeError, match="outside of a coop budget"):
        coop.record(lambda: None)
