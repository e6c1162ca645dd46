"""U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm, as it is commonly
trained today."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coop.models.network import Inputs, Network, sgd


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    def once(inputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(*once(inputs), *once(outputs))


class UNet(nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.first = _twice(3, width)
        self.down = nn.ModuleList(_twice(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in reversed(widths[:-1]))
        self.join = nn.ModuleList(_twice(2 * a, a) for a in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = [x := self.first(x)]
        for down in self.down:
            across.append(x := down(F.max_pool2d(x, 2)))
        across.pop()
        for up, join in zip(self.up, self.join, strict=True):
            beside, x = across.pop(), up(x)
            rows, columns = beside.shape[2] - x.shape[2], beside.shape[3] - x.shape[3]
            x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            x = join(torch.cat([beside, x], 1))
        return self.last(x)  # type: ignore[no-any-return]


def network(small: bool) -> Network:
    height, width, channels, depth, classes = (46, 60, 8, 2, 2) if small else (460, 608, 64, 4, 2)

    def batch(count: int) -> Inputs:
        return torch.randn(count, 3, height, width), torch.randint(classes, (count, height, width))

    return Network("unet", lambda: UNet(channels, depth, classes), batch, 2 if small else 5, sgd)
