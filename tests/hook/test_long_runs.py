"""What only shows after many steps: nothing accumulates, neither in training nor in evaluation."""

import itertools

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


def average(steps, others, memory=None):
    """Small and large states that are carried along without autograd, beside ops that cause
    evictions."""
    torch.manual_seed(0)
    small, large, walk = torch.zeros(256), torch.zeros(1 << 14), torch.zeros(256)
    value = torch.randn(1 << 14)
    looks = []  # with each op
    for step in range(steps):
        before = memory.stats() if memory else None
        for _ in range(others):
            value[:256].exp()
        small = 0.99 * small + 0.01 * value[:256]
        large = 0.9 * large + 0.1 * value
        walk = walk + torch.randn(256)
        if step % 100 == 99:
            other = value.repeat(16)
            del other
        if memory:
            after = memory.stats()
            looks.append((after.looks - before.looks) / (after.ops - before.ops))
            assert after.records < 6000
    return small, large, walk, looks


@pytest.mark.parametrize("policy", ["coop", "dtr", "lru"])
@pytest.mark.parametrize("checks", [0, 3])
def test_states_that_are_carried_along_keep_few_records(policy, checks):
    steps, others = (
        (150, 40) if checks else (3000, 0)
    )  # a state is cut after 4,096 ops; until then each return takes longer
    with torch.no_grad():
        *expected, _ = average(steps, others)
        with coop.budget("2MiB", policy, checks=checks) as memory:
            *actual, looks = average(steps, others, memory)
            stats = memory.stats()
    assert_same(expected, actual)
    assert stats.commits > 0
    assert max(looks) < 100
    assert max(looks[-20:]) < 20
    if not checks:
        assert stats.replays < steps


def decoding(tokens, memory=None):
    """Keys and values of a few layers, made longer with each token."""
    torch.manual_seed(0)
    layers = [[torch.randn(128, 128) / 12 for _ in range(4)] for _ in range(3)]
    caches = [(torch.zeros(0, 128), torch.zeros(0, 128)) for _ in layers]
    token = torch.randn(1, 128)
    looks = [0]
    for _ in range(tokens):
        hidden = token
        for number, (query, key, value, out) in enumerate(layers):
            keys, values = caches[number]
            keys, values = torch.cat([keys, hidden @ key]), torch.cat([values, hidden @ value])
            caches[number] = keys, values
            weights = torch.softmax(hidden @ query @ keys.T, -1)
            hidden = torch.tanh(hidden + weights @ values @ out)
        token = hidden.clone()
        if memory:
            looks.append(memory.stats().looks)
            assert memory.stats().records < 6000
    return [token, *(tensor for cache in caches for tensor in cache)], looks


def test_decoding_looks_at_no_more_records_with_the_last_token_than_with_the_first():
    with torch.no_grad():
        expected, _ = decoding(300)
        with coop.budget("64MiB") as memory:
            actual, looks = decoding(300, memory)
            assert memory.stats().evictions == 0
        peak = memory.stats().peak
        with coop.budget(int(peak * 0.6), checks=2):
            tight, _ = decoding(60)
        expected_tight, _ = decoding(60)
    assert_same(expected, actual)
    assert_same(expected_tight, tight)
    each = [after - before for before, after in itertools.pairwise(looks)]
    assert max(each) < 40 * 3 * 12  # ops of a token
