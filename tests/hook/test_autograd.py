"""Autograd beyond a plain backward pass: custom functions, hooks, checkpoints, higher derivatives,
functional transforms, autocast, torch.compile."""

import pytest
import torch
from by_hand import step, wide
from torch import nn

import coop
from networks import tokens, train, transformer
from same import assert_same, same_in_budget, trained


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


class InPlaceScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


def test_custom_autograd_functions():
    def program():
        w = nn.Parameter(wide() / 16)
        return step(lambda: InPlaceScale.apply(Cube.apply(wide() @ w) @ w).tanh().square().mean(), [w])

    same_in_budget(program)


def test_saved_tensor_hooks():
    def program():
        w = nn.Parameter(wide() / 16)

        def loss():
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
                y = (wide() @ w).tanh()
            with torch.autograd.graph.save_on_cpu():
                y = (y @ w).sigmoid()
            return (y @ w).square().mean()

        return step(loss, [w])

    same_in_budget(program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_torch_checkpoint_inside_a_budget(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = transformer()

        def forward(self, x):
            x = x.requires_grad_()
            for layer in self.inner:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    same_in_budget(lambda: train(Checkpointed(), lambda: tokens(8)), ratios=(0.8, 0.7))


def test_double_backward_gradient_penalty():
    def program():
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Softplus(), nn.Linear(256, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            x = torch.randn(256, 64, requires_grad=True)
            score = model(x)
            (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            loss = score.mean() + (grad.norm(dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        return trained(model, optimizer, losses)

    same_in_budget(program)


def test_torch_func_grad_and_vmap():
    def program():
        from torch.func import functional_call, grad, vmap

        model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 1))
        parameters = {k: v.detach() for k, v in model.named_parameters()}

        def loss(parameters, x):
            return functional_call(model, parameters, (x.unsqueeze(0),)).square().mean()

        results = []
        for _ in range(2):
            grads = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(48, 64))
            parameters = {k: p - 0.1 * grads[k].mean(0) for k, p in parameters.items()}
            results.append({k: g.square().mean() for k, g in grads.items()})
        return results, parameters

    same_in_budget(program)


def test_autocast_bf16():
    def program():
        model = transformer(layers=3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(tokens()).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        return trained(model, optimizer, losses)

    same_in_budget(program)


def test_compiled_function_runs_eagerly_inside_the_scope():
    model = transformer()
    x = tokens()
    torch.manual_seed(0)
    expected = model(x)
    with coop.budget("64MiB"):
        with pytest.warns(UserWarning, match="torch.compile has no effect"):
            compiled = torch.compile(model)
        torch.manual_seed(0)
        actual = compiled(x)
    assert_same(expected.detach(), actual.detach())
