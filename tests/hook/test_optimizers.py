"""Optimizers and training loops inside a budget."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from networks import convnet, tokens, train, transformer
from same import same_in_budget, trained

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd momentum plain": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "sgd momentum fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam plain": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "adamw plain": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    same_in_budget(lambda: train(transformer(), tokens, OPTIMIZERS[name]), checks=1)


def test_gradient_accumulation_and_clipping_and_schedule():
    def program():
        model = transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4)
        losses, norms = [], []
        for _ in range(3):
            for _ in range(3):
                loss = model(tokens()).square().mean() / 3
                loss.backward()
                losses.append(loss)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return trained(model, optimizer, losses), norms, schedule.get_last_lr()

    same_in_budget(program)


def test_gradients_set_to_zero_instead_of_none():
    def program():
        model = transformer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            loss = model(tokens()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return trained(model, optimizer, losses)

    same_in_budget(program)


def test_step_inside_backward_hooks():
    def program():
        model = transformer()
        optimizers = {p: torch.optim.Adam([p], lr=1e-3, foreach=False) for p in model.parameters()}

        def step(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        losses = []
        for _ in range(3):
            loss = model(tokens()).square().mean()
            loss.backward()
            losses.append(loss.detach())
        return losses, [p.detach().clone() for p in model.parameters()]

    same_in_budget(program)


def test_lbfgs():
    def program():
        model = transformer(layers=2)
        data = tokens()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        losses = []

        def closure():
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            losses.append(loss.detach().clone())
            return loss

        model.eval()
        optimizer.step(closure)
        return losses, [p.detach().clone() for p in model.parameters()]

    same_in_budget(program)


def test_exponential_moving_average_of_parameters():
    def program():
        model = transformer()
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            loss = model(tokens()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            losses.append(loss)
        return trained(model, optimizer, losses), [p.clone() for p in average.parameters()]

    same_in_budget(program)


def test_tied_and_frozen_weights_and_adapters():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(100, 64)
            self.body = transformer()
            self.body.requires_grad_(False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)
            self.head = nn.Linear(64, 100, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            x = self.embed(ids)
            return self.head(self.body(x + self.up(self.down(x))))

    def program():
        model = Adapted()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        losses = []
        for _ in range(3):
            ids = torch.randint(100, (4, 64))
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            losses.append(loss)
        return trained(model, optimizer, losses)

    same_in_budget(program)


@pytest.mark.parametrize("in_place", [True, False])
def test_batch_norm_trains_and_evaluates_in_turn(in_place):
    def program():
        model = convnet(in_place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses, evaluated = [], []
        for step in range(4):
            data = torch.randn(8, 3, 16, 16)
            model.train(step % 2 == 0)
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
            model.eval()
            with torch.no_grad():
                evaluated.append(model(data).sum())
            with torch.inference_mode():
                evaluated.append(model(data).sum().clone())
        return trained(model, optimizer, losses), evaluated

    same_in_budget(program)


def test_weight_norm_and_spectral_norm():
    def program():
        model = nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(64, 256)),
            nn.ReLU(),
            nn.utils.parametrizations.spectral_norm(nn.Linear(256, 256)),
            nn.Tanh(),
            torch.nn.utils.spectral_norm(nn.Linear(256, 256)),
            nn.ReLU(inplace=True),
            nn.Linear(256, 64),
        )
        return train(model, lambda: torch.randn(256, 64))

    same_in_budget(program)
