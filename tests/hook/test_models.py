"""Real architectures from `transformers`, small, and recurrent and dynamic models."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coop
from networks import train
from same import same_in_budget, trained

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")


def language_model(make, steps=2, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3), **inputs):
    def program():
        model = make()
        model.train()
        opt = optimizer(model.parameters())
        losses = []
        for _ in range(steps):
            ids = torch.randint(0, 96, (4, 48))
            loss = model(input_ids=ids, labels=ids, **inputs).loss
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss)
        return trained(model, opt, losses)

    return program


def image_model(make, size=32, steps=2):
    def program():
        model = make()
        model.train()
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for _ in range(steps):
            loss = F.cross_entropy(model(torch.randn(8, 3, size, size)).logits, torch.randint(0, 10, (8,)))
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss)
        return trained(model, opt, losses)

    return program


def bert():
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256
    )
    return transformers.BertForMaskedLM(config)


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=4, n_head=4, n_positions=64)
    )


def llama():
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def t5():
    config = transformers.T5Config(
        vocab_size=96,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def resnet():
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], num_labels=10)
    return transformers.ResNetForImageClassification(config)


def swin():
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10
    )
    return transformers.SwinForImageClassification(config)


def vit():
    config = transformers.ViTConfig(
        image_size=32, patch_size=4, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
        num_labels=10,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


@pytest.mark.parametrize("make", [bert, gpt2, llama, t5], ids=lambda f: f.__name__)
def test_language_model(make):
    same_in_budget(language_model(make))


@pytest.mark.parametrize("make", [resnet, swin, vit], ids=lambda f: f.__name__)
def test_image_model(make):
    same_in_budget(image_model(make))


@pytest.mark.parametrize("policy", [name for name in coop.POLICIES if name != "coop"])
def test_every_policy_trains_a_transformer_and_a_conv_net(policy):
    # At 0.7 only: the policies as published do not reach lower ratios on all of these networks.
    same_in_budget(language_model(gpt2), ratios=(0.7,), policy=policy)
    same_in_budget(image_model(resnet), ratios=(0.7,), policy=policy)


class FusedBiLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(24, 32, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class UnrolledBiLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.forwards, self.backwards = nn.LSTMCell(24, 32), nn.LSTMCell(24, 32)
        self.head = nn.Linear(64, 8)

    def forward(self, x):
        sides = []
        for cell, steps in ((self.forwards, x.unbind(1)), (self.backwards, x.flip(1).unbind(1))):
            h = c = x.new_zeros(x.shape[0], 32)
            outputs = []
            for step in steps:
                h, c = cell(step, (h, c))
                outputs.append(h)
            sides.append(torch.stack(outputs, 1))
        return self.head(torch.cat([sides[0], sides[1].flip(1)], -1))


@pytest.mark.parametrize("make", [FusedBiLSTM, UnrolledBiLSTM])
def test_bilstm(make):
    same_in_budget(lambda: train(make(), lambda: torch.randn(32, 24, 24)))


def test_packed_gru():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(24, 64, batch_first=True)

        def forward(self, x):
            lengths = torch.arange(x.shape[0], 0, -1)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]

    same_in_budget(lambda: train(Packed(), lambda: torch.randn(24, 24, 24)))


class TreeLSTM(nn.Module):
    """A new random tree each step."""

    def __init__(self, width=64):
        super().__init__()
        self.leaf, self.node = nn.Linear(width, 2 * width), nn.Linear(2 * width, 5 * width)
        self.width = width

    def forward(self, leaves):
        states = [self.leaf(leaf).chunk(2, -1) for leaf in leaves]
        while len(states) > 1:
            at = int(torch.randint(0, len(states) - 1, ()))
            (h1, c1), (h2, c2) = states[at], states[at + 1]
            i, f1, f2, o, u = self.node(torch.cat([h1, h2], -1)).chunk(5, -1)
            c = i.sigmoid() * u.tanh() + f1.sigmoid() * c1 + f2.sigmoid() * c2
            states[at : at + 2] = [(o.sigmoid() * c.tanh(), c)]
        return states[0][0]


def test_graph_that_changes_every_step():
    same_in_budget(lambda: train(TreeLSTM(), lambda: torch.randn(24, 16, 64).unbind(0), steps=4))
