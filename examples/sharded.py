"""A Llama that is trained by many ranks, each with a part of it (FSDP2). Plain PyTorch: nothing in
here knows of coop.

coop trace examples/sharded.py --shapes --world-size 64 -o rank0.trace
coop simulate rank0.trace --budget 40GiB
torchrun --nproc-per-node 2 examples/sharded.py --small
"""

import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Of Llama 2, 7B."""

    words: int = 32_000
    layers: int = 32
    width: int = 4096
    heads: int = 32
    inner: int = 11_008
    context: int = 4096


SMALL = Shape(words=256, layers=4, width=64, heads=4, inner=176, context=64)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention, self.before_mlp = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.merge = nn.Linear(shape.width, shape.width, bias=False)
        self.gate, self.up = (nn.Linear(shape.width, shape.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.merge(self.attention(self.before_attention(x), turns))
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attention(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = turned(q, turns), turned(k, turns)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary positions: halves of each head are turned by an angle that grows with the position."""
    cos, sin = turns[0].to(x.dtype), turns[1].to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)
        half = shape.width // shape.heads // 2
        angles = torch.outer(torch.arange(shape.context), 10_000.0 ** (-torch.arange(half) / half))
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x, self.turns[:, : words.shape[1]])
        return self.head(self.norm(x))


def train(shape: Shape, batch: int, steps: int, device: torch.device, *, keep: bool = False) -> list[float]:
    """The loss of each step on this rank. `keep`: gathered parameters stay until the backward
    pass."""
    torch.manual_seed(0)
    model = Llama(shape).to(device)
    halves = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=halves, reshard_after_forward=not keep)
    fully_shard(model, mp_policy=halves, reshard_after_forward=not keep)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    losses = []
    for _ in range(steps):
        words = torch.randint(shape.words, (batch, shape.context + 1), device=device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a Llama that trains anywhere, on the CPU")
    parser.add_argument("--batch", type=int, default=1, help="sequences of a rank")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--keep", action="store_true", help="keep gathered parameters until the backward pass")
    options = parser.parse_args()
    dist.init_process_group("gloo" if options.small else "nccl")
    device = torch.device("cpu")
    if not options.small:
        device = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(device)
    losses = train(SMALL if options.small else Shape(), options.batch, options.steps, device, keep=options.keep)
    if dist.get_rank() == 0:
        print("losses:", ", ".join(f"{loss:.4f}" for loss in losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
