"""Networks written for other programs give the same probabilities there."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ocrstore.cli import cli
from ocrstore.dbnet.checkpoint import read_checkpoint
from ocrstore.dbnet.export_model import FORMATS, export_model
from ocrstore.dbnet.network import DBNet
from ocrstore.dbnet.weights import load_weights
from ocrstore.errors import SchemaError


@pytest.fixture(scope="module")
def pictures():
    """Two sizes and numbers of pictures, other than those the network was traced with."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(1, 3, 64, 96), (3, 3, 160, 64)]
    return [torch.randint(0, 256, s, dtype=torch.uint8, generator=generator) for s in shapes]


def probabilities(checkpoint, images):
    """What the network itself gives."""
    net = read_checkpoint(checkpoint).network().eval()
    with torch.inference_mode():
        return net(images, thresholds=False).prob.numpy()


def test_onnx(small_checkpoint, pictures, tmp_path):
    """onnxruntime gives the probabilities within float error; the recipe is in the metadata."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    path = export_model(small_checkpoint, tmp_path / "m.onnx", to="onnx")
    session = runtime.InferenceSession(path)
    for images in pictures:
        (found,) = session.run(["probabilities"], {"images": images.numpy()})
        np.testing.assert_allclose(found, probabilities(small_checkpoint, images), atol=1e-5)
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["ocrstore.recipe"])["size"] == [96, 96]
    assert json.loads(described["ocrstore.post"])["shrink_ratio"] == 0.4


def test_pt2(small_checkpoint, pictures, tmp_path):
    """torch.export.load gives the same probabilities."""
    path = export_model(small_checkpoint, tmp_path / "m.pt2", to="pt2")
    program = torch.export.load(path).module()
    for images in pictures:
        with torch.inference_mode():
            found = program(images).numpy()
        np.testing.assert_allclose(found, probabilities(small_checkpoint, images), atol=1e-6)


def test_torchvision(small_checkpoint, tmp_path):
    """The backbone's state dict loads into a backbone, by torchvision's names."""
    path = export_model(small_checkpoint, tmp_path / "m.pth", to="torchvision")
    state = torch.load(path, weights_only=True)
    assert {"conv1.weight", "bn1.running_mean", "layer4.0.conv2.weight"} <= set(state)
    net = read_checkpoint(small_checkpoint).network()
    assert all(torch.equal(value, net.backbone.state_dict()[name]) for name, value in state.items())


def test_db(small_checkpoint, tmp_path):
    """Loaded as the authors' weights are, the network gives the same probabilities; BGR there."""
    path = export_model(small_checkpoint, tmp_path / "m.pth", to="db")
    state = torch.load(path, weights_only=True)
    net = read_checkpoint(small_checkpoint).network()
    assert "decoder.binarize.0.weight" in state and "decoder.in5.weight" in state
    assert torch.equal(state["backbone.conv1.weight"].flip(1), net.backbone.conv1.weight)
    again = DBNet(net.config)
    load_weights(again, path)
    for name, value in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_an_unknown_format_is_named(small_checkpoint, tmp_path):
    """With the known ones."""
    with pytest.raises(SchemaError, match="expected one of " + ", ".join(FORMATS)):
        export_model(small_checkpoint, tmp_path / "m", to="tflite")


def test_command(small_checkpoint, tmp_path):
    """Writes the file; a second time it needs --overwrite; nothing is printed but one line."""
    args = ["export-model", str(small_checkpoint), "--to", "pt2", "--out", str(tmp_path / "m.pt2")]
    first = CliRunner().invoke(cli, args)
    assert first.exit_code == 0 and len(first.output.splitlines()) == 1, first.output
    again = CliRunner().invoke(cli, args)
    assert again.exit_code == 2 and "--overwrite" in again.output
    assert CliRunner().invoke(cli, [*args, "--overwrite"]).exit_code == 0
