"""The backbone: torchvision's names and sizes."""

import pytest
import torch

from ocrstore.dbnet.network import ResNet
from ocrstore.errors import SchemaError

# parameters of the published networks less their classifiers (1000 classes, with bias)
PUBLISHED = {
    "resnet18": 11_689_512 - 513_000,
    "resnet34": 21_797_672 - 513_000,
    "resnet50": 25_557_032 - 2_049_000,
}


def torchvision_names(kind):
    """Spell out the entries of torchvision's state dict, classifier included."""
    depths = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}[kind]
    convolutions = 3 if kind == "resnet50" else 2
    bn = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = ["conv1.weight", *(f"bn1.{x}" for x in bn), "fc.weight", "fc.bias"]
    for layer, depth in enumerate(depths, start=1):
        for block in range(depth):
            prefix = f"layer{layer}.{block}"
            for i in range(1, convolutions + 1):
                names += [f"{prefix}.conv{i}.weight", *(f"{prefix}.bn{i}.{x}" for x in bn)]
            if block == 0 and (layer > 1 or kind == "resnet50"):
                names.append(f"{prefix}.downsample.0.weight")
                names += [f"{prefix}.downsample.1.{x}" for x in bn]
    return set(names)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_names_and_sizes_are_torchvisions(kind):
    """The state dict has exactly torchvision's entries, and the published number of parameters."""
    with torch.device("meta"):
        net = ResNet(kind)
    assert set(net.state_dict()) | {"fc.weight", "fc.bias"} == torchvision_names(kind)
    assert sum(p.numel() for p in net.parameters()) == PUBLISHED[kind]


def test_features_have_their_scales():
    """C2 to C5 lie at 1/4 to 1/32, with doubling channels."""
    net = ResNet("resnet18", width=8).eval()
    shapes = [tuple(f.shape) for f in net(torch.zeros(1, 3, 64, 96))]
    assert shapes == [(1, 8, 16, 24), (1, 16, 8, 12), (1, 32, 4, 6), (1, 64, 2, 3)]


def test_unknown_backbones_are_refused():
    """A wrong name lists the right ones."""
    with pytest.raises(SchemaError, match="resnet18"):
        ResNet("vgg16")
