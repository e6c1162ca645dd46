"""Transfers ahead of the program: what a repeated step needs is resident in time, in every policy,
to the same bits. Failures cost time, not bits."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from test_swap import Training, run

import coop
from same import assert_same


@pytest.fixture(scope="module")
def plain():
    return run(steps=8).left()


@pytest.fixture(scope="module")
def peak():
    with coop.measure() as memory:
        run()
    return memory.stats().peak


@pytest.mark.parametrize("policy", ["coop", "delta", "dtr", "lru"])
def test_a_step_that_repeats_is_known(policy, plain, peak):
    with coop.budget(peak // 2, policy, swap="1GiB", checks=2) as memory:
        training = Training()
        for _ in range(3):
            training.step()
        before = memory.stats()
        for _ in range(5):
            training.step()
        after = memory.stats()
        assert_same(plain, training.left())
    assert after.peak <= peak // 2
    assert after.prefetch_hits > before.prefetch_hits  # how many depends on timing: the simulator tests the number
    assert after.hidden_seconds > 0


def test_without_foresight_it_is_the_same_bits(plain, peak):
    with coop.budget(peak // 2, swap="1GiB", checks=2, foresee=False):
        assert_same(plain, run(steps=8).left())


def test_a_program_that_changes_its_mind_is_never_wrong(peak):
    """Layers skipped at random, batches of several sizes, a pass without gradients in between."""

    def program():
        torch.manual_seed(0)
        training = Training()
        random = torch.Generator().manual_seed(1)
        for _ in range(10):
            rows = 16 * int(torch.randint(1, 5, (), generator=random))
            x = torch.randn(rows, training.width)
            for part in training.model:
                if torch.rand((), generator=random) < 0.8:
                    x = part(x)
            loss = x.square().mean()
            if loss.requires_grad:
                loss.backward()
                training.optimizer.step()
                training.optimizer.zero_grad()
            training.losses.append(loss.detach())
            if torch.rand((), generator=random) < 0.3:
                with torch.no_grad():
                    training.losses.append(training.model(torch.randn(8, training.width)).mean())
        return training.left()

    expected = program()
    with coop.budget(peak // 2, swap="1GiB", checks=2) as memory:
        assert_same(expected, program())
    assert memory.stats().swaps_in > 0


SCRIPT = """
import signal, sys, time, resource
sys.path[:0] = {paths!r}
import torch, coop
from test_swap import Training
{before}
with coop.budget({budget}, swap=coop.Disk({folder!r})) as memory:
    training = Training()
    for step in range({steps}):
        training.step()
        print("step", float(training.losses[-1]), memory.stats().swaps_out, flush=True)
"""


def script(tmp_path, peak, steps, before=""):
    return textwrap.dedent(SCRIPT).format(
        paths=[path for path in sys.path if path], budget=peak // 2, folder=str(tmp_path), steps=steps, before=before
    )


def test_a_process_that_is_killed_leaves_no_file(tmp_path, peak):
    process = subprocess.Popen([sys.executable, "-c", script(tmp_path, peak, 10**6)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for _ in range(3):
        line = process.stdout.readline()
    assert line.startswith("step") and int(line.split()[2]) > 0
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_a_tier_that_is_full(tmp_path, peak):
    """The system allows no file above a megabyte."""
    limit = (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script(tmp_path, peak, 3, limit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "OutOfBudget" in done.stderr and "Tip" in done.stderr
    assert list(tmp_path.iterdir()) == []
    enough = script(tmp_path, 4 * peak, 3, limit)
    done = subprocess.run([sys.executable, "-c", enough], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 3


def test_a_forked_process_may_leave_the_scope(tmp_path, peak):
    """Its copy of the scope has no transfer threads. (It runs no kernel: OpenMP does not survive a
    fork.)"""
    forked = script(tmp_path, peak, 3) + textwrap.indent(
        "import os\nchild = os.fork()\nif child:\n    assert os.waitpid(child, 0)[1] == 0\nelse:\n    signal.alarm(60)\n",
        "    ",
    )
    program = forked + "print('left', training.model[0].bias[0].item(), flush=True)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    left = [line for line in done.stdout.splitlines() if line.startswith("left")]
    assert len(left) == 2 and left[0] == left[1]
