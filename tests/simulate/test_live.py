"""The player predicts what happens: a recorded step, played and trained inside the same budgets."""

import pytest
import torch
from torch import nn

import coop
from coop.simulate import Player


def job():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    batch = torch.randn(16, 64, 64)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return (model, optimizer, batch), step


@pytest.mark.parametrize("ratio", [0.7, 0.5])
def test_a_step_is_played_as_it_is_trained(ratio):
    _, step = job()
    step()  # the optimizer has its moments
    player = Player(coop.record(step))
    budget = int(ratio * player.peak)
    played = player.play(budget, steps=3)

    state, step = job()
    with coop.budget(budget) as memory:
        memory.adopt(*state)
        step()
        before = memory.stats()
        for _ in range(3):
            step()
        after = memory.stats()
    # Shares of time depend on how busy the machine is. Evictions hardly do.
    for name in ("evictions", "evicted_bytes", "rematerialisations"):
        trained = getattr(after, name) - getattr(before, name)
        assert trained > 30
        assert getattr(played.stats, name) == pytest.approx(trained, rel=0.25), name
