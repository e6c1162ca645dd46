"""Tensors that PyTorch's own code, or a custom operator, points to while it calls operators are
resident and do not move."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import coop
from same import assert_same, seeded

LONG = 5000  # int64: far beyond what is tiny


def shaken(program, **options):
    """Compares with plain eager. After every op, everything evictable is evicted, and freed bytes
    are overwritten."""
    expected = seeded(program)
    with coop.budget("256MiB", checks=3, tiny=0, **options) as memory:
        actual = seeded(program)
        memory.check()
    assert_same(expected, actual)
    assert memory.stats().evictions > 0


def lengths():
    return torch.tensor([LONG, 4000, 3000, 17]) * 1


@pytest.mark.parametrize("policy", ["coop", "dtr"])
def test_pad_packed_sequence_of_many_steps(policy):
    def program():
        packed = pack_padded_sequence(torch.randn(LONG, 4, 3), lengths())
        padded, found = pad_packed_sequence(packed, padding_value=-1.0)
        return padded, found

    shaken(program, policy=policy)


def test_packed_rnn():
    def program():
        rnn = nn.GRU(3, 4)
        packed = pack_padded_sequence(torch.randn(20, 4, 3), torch.tensor([20, 15, 10, 7]) * 1)
        result, _ = rnn(packed)
        result.data.square().sum().backward()
        return result.data, [p.grad for p in rnn.parameters()]

    shaken(program)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ctc_loss_of_many_examples(dtype):
    """Lengths of 32 bits are converted inside the call: it points to a tensor that is no
    operand."""

    def program():
        scores = torch.randn(10, 3000, 8, requires_grad=True)
        targets = torch.randint(1, 8, (3000, 5))
        of_inputs, of_targets = torch.full((3000,), 10, dtype=dtype) * 1, torch.full((3000,), 5, dtype=dtype) * 1
        loss = nn.functional.ctc_loss(scores.log_softmax(-1), targets, of_inputs, of_targets)
        loss.backward()
        return loss, scores.grad

    shaken(program)


def test_tensor_split_at_many_indices():
    shaken(lambda: torch.tensor_split(torch.randn(LONG, 2), torch.arange(1, 4000) * 1)[::100])


def test_max_pool_without_gradients():
    """Reads floats without an operator."""
    shaken(lambda: torch.nn.functional.max_pool1d(torch.randn(4, 8, 100).exp(), 3) + 1)


def test_what_a_composite_call_holds_is_free_again_afterwards():
    with coop.budget("64MiB", tiny=0) as memory:
        many = torch.arange(LONG) * 2
        torch.tensor_split(torch.randn(2 * LONG, 2), many)
        torch.empty(64 << 20, dtype=torch.uint8)
        assert memory.state(many) == "evicted"


def test_what_a_composite_call_holds_is_free_again_after_an_error():
    with coop.budget("64MiB", tiny=0) as memory:
        many = torch.arange(LONG) * 2
        with pytest.raises(RuntimeError, match="dim"):
            torch.tensor_split(torch.tensor(1.0), many)
        torch.empty((64 << 20) - 512, dtype=torch.uint8)
        assert memory.state(many) == "evicted"


def test_a_composite_call_that_finds_no_room_for_what_it_points_to_says_so():
    with coop.budget("1MiB", tiny=0) as memory:
        many = torch.arange(60_000) * 2
        rest = torch.ones(100_000).exp()
        memory.pin(rest)
        kept = torch.empty(500_000, dtype=torch.uint8)
        assert memory.state(many) == "evicted"
        with pytest.raises(coop.OutOfBudget, match="tensor_split"):
            torch.tensor_split(torch.empty(0, 2), many)
        del kept
        memory.unpin(rest)
        assert len(torch.tensor_split(torch.empty(0, 2), many)) == 60_001


@pytest.fixture
def custom_operator():
    """Points to a tensor that it has made, and calls operators meanwhile, as C++ code does with
    const_data_ptr."""
    library = torch.library.Library("coop_test_composites", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    seen = []

    def twice(x):
        inner = x.contiguous() + 1
        for _ in range(3):
            torch.randn(100_000).exp()  # everything evictable leaves
        seen.append(coop._C.state(inner))
        return inner * 2

    library.impl("twice", twice, "CPU")
    yield torch.ops.coop_test_composites.twice, seen
    library._destroy()


def test_what_a_custom_operator_has_made_stays_until_it_returns(custom_operator):
    twice, seen = custom_operator
    x = torch.randn(1000)
    with coop.budget("16MiB", checks=3, tiny=0):
        assert_same(x.add(1).mul(2), twice(x.clone()).clone())
    assert seen == ["resident"]
