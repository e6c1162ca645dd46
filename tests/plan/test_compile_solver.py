"""torch.compile with coop's solver: the same gradients, and a peak that goes up with the budget and
never down."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._functorch import config

from coop import _C
from coop.plan.running.compile_solver import compile_solver

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch.compile's own


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.projections(self.first(x)).view(batch, time, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + nn.functional.dropout(self.out(y), self.dropout)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm2(self.second(torch.relu(self.norm(self.first(x))))))


def perceptron():
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU()))), torch.randn(512, 64)


def transformer(dropout=0.0):
    return nn.Sequential(*(Block(32, dropout) for _ in range(2))), torch.randn(8, 32, 32)


def convolutions():
    return nn.Sequential(*(Residual(8) for _ in range(3))), torch.randn(4, 8, 16, 16)


def step(model, x):
    return model(x).square().mean()


def gradients(function, model, x):
    """Also returns the most bytes that were allocated at once."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    tally = _C.Tally()
    tally.listen()
    try:
        tally.begin()
        function(model, x).backward()
        most = tally.most
    finally:
        tally.stop()
    return [parameter.grad for parameter in model.parameters()], most


def compiled(budget, solver, model, x, backend="aot_eager"):
    """Gradients and peak of its second call: the first one compiles."""
    torch._dynamo.reset()
    with config.patch(activation_memory_budget=budget, activation_memory_budget_solver=solver):
        function = torch.compile(step, backend=backend)
        gradients(function, model, x)
        return gradients(function, model, x)


@pytest.mark.parametrize(
    ("make", "budgets"),
    [
        (perceptron, (0.1, 0.2, 0.5, 1.0)),
        (transformer, (0.1, 0.3, 1.0)),
    ],
    ids=["perceptron", "transformer"],
)
def test_the_peak_goes_up_with_the_budget_and_the_gradients_are_the_same(make, budgets):
    torch.manual_seed(0)
    model, x = make()
    expected, eager = gradients(step, model, x)
    solver = compile_solver("chen-greedy", time_limit=1.0)
    peaks = []
    for budget in budgets:
        found, peak = compiled(budget, solver, model, x)
        assert all(map(torch.equal, found, expected))
        peaks.append(peak)
    assert peaks == sorted(peaks)
    assert peaks[0] < 0.75 * peaks[-1] and peaks[-1] <= eager


def test_a_low_budget_needs_less_than_with_the_solver_of_torch():
    torch.manual_seed(0)
    model, x = perceptron()
    ours, theirs = (
        compiled(0.1, solver, model, x)[1] for solver in (compile_solver("chen-greedy", time_limit=1.0), "dp")
    )
    assert ours < 0.7 * theirs


def test_dropout_is_not_drawn_again():
    torch.manual_seed(0)
    model, x = transformer(dropout=0.3)
    expected, _ = gradients(step, model, x)
    found, _ = compiled(0.05, compile_solver("chen-greedy", time_limit=1.0), model, x)
    assert all(map(torch.equal, found, expected))


def test_auto_as_in_the_documentation():
    torch.manual_seed(0)
    model, x = perceptron()
    expected, eager = gradients(step, model, x)
    torch._dynamo.reset()
    with config.patch(
        activation_memory_budget=1.0, activation_memory_budget_solver="dp"
    ):  # and restores the old setting
        torch._functorch.config.activation_memory_budget = 0.1
        torch._functorch.config.activation_memory_budget_solver = compile_solver("auto", time_limit=2.0)
        compiled_step = torch.compile(step, backend="aot_eager")
        gradients(compiled_step, model, x)
    found, peak = gradients(compiled_step, model, x)
    assert all(map(torch.equal, found, expected)) and peak < 0.6 * eager


def test_shapes_may_be_symbolic():
    torch.manual_seed(0)
    model, x = perceptron()
    torch._dynamo.reset()
    with config.patch(
        activation_memory_budget=0.2, activation_memory_budget_solver=compile_solver("chen-greedy", time_limit=1.0)
    ):
        function = torch.compile(step, backend="aot_eager", dynamic=True)
        for rows in (512, 300):
            found, _ = gradients(function, model, x[:rows])
            assert all(map(torch.equal, found, gradients(step, model, x[:rows])[0]))


def test_equal_solvers_have_the_same_place_in_the_caches_of_torch():
    one, same, other = compile_solver("auto"), compile_solver("auto"), compile_solver("auto", time_limit=3.0)
    assert one == same and hash(one) == hash(same) and one.uuid() == same.uuid() != other.uuid()
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert pickle.dumps(one.uuid())


def test_an_unknown_planner_is_refused():
    with pytest.raises(ValueError, match=r"there is no planner 'magic'; the known ones are auto, .*keep-all"):
        compile_solver("magic")
    with pytest.raises(ValueError, match="a time limit is a number of seconds above 0, not 0"):
        compile_solver(time_limit=0)


@pytest.mark.slow
def test_the_peak_goes_up_with_the_budget_with_inductor():
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block(64) for _ in range(3))), torch.randn(8, 64, 64)
    expected, _ = gradients(step, model, x)
    peaks = []
    for budget in (0.05, 0.3, 0.6, 1.0):
        found, peak = compiled(budget, compile_solver("chen-greedy", time_limit=3.0), model, x, "inductor")
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
        peaks.append(peak)
    assert peaks == sorted(peaks) and peaks[0] < 0.75 * peaks[-1]
