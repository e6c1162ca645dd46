"""Inception V3 (Szegedy et al. 2015), with the auxiliary classifier."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coop.models.network import Inputs, Network, images, sgd

Kernel = int | tuple[int, int]


def _convolution(inputs: int, outputs: int, kernel: Kernel, stride: int = 1, padded: bool = True) -> nn.Sequential:
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (rows // 2, columns // 2) if padded else 0
    convolution = nn.Conv2d(inputs, outputs, (rows, columns), stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, eps=0.001), nn.ReLU(inplace=True))


def _chain(inputs: int, *layers: tuple[int, Kernel]) -> nn.Sequential:
    """Convolutions one after the other, each given as (channels, kernel)."""
    chain = nn.Sequential()
    for outputs, kernel in layers:
        chain.append(_convolution(inputs, outputs, kernel))
        inputs = outputs
    return chain


class _Fork(nn.Module):
    """A convolution, and then both a row and a column of three, side by side."""

    def __init__(self, before: nn.Sequential, channels: int, outputs: int) -> None:
        super().__init__()
        self.before = before
        self.row, self.column = _convolution(channels, outputs, (1, 3)), _convolution(channels, outputs, (3, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return torch.cat([self.row(x), self.column(x)], 1)


class _Branches(nn.Module):
    """Some branches side by side, joined along the channels."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _convolution(inputs, outputs, 1))


def _a(inputs: int, pooled: int, w: int) -> tuple[nn.Module, int]:
    fives, threes = _chain(inputs, (6 * w, 1), (8 * w, 5)), _chain(inputs, (8 * w, 1), (12 * w, 3), (12 * w, 3))
    branches = [_chain(inputs, (8 * w, 1)), fives, threes, _pooled(inputs, pooled)]
    return _Branches(branches), 28 * w + pooled


def _b(inputs: int, w: int) -> tuple[nn.Module, int]:
    threes = _convolution(inputs, 48 * w, 3, 2, padded=False)
    deep = _chain(inputs, (8 * w, 1), (12 * w, 3)).append(_convolution(12 * w, 12 * w, 3, 2, padded=False))
    return _Branches([threes, deep, nn.MaxPool2d(3, 2)]), inputs + 60 * w


def _c(inputs: int, middle: int, w: int) -> tuple[nn.Module, int]:
    out = 24 * w
    once = _chain(inputs, (middle, 1), (middle, (1, 7)), (out, (7, 1)))
    twice = _chain(inputs, (middle, 1), (middle, (7, 1)), (middle, (1, 7)), (middle, (7, 1)), (out, (1, 7)))
    return _Branches([_chain(inputs, (out, 1)), once, twice, _pooled(inputs, out)]), 4 * out


def _d(inputs: int, w: int) -> tuple[nn.Module, int]:
    threes = _chain(inputs, (24 * w, 1)).append(_convolution(24 * w, 40 * w, 3, 2, padded=False))
    sevens = _chain(inputs, (24 * w, 1), (24 * w, (1, 7)), (24 * w, (7, 1)))
    sevens.append(_convolution(24 * w, 24 * w, 3, 2, padded=False))
    return _Branches([threes, sevens, nn.MaxPool2d(3, 2)]), inputs + 64 * w


def _e(inputs: int, w: int) -> tuple[nn.Module, int]:
    near = _Fork(_chain(inputs, (48 * w, 1)), 48 * w, 48 * w)
    far = _Fork(_chain(inputs, (56 * w, 1), (48 * w, 3)), 48 * w, 48 * w)
    return _Branches([_chain(inputs, (40 * w, 1)), near, far, _pooled(inputs, 24 * w)]), 256 * w


class Inception(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        """`width` scales all channels; the paper's is 8."""
        super().__init__()
        w = width
        self.stem = nn.Sequential(
            _convolution(3, 4 * w, 3, 2, padded=False),
            _convolution(4 * w, 4 * w, 3, padded=False),
            _convolution(4 * w, 8 * w, 3),
            nn.MaxPool2d(3, 2),
            _convolution(8 * w, 10 * w, 1),
            _convolution(10 * w, 24 * w, 3, padded=False),
            nn.MaxPool2d(3, 2),
        )
        self.early, self.late = nn.Sequential(), nn.Sequential()
        channels = 24 * w
        for pooled in (4 * w, 8 * w, 8 * w):
            channels = self._add(self.early, _a(channels, pooled, w))
        channels = self._add(self.early, _b(channels, w))
        for middle in (16 * w, 20 * w, 20 * w, 24 * w):
            channels = self._add(self.early, _c(channels, middle, w))
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3),
            _convolution(channels, 16 * w, 1),
            _convolution(16 * w, 96 * w, 5, padded=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(96 * w, classes),
        )
        channels = self._add(self.late, _d(channels, w))
        for _ in range(2):
            channels = self._add(self.late, _e(channels, w))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(channels, classes))

    @staticmethod
    def _add(part: nn.Sequential, block: tuple[nn.Module, int]) -> int:
        part.append(block[0])
        return block[1]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.early(self.stem(x))
        return self.head(self.late(x)), self.auxiliary(x)


def _loss(model: nn.Module, inputs: Inputs) -> Tensor:
    pixels, labels = inputs
    logits, auxiliary = model(pixels)
    return F.cross_entropy(logits, labels) + 0.4 * F.cross_entropy(auxiliary, labels)


def network(small: bool) -> Network:
    width, classes = (1, 10) if small else (8, 1000)
    return Network(
        "inception-v3", lambda: Inception(width, classes), images((299, 299), classes), 2 if small else 96, sgd, _loss
    )
