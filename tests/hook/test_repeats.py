"""An op that would not give the same bits again is not run again."""

import threading

import pytest
import torch

import coop
from same import assert_same, same_in_budget

ADDITIONS = 200_000


def scattered(threads, *, deterministic=False, additions=ADDITIONS, dtype=torch.float32):
    """Sums of many floats in a few places, and the state of the result under pressure."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    try:
        with coop.budget("64MiB") as memory:
            index = torch.randint(0, 500, (additions,))
            values = torch.rand(additions).mul(9).to(dtype)
            sums = torch.zeros(500, dtype=dtype).index_put((index,), values, accumulate=True)
            before = sums.clone()
            memory.commit(before)
            with pytest.raises(coop.OutOfBudget):
                torch.empty(64 << 20, dtype=torch.uint8)
            state = memory.state(sums)
            assert torch.equal(before, sums)
            return state
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(2)


def test_sums_in_any_order_are_kept():
    assert scattered(2) == "source"


@pytest.mark.parametrize(
    "how",
    [
        {"threads": 1},
        {"threads": 2, "deterministic": True},
        {"threads": 2, "additions": 1000},
        {"threads": 2, "dtype": torch.int64},
    ],
    ids=["one thread", "deterministic", "few", "integers"],
)
def test_sums_in_one_order_are_made_again(how):
    assert scattered(**how) == "evicted"


def test_gradients_of_an_embedding_by_index_are_of_one_value():
    """Backward of an index adds to the same rows in any order."""

    def program():
        torch.set_num_threads(1)  # on two threads, plain PyTorch has no single value either
        table = torch.randn(50, 64, requires_grad=True)
        rows = table[torch.randint(0, 50, (5000,))]
        (gradient,) = torch.autograd.grad(rows.square().sum(), table, create_graph=True)
        return gradient.sin().sum(), gradient

    same_in_budget(program, ratios=(0.7,))


def test_least_squares_are_kept():
    with coop.budget("16MiB", tiny=0) as memory:
        solution = torch.linalg.lstsq(torch.randn(300, 200), torch.randn(300, 50)).solution
        before = solution.clone()
        memory.commit(before)
        with pytest.raises(coop.OutOfBudget):
            torch.empty(16 << 20, dtype=torch.uint8)
        assert memory.state(solution) == "source"
        assert_same(before, solution.clone())


def test_settings_that_choose_kernels_are_as_they_were():
    """A float32 product that was computed in 16 bits is recomputed in 16 bits, where the processor
    can. Settings do not change."""

    def program():
        a, b = torch.randn(256, 256), torch.randn(256, 256)
        results = []
        for precision in ("medium", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            results.append(a @ b)
        torch.set_float32_matmul_precision("highest")
        results += [r + 1 for r in results]
        return results, torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision

    try:
        expected = program_with_seed(program)
        with coop.budget("64MiB", checks=3, tiny=0):
            actual = program_with_seed(program)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert_same(expected, actual)


def test_kernels_of_a_new_thread_use_as_many_threads_as_plainly():
    """On a new thread, PyTorch sets the number of threads when it first asks for it. Products of
    matrices do not ask."""

    def program():
        x, w = torch.randn(7, 333), torch.randn(333, 9)
        made = []

        def work():
            made.append(x.tanh() @ w)
            made.append(made[0].sigmoid() @ made[0].t())
            made.append(torch.randn(1 << 16).exp().sum())  # asks
            made.append(x.tanh() @ w)

        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        return made + [one + 1 for one in made]  # recomputed on this thread

    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            expected = program_with_seed(program)
            for settings in ({}, {"checks": 3, "tiny": 0}):
                with coop.budget("64MiB", **settings) as memory:
                    assert_same(expected, program_with_seed(program), f"{count} threads, {settings}")
                assert not settings or memory.stats().recompute_seconds > 0
                assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


def program_with_seed(program):
    torch.manual_seed(0)
    return program()
