"""Rule 8: a sample of tests/faults/interrupts.py."""

import pytest
from interrupts import WAYS, hunt


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_was_interrupted_runs_again_to_the_same_bits(way):
    found = hunt(25, seed=7, **WAYS[way])
    assert found["interrupts"] >= 5 and found["evictions"] > 0
