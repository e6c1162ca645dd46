"""The networks that the benchmarks train, each with one batch: BERT, GPT-2, ResNet-50, Swin-T and
an unrolled BiLSTM.

"full": the depths of the papers for ResNet-50 and Swin-T, at half of their width, with small images
(and Swin's windows of 4 instead of 7); narrow transformers of 6 layers. So a step takes 0.1 to 1 s
on two cores, and activations outweigh parameters about as they do where memory is short: ResNet-50
at its own width has 90 MiB of gradients, as much as the activations of a batch that two cores can
compute in that time. "small" is the same programs with a few milliseconds of work, to try things
out.
"""

from collections.abc import Callable
from typing import NamedTuple

import environment  # isort: skip  # noqa: F401  before torch
import torch
import transformers
from torch import nn
from torch.nn import functional as F


class Task(NamedTuple):
    """A model that returns its loss, a batch for it, and the modules that per-layer checkpointing
    wraps."""

    model: nn.Module
    batch: dict[str, torch.Tensor]
    layers: list[nn.Module]


def _text(batch: int, length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids.clone()}


def _images(batch: int, size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 10, (batch,))}


def bert(small: bool) -> Task:
    width, layers, batch, length = (64, 4, 4, 32) if small else (192, 6, 8, 128)
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=1024, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 32,
            intermediate_size=4 * width,
        )
    )  # fmt: skip
    return Task(model, _text(batch, length, 1024), list(model.bert.encoder.layer))


def gpt2(small: bool) -> Task:
    width, layers, batch, length = (64, 4, 4, 32) if small else (192, 6, 8, 128)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=1024, n_embd=width, n_layer=layers, n_head=width // 32, n_positions=length, use_cache=False
        )
    )
    return Task(model, _text(batch, length, 1024), list(model.transformer.h))


def resnet50(small: bool) -> Task:
    shape = (
        {"embedding_size": 8, "hidden_sizes": [16, 32, 48, 64], "depths": [2, 2, 2, 2]}
        if small
        else {"embedding_size": 32, "hidden_sizes": [128, 256, 512, 1024], "depths": [3, 4, 6, 3]}
    )
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10, **shape))
    blocks = [block for stage in model.resnet.encoder.stages for block in stage.layers]
    return Task(model, _images(*((8, 32) if small else (48, 64))), blocks)


def swin_t(small: bool) -> Task:
    shape = (
        {"image_size": 32, "patch_size": 2, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
        if small
        else {"image_size": 128, "window_size": 4, "embed_dim": 48}
    )
    model = transformers.SwinForImageClassification(transformers.SwinConfig(num_labels=10, **shape))
    blocks = [block for stage in model.swin.encoder.layers for block in stage.blocks]
    return Task(model, _images(*((4, 32) if small else (16, 128))), blocks)


class Output(NamedTuple):
    loss: torch.Tensor


class Segment(nn.Module):
    """Some time steps of one direction."""

    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen = []
        for now in x.unbind(1):
            h, c = self.cell(now, (h, c))
            seen.append(h)
        return torch.stack(seen, 1), h, c


class BiLSTM(nn.Module):
    """Two directions, cell by cell. What a checkpoint wraps is a segment of time."""

    def __init__(self, inputs: int, hidden: int, length: int, segment: int) -> None:
        super().__init__()
        self.hidden, self.segment = hidden, segment
        cells = [nn.LSTMCell(inputs, hidden) for _ in range(2)]
        self.directions = nn.ModuleList(
            nn.ModuleList(Segment(cell) for _ in range(length // segment)) for cell in cells
        )
        self.head = nn.Linear(2 * hidden, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Output:
        seen = []
        for direction, segments in enumerate(self.directions):
            h = c = x.new_zeros(x.shape[0], self.hidden)
            parts = []
            for segment, part in zip(segments, (x.flip(1) if direction else x).split(self.segment, 1), strict=True):
                out, h, c = segment(part, h, c)
                parts.append(out)
            whole = torch.cat(parts, 1)
            seen.append(whole.flip(1) if direction else whole)
        return Output(F.cross_entropy(self.head(torch.cat(seen, 2)).flatten(0, 1), labels.flatten()))


def bilstm(small: bool) -> Task:
    inputs, hidden, batch, length, segment = (16, 32, 8, 16, 4) if small else (100, 128, 64, 96, 8)
    model = BiLSTM(inputs, hidden, length, segment)
    batch_of = {"x": torch.randn(batch, length, inputs), "labels": torch.randint(0, 10, (batch, length))}
    return Task(model, batch_of, [segment for segments in model.directions for segment in segments])


MODELS: dict[str, Callable[[bool], Task]] = {
    "bert": bert,
    "gpt2": gpt2,
    "resnet50": resnet50,
    "swin-t": swin_t,
    "bilstm": bilstm,
}
TITLES = {"bert": "BERT", "gpt2": "GPT-2", "resnet50": "ResNet-50", "swin-t": "Swin-T", "bilstm": "BiLSTM"}
TRANSFORMERS = ("bert", "gpt2", "swin-t")  # asked for 1.10 at half of the activations
