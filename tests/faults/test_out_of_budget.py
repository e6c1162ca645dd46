"""Rule 8: a budget that grows by a little runs out at one op after the other. Wherever it does, the
scope continues to the same bits."""

import pytest
import torch
from interrupts import Training, measured

import coop
from networks import tokens
from same import assert_same


class Small(Training):
    """The same with one example: what a program falls back to."""

    def __init__(self):
        super().__init__()
        self.batch = tokens(1)


def trained(kind):
    training = kind()
    for _ in range(2):
        training.step()
    return training.result()


@pytest.mark.slow
def test_wherever_there_is_no_room_the_scope_goes_on():
    expected, small, peak = trained(Training), trained(Small), measured()
    failed, ran = set(), 0
    for size in range(peak // 20, int(0.56 * peak), peak // 40):
        with coop.budget(size, checks=1) as memory:
            try:
                assert_same(expected, trained(Training), f"in {size} bytes: ")
                ran += 1
            except coop.OutOfBudget as error:
                failed.add(str(error).split()[0])
            memory.check()
            try:
                assert_same(small, trained(Small), f"with a small batch in {size} bytes: ")
            except coop.OutOfBudget as error:
                failed.add(str(error).split()[0])
            memory.check()
            assert torch.ones(64).add(1).sum().item() == 128
    assert len(failed) >= 3 and ran >= 1, (failed, ran)
