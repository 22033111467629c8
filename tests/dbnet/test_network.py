"""The network: sizes, memory format, normalisation, inference without thresholds, compilation."""

import pytest
import torch

from ocrstore.dbnet.network import IMAGENET_MEAN, IMAGENET_STD, DBNet, ModelConfig, step_function
from ocrstore.errors import SchemaError

TINY = ModelConfig(backbone="resnet10", width=16, inner=16)


def pictures(*, batch=2, height=64, width=96):
    """Return random uint8 pictures with the strides a store gives."""
    images = torch.randint(0, 256, (batch, height, width, 3), dtype=torch.uint8)
    return images.permute(0, 3, 1, 2)


def test_training_gives_three_maps_of_the_inputs_size():
    """Probability logits, threshold and binary maps; the latter two float32 in [0, 1]."""
    out = DBNet(TINY).train()(pictures())
    assert out.logits.shape == out.thresh.shape == out.binary.shape == (2, 1, 64, 96)
    assert out.thresh.dtype == out.binary.dtype == torch.float32
    for x in (out.prob, out.thresh, out.binary):
        assert ((x >= 0) & (x <= 1)).all()


@pytest.mark.parametrize("size", [(33, 47), (32, 32), (70, 50)])
def test_any_size_goes_in_and_comes_out(size):
    """Inputs need not be multiples of 32."""
    out = DBNet(TINY).eval()(pictures(height=size[0], width=size[1]))
    assert out.logits.shape == (2, 1, *size)


def test_inference_does_not_run_the_threshold_head():
    """In eval mode the second head is not called, unless asked for."""
    net = DBNet(TINY).eval()
    calls = []
    net.thresh_head.register_forward_hook(lambda *_: calls.append(1))
    out = net(pictures())
    assert out.thresh is None and out.binary is None and not calls
    assert net(pictures(), thresholds=True).thresh is not None and calls == [1]


def test_normalisation_is_the_textbook_one():
    """(x / 255 - mean) / std per channel, from uint8, and channels-last stays."""
    images = pictures()
    out = DBNet(TINY).normalise(images)
    mean = torch.tensor(IMAGENET_MEAN).reshape(3, 1, 1)
    std = torch.tensor(IMAGENET_STD).reshape(3, 1, 1)
    torch.testing.assert_close(out, (images.float() / 255 - mean) / std)
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_the_mean_of_the_config_is_used():
    """Another mean and std give another input."""
    net = DBNet(ModelConfig(backbone="resnet10", width=16, inner=16, mean=(0, 0, 0), std=(1, 1, 1)))
    images = pictures()
    torch.testing.assert_close(net.normalise(images), images.float() / 255)


def test_channels_last_is_kept_through_the_network():
    """The weights are channels-last and the features come out so."""
    net = DBNet(TINY).eval()
    assert net.backbone.layer2[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    for feature in net.backbone(net.normalise(pictures())):
        assert feature.is_contiguous(memory_format=torch.channels_last)


def test_the_input_is_not_written_to():
    """A forward pass leaves the uint8 batch as it was."""
    images = pictures()
    before = images.clone()
    DBNet(TINY).train()(images)
    assert torch.equal(images, before)


def test_mixed_precision_keeps_maps_in_float32():
    """Under bf16 autocast the convolutions are bf16, thresholds and binary maps float32."""
    net = DBNet(TINY).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(pictures())
    assert out.logits.dtype == torch.bfloat16
    assert out.thresh.dtype == out.binary.dtype == out.prob.dtype == torch.float32


def test_the_step_function_by_hand():
    """1 / (1 + exp(-50 (P - T))), in float32 also for float16 input."""
    p = torch.tensor([0.5, 0.52, 0.48, 1.0, 0.0])
    t = torch.tensor([0.5, 0.50, 0.50, 0.0, 1.0])
    expected = torch.tensor([0.5, 0.7310586, 0.2689414, 1.0, 0.0])
    torch.testing.assert_close(step_function(p, t), expected, atol=1e-6, rtol=0)
    assert step_function(p.half(), t.half()).dtype == torch.float32


def test_every_parameter_gets_a_gradient():
    """Nothing in the network is left out of training."""
    net = DBNet(TINY).train()
    out = net(pictures())
    (out.logits.sum() + out.thresh.sum() + out.binary.sum()).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


# torch's own inductor still uses what torch itself deprecates
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.timeout(1200)  # half a minute of C++ compilation, much more on a busy machine
def test_compiled_it_gives_the_same():
    """torch.compile of the whole network, without graph breaks, gives the same maps."""
    net = DBNet(TINY).eval()
    images = pictures(batch=1, height=32, width=32)
    compiled = torch.compile(net, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(images).logits, net(images).logits, atol=1e-4, rtol=1e-4
        )


def test_compiled_it_trains():
    """Gradients come through a compiled network as through a plain one."""
    net = DBNet(TINY).train()
    images = pictures(batch=2, height=32, width=32)
    net(images).logits.square().mean().backward()
    plain = net.backbone.conv1.weight.grad.clone()
    net.zero_grad()
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    compiled(images).logits.square().mean().backward()
    torch.testing.assert_close(net.backbone.conv1.weight.grad, plain, atol=1e-4, rtol=1e-3)


def test_a_config_survives_json():
    """to_json and from_json are inverse, and JSON-ready."""
    import json

    config = ModelConfig.small(backbone="resnet34", std=(0.5, 0.5, 0.5))
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    "wrong", [{"backbone": "vgg"}, {"inner": 6}, {"width": 8}, {"std": (1.0, 0.0, 1.0)}]
)
def test_impossible_configs_are_refused(wrong):
    """Each impossible value is refused when the config is made."""
    with pytest.raises(SchemaError):
        ModelConfig(**wrong)
