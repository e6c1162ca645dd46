"""Operators with absent tensors, hidden writes, lazy copies, aliased results; code that PyTorch
runs on threads of its own."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import coop
from same import assert_same, seeded

aten = torch.ops.aten
ZEROS, ONES = (torch.zeros(8), torch.ones(8))


def shaken(program):
    expected = seeded(program)
    with coop.budget("64MiB", checks=3, tiny=0) as memory:
        actual = seeded(program)
        memory.check()
    assert_same(expected, actual)
    assert memory.stats().evictions > 0


def normalised(norm):
    """Results, and statistics as they are afterwards."""
    x = torch.randn(4, 8, 16, 16)
    mean, variance = ZEROS.clone(), ONES.clone()
    results = norm(x, mean, variance)
    return [r + 1 for r in results if r.numel()], mean, variance


BATCH_NORMS = {
    "native": lambda x, m, v: aten.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5),
    "native without statistics": lambda x, m, v: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
    "native, evaluating": lambda x, m, v: aten.native_batch_norm(x, None, None, m, v, False, 0.1, 1e-5),
    "legit": lambda x, m, v: aten._native_batch_norm_legit(x, None, None, m, v, True, 0.1, 1e-5),
    "legit, evaluating": lambda x, m, v: aten._native_batch_norm_legit(x, None, None, m, v, False, 0.1, 1e-5),
    "legit without statistics": lambda x, m, v: aten._native_batch_norm_legit(x, None, None, True, 0.1, 1e-5),
    "with update": lambda x, m, v: aten._batch_norm_with_update(x, None, None, m, v, 0.1, 1e-5),
    "update of statistics": lambda x, m, v: aten.batch_norm_update_stats(x, m, v, 0.1),
    "native, out": lambda x, m, v: aten.native_batch_norm.out(
        x, None, None, m, v, True, 0.1, 1e-5, out=torch.empty(0), save_mean=torch.empty(0), save_invstd=torch.empty(0)
    ),
    "legit, out": lambda x, m, v: aten._native_batch_norm_legit.out(
        x, None, None, m, v, True, 0.1, 1e-5, out=torch.empty(0), save_mean=torch.empty(0), save_invstd=torch.empty(0)
    ),
}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_batch_norm(name):
    shaken(lambda: normalised(BATCH_NORMS[name]))


@pytest.mark.parametrize("name", ["native, out", "native", "update of statistics"])
def test_what_was_made_from_statistics_keeps_their_old_value(name):
    """Their schema does not say that these write."""

    def program():
        x = torch.randn(4, 8, 16, 16)
        mean, variance = ZEROS.clone(), ONES.clone()
        before = mean.expand(500, 8).exp()
        BATCH_NORMS[name](x, mean, variance)
        return before + 1

    shaken(program)


def test_lazy_clones_are_copies():
    def program():
        x = torch.randn(100, 100)
        y = torch._lazy_clone(x)
        y += 1
        z = torch._lazy_clone(y)
        x.mul_(2)
        return x, y, z

    shaken(program)


def test_gradients_go_through_a_lazy_clone():
    def program():
        x = torch.randn(100, 100, requires_grad=True)
        torch._lazy_clone(x * 2).sin().sum().backward()
        return x.grad

    shaken(program)


def test_result_in_place_of_an_argument():
    """One tensor is both an input and an output, and the kernel changes its shape."""

    def program():
        x = torch.randn(32, 32)
        torch.sum(x, 0, out=x)
        y = torch.randn(32, 32)
        torch.mm(y, y.clone(), out=y)
        return x + 1, y + 1

    with pytest.warns(UserWarning, match="resized"):
        shaken(program)


def test_from_dlpack_of_an_evicted_tensor():
    shaken(lambda: torch.from_dlpack(torch.randn(100, 100).exp().detach()) + 1)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_jit_trace():
    def program():
        net = torch.nn.Sequential(
            torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Dropout(0.0), torch.nn.Linear(32, 4)
        )
        x = torch.randn(16, 32)
        traced = torch.jit.trace(net, x)
        loss = traced(x).square().sum()
        loss.backward()
        return loss, [p.grad for p in net.parameters()]

    shaken(program)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_threads_of_torchscript_are_managed():
    @torch.jit.script
    def branches(x):
        other = torch.jit.fork(torch.mm, x, x)
        return torch.jit.wait(other).tanh() + x

    def program():
        x = torch.randn(128, 128)
        results = [branches(x / i) for i in range(1, 40)]
        return [r + 1 for r in results]

    expected = seeded(program)
    with coop.budget("4MiB") as memory:
        assert memory.state(branches(torch.randn(128, 128))) == "resident"
        actual = seeded(program)
    assert_same(expected, actual)
    assert memory.stats().evictions > 0


def test_a_negated_out_of_another_shape_is_resized_or_refused():
    """PyTorch resizes it without an operator. If it is resident that works, else it is an error."""
    with coop.budget("1MiB", checks=3, tiny=0) as memory:
        a = torch.randn(32, 32)
        source = torch.randn(8, 8)
        memory.commit(source)
        with pytest.warns(UserWarning, match="was resized"):
            assert_same(torch.mul(a, 2, out=torch._neg_view(source)).clone(), a * 2)
        made = torch.randn(8, 8).mul(2)
        view = torch._neg_view(made)
        assert memory.state(made) == "evicted"
        with pytest.warns(UserWarning, match="was resized"), pytest.raises(RuntimeError, match=r"memory\.pin"):
            torch.mul(a, 2, out=view)
        memory.check()
        same = torch._neg_view(torch.randn(32, 32).mul(2))
        assert_same(torch.mul(a, 2, out=same).clone(), a * 2)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("swap", [None, "16MiB"])
def test_numbers_that_are_tensors_are_there_for_a_dispatch_mode(swap):
    """PyTorch makes Python numbers of them without an operator."""

    def program():
        x = torch.randn(64, 64, requires_grad=True)
        y = (x * 2.5).sin() * 3
        with Passing():
            y.sum().backward()
        return y.detach(), x.grad

    expected = seeded(program)
    with coop.budget("1MiB", checks=3, tiny=0, swap=swap, swap_least=0) as memory:
        actual = seeded(program)
    assert_same(expected, actual)
    assert memory.stats().evictions > 0
