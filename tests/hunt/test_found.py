"""What the machine has found, shrunk: each differed from a plain run, or failed, before it was
fixed."""

from typing import Any

from hunt.script import *  # noqa: F403  what scripts of the machine see
from hunt.script import (
    BLOCKS,
    F,
    Machine,
    backward,
    checkpointed,
    differences,
    fit,
    flt,
    link,
    mat,
    on_thread,
    read,
    torch,
    train,
)


def assert_same_bits(program: Any, size: tuple[int, int] = (32, 32), **settings: Any) -> None:
    found = differences(program, size, 0, 1, **{"ratio": 0.0, **settings})
    assert found == {"without a limit": "", "in a budget": ""}


def test_a_replay_does_not_set_the_thread_count_of_a_new_thread() -> None:
    """On a new thread products run with as many threads as MKL likes, until the first kernel asks
    PyTorch's number."""

    def program(m: Machine) -> None:
        r = m.r
        m.put(0, torch.cdist(mat(r[0])[:9], mat(r[0])[:9]))

        @on_thread
        def work() -> None:
            train(m, 0, 0, 0, 0)

    assert_same_bits(program, checks=3, tiny=0)


def test_lists_are_read_without_a_call_that_a_mode_sees() -> None:
    def program(m: Machine) -> None:
        r = m.r
        m.put(0, F.one_hot(torch.arange(7), 7))
        with BLOCKS["mode_raises"](m, 10):
            m.put(0, torch.atan2(r[0].float(), fit(r[1], r[0])))
            with BLOCKS["inference"](m, 0):
                read(m, 0, 0, 0, 0)

    assert_same_bits(program)


def test_a_mask_that_autograd_has_marked_comes_back() -> None:
    def program(m: Machine) -> None:
        r = m.r
        m.put(4, r[0] > 0)
        m.put(3, r[4].conj())
        checkpointed(m, 0, 0, 7, 0)
        torch._foreach_copy_([r[3]], [fit(r[7], r[3])])
        m.put(0, F.gelu(flt(r[4])))

    assert_same_bits(program, checks=3)


def test_copies_of_a_result_with_undefined_padding_are_not_called_wrong() -> None:
    def program(m: Machine) -> None:
        r = m.r
        link(m, 0, 0, 5, 0)
        with BLOCKS["pack_hooks"](m, 2):
            m.put(3, r[5].float().mean())
            chances = fit(r[3].float(), torch.empty(12, 2, 5)).log_softmax(2)
            m.put(0, F.ctc_loss(chances, torch.ones(2, 4, dtype=torch.long), (12, 12), (3, 4)))

    assert_same_bits(program, (16, 16), checks=2, tiny=64)


def test_an_op_that_finds_no_room_lets_go_of_foreign_operands_once() -> None:
    """Its need is found by running it beyond the budget. Only the op refers to the foreign tensor
    then."""

    def program(m: Machine) -> None:
        r = m.r
        m.put(4, r[0].sort(dim=-1)[0])
        m.put(1, torch.func.grad(lambda v: (v.tanh() * fit(r[4].float(), v)).sum())(r[0].float()))
        m.put(2, torch.from_dlpack(r[0].detach().clone()))
        backward(m, 0, 0, 0, 1)
        link(m, 2, 0, 0, 1)
        m.put(0, F.mse_loss(r[1].float(), fit(r[2].float(), r[1])))

    assert_same_bits(program)
