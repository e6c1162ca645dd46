"""Swapping: what cannot be recomputed leaves with its bytes, and training gives the same bits."""

import gc

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
    assert_same(plain, training.left())  # all of it has left the arena with the scope
    assert list(tmp_path.iterdir()) == []


def test_without_a_tier_it_does_not_fit(peak):
    with pytest.raises(coop.OutOfBudget), coop.budget(int(0.5 * peak.peak)):
        run()
