"""The backbone: torchvision's names and sizes, strict loading."""

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


def imagenet_like(net):
    """Make a state dict as torchvision would save it, with other values than the network has."""
    state = {k: v + 1 if v.dtype.is_floating_point else v + 7 for k, v in net.state_dict().items()}
    return {**state, "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


def test_an_imagenet_file_loads_unchanged(tmp_path):
    """A saved state dict with classifier loads; every value arrives."""
    net = ResNet("resnet18", width=8)
    state = imagenet_like(net)
    torch.save(state, tmp_path / "r18.pth")
    net.load_imagenet(tmp_path / "r18.pth")
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layer4.1.conv2.weight"), "layer4.1.conv2.weight is missing"),
        (lambda s: s.update({"fc2.weight": torch.zeros(1)}), "fc2.weight is unknown"),
        (
            lambda s: s.update({"conv1.weight": torch.zeros(64, 3, 7, 7)}),
            r"conv1.weight is \(64, 3, 7, 7\), expected \(8, 3, 7, 7\)",
        ),
    ],
)
def test_loading_is_strict(change, message):
    """A missing, an unknown and a misshapen entry are refused by name, and nothing is loaded."""
    net = ResNet("resnet18", width=8)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = imagenet_like(net)
    change(state)
    with pytest.raises(SchemaError, match=message):
        net.load_imagenet(state)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_published_weights_have_no_counters(tmp_path):
    """A state dict without batch norms' counters, as torchvision's files are, loads unchanged."""
    source, net = ResNet("resnet18", width=8), ResNet("resnet18", width=8)
    state = {n: v for n, v in source.state_dict().items() if not n.endswith("batches_tracked")}
    classifier = {"fc.weight": torch.zeros(3, 64), "fc.bias": torch.zeros(3)}
    torch.save({**state, **classifier}, tmp_path / "w")
    net.load_imagenet(tmp_path / "w")
    assert all(torch.equal(value, state[n]) for n, value in net.state_dict().items() if n in state)
    del state["bn1.running_var"]
    with pytest.raises(SchemaError, match=r"bn1\.running_var is missing"):
        net.load_imagenet(state)


def test_files_that_are_no_weights_are_refused(tmp_path):
    """No file, a file of something else, a pickle with code: each an error that says so."""
    net = ResNet("resnet10", width=8)
    with pytest.raises(SchemaError, match="no weights at"):
        net.load_imagenet(tmp_path / "absent.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(SchemaError, match="not a file of tensors"):
        net.load_imagenet(tmp_path / "text.pth")
    torch.save(net, tmp_path / "module.pth")
    with pytest.raises(SchemaError, match="not a file of tensors"):
        net.load_imagenet(tmp_path / "module.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(SchemaError, match="no state dict"):
        net.load_imagenet(tmp_path / "list.pth")


def test_features_have_their_scales():
    """C2 to C5 lie at 1/4 to 1/32, with doubling channels."""
    net = ResNet("resnet18", width=8).eval()
    shapes = [tuple(f.shape) for f in net(torch.zeros(1, 3, 64, 96))]
    assert shapes == [(1, 8, 16, 24), (1, 16, 8, 12), (1, 32, 4, 6), (1, 64, 2, 3)]


def test_unknown_backbones_are_refused():
    """A wrong name lists the right ones."""
    with pytest.raises(SchemaError, match="resnet18"):
        ResNet("vgg16")
