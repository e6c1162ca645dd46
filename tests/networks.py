"""Small networks with enough activations that a budget forces evictions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from same import trained


class Block(nn.Module):
    """A transformer block written out."""

    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


def transformer(layers: int = 4, width: int = 64, dropout: float = 0.1) -> nn.Module:
    return nn.Sequential(*[Block(width, 4, dropout) for _ in range(layers)], nn.Linear(width, width))


def convnet(in_place: bool = True) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for out in (16, 16, 32, 32):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=in_place)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def tokens(batch: int = 4, length: int = 64, width: int = 64) -> torch.Tensor:
    return torch.randn(batch, length, width)


def train(
    model: nn.Module,
    batch: Callable[[], Any],
    optimizer: Callable[..., torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=1e-3),
    steps: int = 3,
) -> dict:
    """The plain loop: forward, backward, step."""
    opt = optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = model(batch()).float().square().mean()
        loss.backward()
        opt.step()
        losses.append(loss)
    return trained(model, opt, losses)
