"""A small GPT that learns to write a story, letter by letter. Plain PyTorch: nothing in here knows
of coop.

python examples/gpt.py --steps 40
coop run --measure examples/gpt.py --steps 40
coop run --budget 40MiB examples/gpt.py --steps 40
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

STORY = Path(__file__).parent / "data" / "lock-keeper.txt"


@dataclass(frozen=True)
class Shape:
    letters: int
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    dropout: float = 0.1


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.before_attention, self.before_mlp = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv, self.merge = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.merge(self.attention(self.before_attention(x))))
        return x + self.dropout(self.down(F.gelu(self.up(self.before_mlp(x)))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class GPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.letter = nn.Embedding(shape.letters, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*[Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.letters, bias=False)
        self.head.weight = self.letter.weight
        nn.init.normal_(self.letter.weight, std=0.02)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x = self.letter(letters) + self.position(torch.arange(letters.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def train(steps: int, batch: int = 16, story: Path = STORY) -> tuple[GPT, list[float]]:
    """The trained model, and the loss of each step."""
    torch.manual_seed(0)
    text = story.read_text()
    code = {letter: number for number, letter in enumerate(sorted(set(text)))}
    shape = Shape(letters=len(code))
    codes = torch.tensor([code[letter] for letter in text])
    model = GPT(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(codes) - shape.context - 1, (batch,)).tolist()
        pieces = torch.stack([codes[start : start + shape.context + 1] for start in starts])
        loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    _, losses = train(arguments.steps, arguments.batch)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
