"""What only shows after many steps: nothing may pile up, neither in training nor in evaluation."""

import numpy as np
import pytest
import torch
from torch import nn

import coop
from same import assert_same

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, 1e-3),
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
}


def training(optimizer, steps, sources=None, memory=None):
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.Tanh(), nn.Dropout(0.1)) for _ in range(6)])
    optimizer = OPTIMIZERS[optimizer](net.parameters())
    for _ in range(steps):
        loss = net(torch.randn(160, 96)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if memory:
            sources.append(memory.stats().sources)
    return loss.detach().clone(), [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("policy", coop.POLICIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_dropped_gradients_do_not_pile_up(optimizer, policy):
    expected = training(optimizer, 25)
    with coop.measure() as memory:
        training(optimizer, 3)
    with coop.budget(int(memory.stats().peak * 0.6), policy) as memory:
        sources = []
        actual = training(optimizer, 25, sources, memory)
        assert memory.stats().evictions > 0
    assert_same(expected, actual)
    assert sources[-1] <= sources[3]


def predictions(batches):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
    kept = []
    with torch.no_grad():
        for _ in range(batches):
            batch = torch.from_numpy(rng.standard_normal((64, 128)).astype(np.float32))
            kept.append(net(batch).softmax(-1)[:, :4].clone())
    return kept


def accumulated(steps):
    total = torch.zeros(64, 256)
    for i in range(steps):
        total = torch.cat([total[8:], torch.tensor([float(i)] * 2048).view(8, 256)])
    return total


@pytest.mark.parametrize(("program", "room"), [(predictions, "1MiB"), (accumulated, "512KiB")])
def test_batches_do_not_pile_up_behind_what_was_made_from_them(program, room):
    with coop.measure() as memory:
        expected = program(200)
    assert memory.stats().peak < 1 << 20
    with coop.budget(room):
        assert_same(expected, program(200))
