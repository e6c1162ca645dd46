"""Rule 8: a sample of tests/faults/interrupts.py."""

import linecache
import signal
import sys
from pathlib import Path

import pytest
import torch
from interrupts import WAYS, hunt

import coop


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_was_interrupted_runs_again_to_the_same_bits(way):
    found = hunt(25, seed=7, **WAYS[way])
    assert found["interrupts"] >= 5 and found["evictions"] > 0


CALLS_NOTHING = {"try:", "return self"}
"""Python looks for interrupts after calls, at the start of functions and at the end of a loop's
round: never at these lines."""


def test_an_interrupt_while_a_scope_opens_or_ends_leaves_none_open():
    """Ctrl-C at each line of coop's own that runs then."""
    number = torch.Tensor.numpy, torch.from_dlpack
    lines = at = 0

    def trace(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(here):
            return None
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() not in CALLS_NOTHING:
            lines += 1
            if lines == at:
                signal.raise_signal(signal.SIGINT)
        return trace

    here, before = str(Path(coop.__file__).parent), sys.gettrace()
    while lines >= at:
        at, lines = at + 1, 0
        scope = coop.budget("1MiB")
        try:
            sys.settrace(trace)
            with scope:
                pass
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert not coop._C.is_open(), f"at line {at}"
        assert (torch.Tensor.numpy, torch.from_dlpack) == number
    assert at > 50
