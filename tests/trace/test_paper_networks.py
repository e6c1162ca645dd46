"""The eight networks train, and are as large as they should be."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from coop import models

PARAMETERS = {  # of the published architectures; SPOS and BiLSTM have none to compare with
    "resnet50": 25_557_032,
    "inception-v3": 27_161_264,
    "unet": 31_037_698,
    "bert-large": 336_226_108,
    "swin-t": 28_288_354,
    "gpt-2.7b": 2_648_931_840,
}


@pytest.mark.parametrize("name", models.NAMES)
def test_small_networks_train(name):
    network = models.get(name, small=True)
    torch.manual_seed(0)
    model = network.build()
    optimizer = network.optimizer(model.parameters())
    inputs = network.batch(network.batch_size)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    network.step(model, optimizer, inputs)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.isfinite(network.loss(model, inputs))


@pytest.mark.parametrize("name", PARAMETERS)
def test_full_size_networks_have_their_published_number_of_parameters(name):
    with FakeTensorMode():
        assert sum(parameter.numel() for parameter in models.get(name).build().parameters()) == PARAMETERS[name]


def test_spos_takes_another_path_each_step_and_the_same_ones_each_run():
    def paths():
        network = models.get("spos", small=True)
        model, inputs = network.build(), network.batch(2)
        taken = []
        for _ in range(4):
            network.loss(model, inputs).backward()
            taken.append([p.grad is not None for p in model.parameters()])
            model.zero_grad(set_to_none=True)
        return taken

    first = paths()
    assert len({tuple(path) for path in first}) > 1 and first == paths()


def test_unknown_networks_are_told_the_known_ones():
    with pytest.raises(ValueError, match="'vgg'; the known ones are resnet50, inception-v3, unet"):
        models.get("vgg")
