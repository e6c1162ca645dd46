"""The networks that `transformers` has: ResNet-50, BERT Large, Swin-T and a GPT of 2.7 billion
parameters; and for small devices, with one example at a time, ResNet-18 for pictures of 32 x 32
and BERT Base.

Attention is `eager`: matmul, softmax, dropout and matmul, as in the frameworks of the paper's
time. It stores the scores, so there is much to evict. Fused attention (`sdpa`) would also be a
different op on each device.

Configurations are made here; nothing is downloaded.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from coop.models.network import Inputs, Network, Optimizer, adam, images, sgd


def resnet50(small: bool) -> Network:
    size, classes = (64, 10) if small else (224, 1000)
    shape: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]} if small else {}
    return Network(
        "resnet50", _resnet(shape, classes), images((size, size), classes), 4 if small else 115, sgd, _logits
    )


def resnet18(small: bool) -> Network:
    """As in POET: pictures of 32 x 32, one at a time. The first convolution is 3 x 3 and nothing
    is pooled after it, as usual for that size."""
    shape: dict[str, Any] = {"layer_type": "basic", "embedding_size": 64, "hidden_sizes": [64, 128, 256, 512]}
    shape["depths"] = [2, 2, 2, 2]
    if small:
        shape |= {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    whole = _resnet(shape, 10)

    def build() -> nn.Module:
        model: Any = whole()
        stem = model.resnet.embedder
        stem.embedder.convolution = nn.Conv2d(3, shape["embedding_size"], 3, padding=1, bias=False)
        stem.pooler = nn.Identity()
        return _training(model)

    return Network("resnet18", build, images((32, 32), 10), 1, _plain, _logits)


def _resnet(shape: dict[str, Any], classes: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = _transformers()
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**shape, num_labels=classes))
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = True  # as is usual for ResNets
        return _training(model)

    return build


def swin_t(small: bool) -> Network:
    size, classes = (32, 10) if small else (224, 1000)
    shape = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 2} if small else {}

    def build() -> nn.Module:
        transformers = _transformers()
        config = transformers.SwinConfig(**shape, image_size=size, num_labels=classes, attn_implementation="eager")
        return _training(transformers.SwinForImageClassification(config))

    return Network("swin-t", build, images((size, size), classes), 4 if small else 40, adam, _logits)


def bert_large(small: bool) -> Network:
    width, layers, heads = (32, 2, 4) if small else (1024, 24, 16)
    return _bert("bert-large", small, width, layers, heads, 2 if small else 16, adam)


def bert_base(small: bool) -> Network:
    """As in POET: one text at a time."""
    width, layers, heads = (32, 2, 4) if small else (768, 12, 12)
    return _bert("bert-base", small, width, layers, heads, 1, _plain)


def _bert(name: str, small: bool, width: int, layers: int, heads: int, count: int, optimizer: Optimizer) -> Network:
    """Pre-training: masked words and next sentence."""
    vocabulary, length = (100, 32) if small else (30522, 512)

    def build() -> nn.Module:
        transformers = _transformers()
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=length,
            attn_implementation="eager",
        )
        return _training(transformers.BertForPreTraining(config))

    def batch(count: int) -> Inputs:
        words = (count, length)
        return (
            torch.randint(vocabulary, words),
            torch.zeros(words, dtype=torch.long),
            torch.randint(vocabulary, words),
            torch.randint(2, (count,)),
        )

    def loss(model: nn.Module, inputs: Inputs) -> Tensor:
        words, segments, labels, follows = inputs
        found: Tensor = model(words, token_type_ids=segments, labels=labels, next_sentence_label=follows).loss
        return found

    return Network(name, build, batch, count, optimizer, loss)


def gpt(small: bool) -> Network:
    """The row of GPT-3's table 2.1 with 2.7 billion parameters, with GPT-2's dense attention in
    every layer."""
    vocabulary, length = (100, 32) if small else (50257, 1024)
    width, layers, heads = (32, 2, 4) if small else (2560, 32, 32)

    def build() -> nn.Module:
        transformers = _transformers()
        config = transformers.GPT2Config(
            vocab_size=vocabulary,
            n_positions=length,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            activation_function="gelu_pytorch_tanh",  # the same function, in one op as on GPUs
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="eager",
        )
        return _training(transformers.GPT2LMHeadModel(config))

    def batch(count: int) -> Inputs:
        return (torch.randint(vocabulary, (count, length)),)

    def loss(model: nn.Module, inputs: Inputs) -> Tensor:
        words = inputs[0]
        # Given in full, or transformers would look for packed sequences, at values that fake
        # tensors do not have.
        mask = torch.full((1, 1, length, length), torch.finfo(torch.float32).min).triu(1)
        following = nn.functional.pad(words[:, 1:], (0, 1), value=-100)
        logits = model(words, attention_mask=mask).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())

    return Network("gpt-2.7b", build, batch, 2, adam, loss)


def _plain(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD without momentum: small devices have no room for it."""
    return torch.optim.SGD(parameters, lr=1e-2, foreach=False)


def _logits(model: nn.Module, inputs: Inputs) -> Tensor:
    pixels, labels = inputs
    return nn.functional.cross_entropy(model(pixels).logits, labels)


def _training(model: nn.Module) -> nn.Module:
    return model.train()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ValueError("this network needs the package transformers: pip install transformers") from error
    return transformers
