"""Plans that page, followed by a live program: to a file, to the same bits, and without the file
when it fails."""

import tempfile

import pytest
import torch

import coop
from coop.plan import graph_of, peak_of, solve
from coop.trace.device import load

DEVICE = """
gpu = false
alignment = 64
launch = 1e-6
bandwidth = 1e10
watts = 10.0
[flops]
float32 = 1e11
[paging]
in_latency = 1e-9
in_bandwidth = 1e12
out_latency = 1e-9
out_bandwidth = 1e12
watts = 0.001
"""


def training(layers=6, width=256, batch=256):
    torch.manual_seed(0)
    parts = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(layers)]
    model = torch.nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(batch, width)

    def step():
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan that pages: transfers cost almost nothing, computing does."""
    file = tmp_path_factory.mktemp("device") / "desk.toml"
    file.write_text(DEVICE)
    _, step = training()
    graph = graph_of(coop.record(step))
    found = solve(graph, 0.75, "poet", time_limit=5, device=load(file))
    assert found.about["paged_out"] > 0 and found.peak < 0.76 * peak_of(graph)
    return found


@pytest.fixture(scope="module")
def eager():
    model, step = training()
    return [step() for _ in range(4)], [p.detach().clone() for p in model.parameters()]


def run(plan, checks=2):
    with coop.budget(int(1.02 * plan.peak), plan=plan, checks=checks) as memory:
        model, step = training()
        losses = [step() for _ in range(4)]
        stats = memory.stats()
        losses = [loss.clone() for loss in losses]
        parameters = [p.detach().clone() for p in model.parameters()]
    return losses, parameters, stats


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_was_paged_out_comes_back_to_the_bit(plan, eager, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    losses, parameters, stats = run(plan)
    assert same(losses, eager[0]) and same(parameters, eager[1])
    assert stats.planned_steps >= 3 and stats.swaps_in > 0 and stats.swapped_out >= stats.swapped_in > 0
    assert stats.peak <= stats.budget
    assert list(tmp_path.iterdir()) == []  # not even while it was there


def test_where_nothing_can_be_written_it_is_recomputed(plan, eager, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    losses, parameters, stats = run(plan)
    assert same(losses, eager[0]) and same(parameters, eager[1])
    assert stats.swaps_out == stats.swaps_in == 0 and stats.replays > 0
