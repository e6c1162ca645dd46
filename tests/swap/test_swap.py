"""Swapping: what cannot be recomputed leaves with its bytes, and training gives the same bits."""

import contextlib
import gc
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import coop
from same import assert_same, trained

ROWS = 64


class Training:
    """Parameters and Adam's moments are most of its memory."""

    def __init__(self, layers=8, width=256):
        torch.manual_seed(0)
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
        self.model = nn.Sequential(*parts)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.losses = []
        self.width = width

    def step(self):
        loss = self.model(torch.randn(ROWS, self.width)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())

    def left(self):
        return trained(self.model, self.optimizer, self.losses)


def run(steps=4, **how):
    training = Training(**how)
    for _ in range(steps):
        training.step()
    return training


@pytest.fixture(scope="module")
def plain():
    return run().left()


@pytest.fixture(scope="module")
def peak():
    with coop.measure() as memory:
        run()
    return memory.stats()


TIERS = pytest.mark.parametrize("tier", ["host", "disk"])


def tier_of(kind, folder):
    return "1GiB" if kind == "host" else coop.Disk(folder, limit="1GiB")


@TIERS
@pytest.mark.parametrize("share", [0.7, 0.5, 0.35])
def test_a_model_whose_sources_do_not_fit_trains_to_the_same_bits(tier, share, plain, peak, tmp_path):
    budget = int(share * peak.peak)
    sources = 3 * sum(p.nbytes for p in Training().model.parameters())  # with Adam's moments
    assert budget < sources
    with coop.budget(budget, swap=tier_of(tier, tmp_path), checks=2) as memory:
        training = run()
        memory.check()
        stats = memory.stats()
        assert_same(plain, training.left())
    assert stats.peak <= budget
    assert stats.swaps_out > 0 and stats.swaps_in > 0 and stats.swapped_in > 0 and stats.transfer_seconds > 0
    assert_same(plain, training.left())  # everything has left the arena at the end of the scope
    assert list(tmp_path.iterdir()) == []


def test_without_a_tier_it_does_not_fit(peak):
    with pytest.raises(coop.OutOfBudget), coop.budget(int(0.5 * peak.peak)):
        run()


# --- what a tier does not do ---------------------------------------------------------------------------------------------


@TIERS
def test_where_the_tier_is_full_recomputing_goes_on_alone(tier, tmp_path):
    """Most of its memory is activations. It trains in the budget with a tier, without one, and with
    one that fails."""

    def program():
        torch.manual_seed(0)
        model = nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(64, 64), nn.GELU())))
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for _ in range(3):
            loss = model(torch.randn(2048, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return trained(model, optimizer, losses)

    expected = program()
    with coop.measure() as memory:
        program()
    size = memory.stats().peak // 2
    full = 100 << 10 if tier == "host" else coop.Disk(tmp_path, limit=100 << 10)
    for swap in (None, full):
        with coop.budget(size, swap=swap, checks=2) as memory:
            assert_same(expected, program())
            stats = memory.stats()
        assert stats.replays > 0 and stats.swaps_out == 0
    with coop.budget(size, swap=tier_of(tier, tmp_path), checks=2):
        assert_same(expected, program())


@TIERS
def test_a_full_tier_and_sources_that_do_not_fit_are_out_of_budget(tier, peak, tmp_path):
    swap = 1 << 20 if tier == "host" else coop.Disk(tmp_path, limit=1 << 20)
    with pytest.raises(coop.OutOfBudget, match="sources"), coop.budget(int(0.4 * peak.peak), swap=swap) as memory:
        run()
    assert memory.stats().swaps_out > 0
    assert list(tmp_path.iterdir()) == []


def test_the_process_goes_on_after_an_exception_in_a_scope_that_swapped(plain, peak, tmp_path):
    with pytest.raises(RuntimeError, match="on purpose"), coop.budget(peak.peak // 2, swap=coop.Disk(tmp_path)):
        run(steps=2)
        raise RuntimeError("on purpose")
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert_same(plain, run().left())


@pytest.mark.parametrize("swap", [0, -1, "0B", "much", 1.5, "-3GiB"])
def test_what_is_no_size_is_refused(swap):
    with pytest.raises((ValueError, TypeError)):
        coop.budget("64MiB", swap=swap)
    with pytest.raises((ValueError, TypeError)):
        coop.Disk(".", limit=swap)


@pytest.mark.parametrize("where", ["nowhere", "file"])
def test_a_folder_that_cannot_be_written_to_is_refused_with_the_reason(where, tmp_path):
    folder = tmp_path / where
    if where == "file":
        folder.write_text("")
    with (
        pytest.raises(OSError, match=f"swap to in .*{where}.*(No such|Not a)"),
        coop.budget("64MiB", swap=coop.Disk(folder)),
    ):
        pass
    with coop.budget("64MiB"):  # the scope that did not open is not open
        pass


# --- what a file may suffer ----------------------------------------------------------------------------------------------


def open_file_in(folder):
    """The file has no name; the process has it open."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(str(folder)):
                return link
    raise AssertionError("there is no file")


def damaged(folder, how):
    size = open_file_in(folder).stat().st_size
    with open(open_file_in(folder), "r+b") as file:
        if how == "truncated":
            file.truncate(0)
        else:
            for at in range(0, size, 1000):
                file.seek(at)
                file.write(b"\xff\x00\xff")


@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_bytes_that_do_not_come_back_as_they_were_are_an_error_and_never_used(how, peak, tmp_path):
    lost = pytest.warns(UserWarning, match="what was swapped out is lost")
    with lost, coop.budget(peak.peak // 2, swap=coop.Disk(tmp_path)) as memory:
        training = run(steps=2)
        hog = torch.empty(peak.peak * 3 // 8, dtype=torch.uint8)
        assert "swapped" in {memory.state(p) for p in training.model.parameters()}
        damaged(tmp_path, how)
        del hog
        with pytest.raises(RuntimeError, match=r"did not come back as it was.*Tip"):
            for _ in range(3):
                training.step()
        memory.check()
        assert (torch.ones(1000) + 1).sum() == 2000  # the scope works
    readable = 0
    for parameter in training.model.parameters():
        with contextlib.suppress(RuntimeError):
            readable += bool(parameter.detach().isfinite().all())
    assert readable > 0


@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_what_can_be_recomputed_is_when_its_file_is_damaged(how, tmp_path):
    with coop.budget(4 << 20, swap=coop.Disk(tmp_path), checks=2, swap_out=1e12, swap_in=1e12) as memory:
        torch.manual_seed(0)
        x = torch.randn(256, 256)
        kept = []
        for _ in range(30):
            x = (x @ x).tanh()
            kept.append(x)
        assert memory.stats().swaps_out > 0
        damaged(tmp_path, how)
        total = torch.stack([k.sum() for k in kept])
    torch.manual_seed(0)
    x = torch.randn(256, 256)
    expected = []
    for _ in range(30):
        x = (x @ x).tanh()
        expected.append(x.sum())
    assert_same(torch.stack(expected), total)


# --- corners -------------------------------------------------------------------------------------------------------------


def pressure(budget, left):
    """All but so many bytes leave, if they can."""
    torch.empty(budget - left, dtype=torch.uint8)


def source(memory, *shape, value=1.0):
    """What cannot be recomputed."""
    return memory.commit(torch.full(shape, value))


def test_an_op_with_a_hundred_operands_outside_brings_them_all_back():
    with coop.budget(8 << 20, swap="1GiB", swap_least=1) as memory:
        parts = [source(memory, 64, 64, value=float(i)) for i in range(100)]
        pressure(8 << 20, 256 << 10)
        assert sum(memory.state(p) == "swapped" for p in parts) > 64
        assert torch.stack(parts).sum() == 64 * 64 * sum(range(100))


def test_a_copy_of_what_an_array_shares_may_be_outside_when_it_is_compared():
    with coop.budget(4 << 20, swap="1GiB") as memory:
        shared = torch.zeros(160, 160)
        array = shared.numpy()
        first = shared + 1
        pressure(4 << 20, 160 << 10)
        array[:] = 1
        second = shared + 1
        pressure(4 << 20, 160 << 10)
        assert memory.stats().swaps_out > 0
        assert (first == 1).all() and (second == 2).all()


@pytest.mark.filterwarnings("ignore:.*what was swapped out is lost")
def test_a_lost_tensor_that_is_used_again_is_an_error_again(tmp_path):
    with coop.budget(4 << 20, swap=coop.Disk(tmp_path)) as memory:
        lost = source(memory, 256, 256)
        pressure(4 << 20, 128 << 10)
        damaged(tmp_path, "truncated")
        for _ in range(3):
            with pytest.raises(RuntimeError):
                (lost * 2).sum()


@pytest.mark.filterwarnings("ignore:.*what was swapped out is lost")
@pytest.mark.parametrize("share", [0.8, 0.6, 0.45, 0.35])
def test_a_step_that_is_known_goes_on_beside_what_is_lost(share, peak, tmp_path):
    """A storage that is read ahead may be lost before an op needs it. Storages made from it may
    leave after that."""
    failed = 0
    with coop.budget(int(share * peak.peak), swap=coop.Disk(tmp_path), checks=2) as memory:
        training = Training()
        for _ in range(4):
            training.step()
        damaged(tmp_path, "overwritten")
        for _ in range(6):
            try:
                training.step()
            except RuntimeError as error:
                assert "lost" in str(error)
                failed += 1
        assert (torch.arange(100_000) * 2).sum() == 99_999 * 100_000
        assert memory.stats().swaps_out > 0
    assert failed


def test_a_tier_that_was_full_is_used_again_when_it_has_room():
    with coop.budget(4 << 20, swap=2 << 20) as memory:
        first = [source(memory, 256, 1000) for _ in range(5)]  # 1,000 KiB each
        with pytest.raises(coop.OutOfBudget):
            pressure(4 << 20, 500 << 10)
        outside = [p for p in first if memory.state(p) == "swapped"]
        assert len(outside) == 2
        del outside
        first = [p for p in first if memory.state(p) != "swapped"]
        gc.collect()
        pressure(4 << 20, 1500 << 10)
        assert any(memory.state(p) == "swapped" for p in first)
        assert all((p == 1).all() for p in first)


def test_a_forked_process_leaves_the_file_alone(tmp_path):
    with coop.budget(4 << 20, swap=coop.Disk(tmp_path), checks=2) as memory:
        kept = [source(memory, 256, 512, value=float(i)) for i in range(12)]  # 6 MiB
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                for _ in range(20):
                    kept.append(torch.empty(256, 512))  # no kernel: OpenMP does not survive a fork
            os._exit(0)
        os.waitpid(child, 0)
        for i, parameter in enumerate(kept):
            assert (parameter == i).all()


def test_a_plan_and_a_tier_go_together(plain):
    training = Training()
    plan = coop.plan.solve(coop.record(training.step), 1.0, "keep-all")
    with coop.budget(plan.peak, plan=plan, swap="1GiB", checks=2) as memory:
        training = run()
        assert_same(plain, training.left())
        assert memory.stats().planned_steps > 0
