"""A broken rule is an exception, wherever it is found. There are no false alarms."""

import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F

import coop
from same import assert_same, seeded

RESHAPED = {
    "unfold": lambda x: F.unfold(x, 3),
    "fold": lambda x: F.fold(F.unfold(x, 3).tanh(), (16, 16), 3),
    "mse_loss": lambda x: F.mse_loss(x, x.roll(1)),
    "huber_loss": lambda x: F.huber_loss(x, x.roll(1)),
}


@pytest.mark.parametrize("name", RESHAPED)
@pytest.mark.parametrize("checks", [2, 3])
def test_results_that_a_kernel_makes_smaller_come_back(name, checks):
    """The rest of their storage is undefined, and may come back with any bytes."""

    def program():
        x = torch.randn(2, 8, 16, 16)
        results = [RESHAPED[name](x * i) for i in range(6)]
        torch.randn(100_000).exp()
        return [r + 1 for r in results]

    expected = seeded(program)
    with coop.budget("790KiB" if checks == 2 else "16MiB", checks=checks, tiny=0) as memory:
        actual = seeded(program)
        memory.check()
    assert_same(expected, actual)
    assert memory.stats().evictions > 0


def test_a_rule_that_is_broken_while_a_tensor_dies_is_told_at_the_next_op():
    """Nothing can be thrown there. An op that gives other bytes when it runs again stands for any
    error of the engine."""
    script = """
        import torch, coop

        library = torch.library.Library("aten", "IMPL")
        calls = []

        def wrong(x):  # another result with each call
            calls.append(None)
            return x * 0 + len(calls)

        library.impl("hardswish", wrong, "CPU")
        try:
            with coop.budget("4MiB", checks=2) as memory:
                x = torch.randn(300, 300)
                y = torch.ops.aten.hardswish(x)
                torch.empty(3_700_000, dtype=torch.uint8)
                assert memory.state(y) == "evicted"
                try:
                    y + 1
                except RuntimeError as error:
                    print("told:", error)
                del x, y
                torch.randn(10)
                memory.check()
        except RuntimeError as error:
            print("told at the end:", error)
        print("still here")
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert "told: rule 4: a storage came back with other bytes" in run.stdout
    assert run.stdout.endswith("still here\n")
