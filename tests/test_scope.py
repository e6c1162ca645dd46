"""A scope is opened once, on one thread, one at a time. A call that is refused changes nothing."""

import threading

import pytest
import torch

import coop
from coop import _C


def train(steps: int = 1) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(256, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


METHODS = {name: getattr(torch.Tensor, name) for name in ("numpy", "data_ptr", "tolist")}
FUNCTIONS = {"compile": torch.compile, "run": threading.Thread.run, "resize": torch.UntypedStorage.resize_}


@pytest.fixture(autouse=True)
def nothing_is_left_half_done():
    """Afterwards no scope is open, torch is as it was, and a fresh budget works."""
    expected = train()
    yield
    assert not _C.is_open()
    assert not _C.this_thread_is_managed()
    assert {name: getattr(torch.Tensor, name) for name in METHODS} == METHODS
    now = {"compile": torch.compile, "run": threading.Thread.run, "resize": torch.UntypedStorage.resize_}
    assert now == FUNCTIONS
    with coop.budget("16MiB") as memory:
        actual = train()
        memory.check()
    assert memory.stats().peak > 0
    assert torch.equal(expected, actual)


def in_thread(work):
    """What the work raises on a second thread."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return raised[0] if raised else None


def test_an_unknown_policy_is_a_value_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown policy 'fifo'") as caught:
        coop.budget("1MiB", policy="fifo")
    for name in coop.POLICIES:
        assert name in str(caught.value)


def test_an_unknown_switch_is_a_type_error_that_lists_the_known_ones():
    with pytest.raises(TypeError, match=r"unknown switch 'windw'.*in_place.*window"):
        coop.budget("1MiB", windw=True)


@pytest.mark.parametrize("second", [lambda: coop.budget("1MiB"), coop.measure])
@pytest.mark.parametrize("first", [lambda: coop.budget("16MiB"), coop.measure])
def test_budgets_do_not_nest(first, second):
    with first() as memory:
        before = train()
        inner = second()
        with pytest.raises(RuntimeError, match="a coop budget is already in force; budgets do not nest"):
            inner.__enter__()
        with pytest.raises(RuntimeError, match="scope is not open"):
            inner.stats()
        assert torch.equal(before, train())  # the outer one is still active
        memory.check()
    with inner:  # and the inner one has not been used up
        train()


@pytest.mark.parametrize("started", ["before", "inside"])
def test_a_second_thread_cannot_open_another(started):
    may_start, may_end = threading.Event(), threading.Event()
    raised = []

    def second():
        may_start.wait(60)
        try:
            with coop.budget("1MiB"):
                pass
        except RuntimeError as error:
            raised.append(str(error))
        may_end.set()

    thread = threading.Thread(target=second)
    if started == "before":
        thread.start()
    with coop.budget("16MiB") as memory:
        if started == "inside":
            thread.start()
        may_start.set()
        assert may_end.wait(60)
        thread.join(60)
        train()
        memory.check()
    assert len(raised) == 1
    assert "already in force" in raised[0]


def test_of_two_threads_that_open_at_once_one_is_refused():
    barrier, outcomes = threading.Barrier(2), []

    def work():
        barrier.wait(60)
        try:
            with coop.budget("16MiB"):
                outcomes.append("opened")
                barrier.wait(60)
        except RuntimeError as error:
            outcomes.append(str(error))
            barrier.wait(60)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted("opened" if o == "opened" else "refused" for o in outcomes) == ["opened", "refused"]
    assert any("already in force" in outcome for outcome in outcomes)


def test_a_scope_on_a_second_thread_works():
    expected, actual = train(), []

    def work():
        with coop.budget("16MiB", checks=2):
            actual.append(train())

    assert in_thread(work) is None
    assert torch.equal(expected, actual[0])


def test_a_scope_is_left_on_the_thread_that_entered_it():
    with coop.budget("16MiB") as memory:
        error = in_thread(lambda: memory.__exit__(None, None, None))
        assert isinstance(error, RuntimeError)
        assert "on the thread that entered it" in str(error)
        train()
        memory.check()


def test_the_main_thread_cannot_leave_the_scope_of_another():
    memory = coop.budget("16MiB")
    entered, may_leave = threading.Event(), threading.Event()

    def work():
        with memory:
            entered.set()
            may_leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    with pytest.raises(RuntimeError, match="on the thread that entered it"):
        memory.__exit__(None, None, None)
    may_leave.set()
    thread.join(60)
    assert memory.stats().budget == 16 * 2**20


def test_leaving_twice_is_refused():
    with coop.budget("16MiB") as memory:
        train()
    stats = memory.stats()
    with pytest.raises(RuntimeError, match="this budget's scope has ended"):
        memory.__exit__(None, None, None)
    assert memory.stats() == stats


def test_leaving_twice_does_not_end_the_scope_that_is_open_now():
    with coop.budget("16MiB") as first:
        pass
    with coop.budget("16MiB") as second:
        with pytest.raises(RuntimeError, match="this budget's scope has ended"):
            first.__exit__(None, None, None)
        train()
        second.check()
    assert second.stats().peak > 0


def test_leaving_before_entering_is_refused():
    with pytest.raises(RuntimeError, match="this budget's scope is not open"):
        coop.budget("16MiB").__exit__(None, None, None)


def test_a_scope_is_entered_once():
    with coop.budget("16MiB") as memory:
        with pytest.raises(RuntimeError, match="entered before"):
            memory.__enter__()
        train()
    with pytest.raises(RuntimeError, match="entered before"):
        memory.__enter__()


@pytest.mark.parametrize("call", ["events", "check"])
def test_before_and_after_the_scope_only_statistics_are_told(call):
    memory = coop.budget("16MiB")
    with pytest.raises(RuntimeError, match="scope is not open"):
        memory.stats()
    with pytest.raises(RuntimeError, match="scope is not open"):
        getattr(memory, call)()
    with memory:
        train()
    assert memory.stats().allocations > 0
    with pytest.raises(RuntimeError, match="scope has ended"):
        getattr(memory, call)()
    for act in (memory.adopt, memory.pin, memory.unpin, memory.materialise, memory.commit, memory.state):
        with pytest.raises(RuntimeError, match="scope has ended"):
            act(torch.zeros(1))


def test_adopt_refuses_what_has_no_tensors():
    with coop.budget("16MiB") as memory:
        with pytest.raises(TypeError, match=r"adopt takes modules, optimizers, tensors .* not object"):
            memory.adopt(torch.zeros(16), object())
        train()


def test_an_exception_passes_through_and_ends_the_scope():
    with pytest.raises(KeyError, match="mine"), coop.budget("16MiB") as memory:
        train()
        raise KeyError("mine")
    assert memory.stats().ops > 0


@pytest.mark.parametrize("size", [1, 63])
def test_a_budget_smaller_than_a_block_is_a_value_error(size):
    with pytest.raises(ValueError, match=f"a budget of {size} B is less than one block of 64 B"):
        coop.budget(size)


@pytest.mark.parametrize("size", [64, 4096, 4097])
def test_a_budget_too_small_for_anything_is_out_of_budget_at_the_first_tensor(size):
    with pytest.raises(coop.OutOfBudget, match=r"Tip: a budget of \d+ bytes"), coop.budget(size):
        torch.zeros(4096)


def test_out_of_budget_leaves_the_scope_usable():
    with coop.budget("16MiB") as memory:
        with pytest.raises(torch.OutOfMemoryError, match=r"needs 64\.00 MiB in one piece"):
            torch.zeros(2**24)
        train()
        memory.check()
