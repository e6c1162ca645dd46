"""What the recorder, the benchmarks and the tests need to know of a network."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam that updates one parameter after the other, which is PyTorch's default on the CPU.

    On a GPU the default is `foreach`, which updates all parameters in one op and needs a temporary
    as large as all of them. The paper's framework updates one at a time, so the choice is made
    here and does not depend on the device.
    """
    return torch.optim.Adam(parameters, lr=1e-4, foreach=False)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """With momentum, one parameter after the other: see `adam`."""
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, foreach=False)


def classification(model: nn.Module, inputs: Inputs) -> Tensor:
    """Cross entropy; the last input is the labels."""
    *data, labels = inputs
    return nn.functional.cross_entropy(model(*data), labels)


@dataclass(frozen=True)
class Network:
    name: str
    build: Callable[[], nn.Module]
    """In training mode, on the default device."""
    batch: Callable[[int], Inputs]
    """Random inputs and labels for that many examples, on the default device."""
    batch_size: int
    """The paper's batch size."""
    optimizer: Optimizer
    loss: Callable[[nn.Module, Inputs], Tensor] = classification

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Inputs) -> None:
        """Forward, backward, update. Gradients are dropped at the end, so that none lives from one
        step to the next."""
        self.loss(model, inputs).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def images(size: tuple[int, int], classes: int) -> Callable[[int], Inputs]:
    def batch(count: int) -> Inputs:
        return torch.randn(count, 3, *size), torch.randint(classes, (count,))

    return batch
