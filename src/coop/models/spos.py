"""Single path one shot (Guo et al. 2020): a supernet of which each step trains one random path.

20 layers, each with four choices: ShuffleNet V2 blocks with kernels of 3, 5 and 7, and an
Xception-like one. The layout is the paper's, with the stem and the first stage at stride 1 for
CIFAR-10's images of 32 x 32.
"""

import random
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from coop.models.network import Network, images, sgd

_KERNELS = (3, 5, 7, 0)
"""0 is the Xception-like choice."""


def _pointwise(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _depthwise(channels: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False)
    return [convolution, nn.BatchNorm2d(channels)]


class Block(nn.Module):
    """Half of the channels bypass the block, or go through a short branch of their own where
    shapes change."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.shortens = stride > 1 or inputs != outputs
        passing = inputs if self.shortens else inputs // 2
        entering, middle = (inputs if self.shortens else inputs - passing), outputs // 2
        leaving = outputs - passing
        if kernel:
            main = [*_pointwise(entering, middle), *_depthwise(middle, kernel, stride), *_pointwise(middle, leaving)]
        else:
            main = [*_depthwise(entering, 3, stride), *_pointwise(entering, middle)]
            main += [*_depthwise(middle, 3), *_pointwise(middle, middle)]
            main += [*_depthwise(middle, 3), *_pointwise(middle, leaving)]
        self.main = nn.Sequential(*main)
        if self.shortens:
            self.short = nn.Sequential(*_depthwise(inputs, 3, stride), *_pointwise(inputs, passing))

    def forward(self, x: Tensor) -> Tensor:
        if self.shortens:
            return torch.cat([self.short(x), self.main(x)], 1)
        passing, entering = x.chunk(2, 1)
        shuffled = torch.stack([passing, self.main(entering)], 2)  # the two halves take turns
        return shuffled.flatten(1, 2)


class Supernet(nn.Module):
    def __init__(self, stages: list[tuple[int, int, int]], stem: int, head: int, classes: int, seed: int = 0) -> None:
        """`stages` are (layers, channels, stride of the first layer). The seed is that of the
        paths."""
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU(True))
        self.layers = nn.ModuleList()
        inputs = stem
        for layers, channels, first in stages:
            for stride in [first] + [1] * (layers - 1):
                self.layers.append(nn.ModuleList(Block(inputs, channels, kernel, stride) for kernel in _KERNELS))
                inputs = channels
        self.head = nn.Sequential(*_pointwise(inputs, head), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1))
        self.classifier = nn.Linear(head, classes, bias=False)
        self.paths = random.Random(seed)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = self.paths.choice(list(layer.children()))(x)
        return self.classifier(self.head(x))  # type: ignore[no-any-return]


def _settled_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with a moment for every parameter from the start: otherwise a path that was never taken
    would have none."""
    optimizer = sgd(parameters)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def network(small: bool) -> Network:
    stages = [(4, 64, 1), (4, 160, 2), (8, 320, 2), (4, 640, 2)]
    stem, head, classes = 16, 1024, 10
    if small:
        stages, stem, head = [(1, 16, 1), (2, 32, 2)], 8, 32

    def build() -> nn.Module:
        return Supernet(stages, stem, head, classes)

    return Network("spos", build, images((32, 32), classes), 4 if small else 256, _settled_sgd)
