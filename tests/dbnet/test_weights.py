"""Weights of others: which files are taken, that nothing is lost on the way, what is refused."""

import functools
import hashlib
import http.server
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from ocrstore.cli import cli
from ocrstore.dbnet import weights
from ocrstore.dbnet.network import DBNet, ModelConfig, ResNet
from ocrstore.dbnet.weights import (
    AUTHORS_MEAN,
    AUTHORS_STD,
    fetch_imagenet,
    load_weights,
    read_state_dict,
)
from ocrstore.errors import SchemaError

WIDTH, INNER = 16, 64


def config(backbone="resnet18", **more):
    """Return a small network's config."""
    return ModelConfig(backbone=backbone, width=WIDTH, inner=INNER, **more)


def upsample(x, factor):
    """Repeat pixels."""
    return functional.interpolate(x, scale_factor=factor, mode="nearest")


def head(last=()):
    """Return a head as all programs write it."""
    quarter = INNER // 4
    return nn.Sequential(
        nn.Conv2d(INNER, quarter, 3, padding=1, bias=False),
        nn.BatchNorm2d(quarter),
        nn.ReLU(),
        nn.ConvTranspose2d(quarter, quarter, 2, 2),
        nn.BatchNorm2d(quarter),
        nn.ReLU(),
        nn.ConvTranspose2d(quarter, 1, 2, 2),
        *last,
    )


class AuthorsDecoder(nn.Module):
    """The decoder with the names of the DBNet authors' code."""

    def __init__(self, channels):
        super().__init__()
        quarter = INNER // 4
        for level, count in enumerate(channels, start=2):
            setattr(self, f"in{level}", nn.Conv2d(count, INNER, 1, bias=False))
            smooth = nn.Conv2d(INNER, quarter, 3, padding=1, bias=False)
            factor = 2 ** (level - 2)
            whole = (
                smooth if level == 2 else nn.Sequential(smooth, nn.Upsample(scale_factor=factor))
            )
            setattr(self, f"out{level}", whole)
        self.binarize = head([nn.Sigmoid()])
        self.thresh = head([nn.Sigmoid()])

    def forward(self, features):
        """Return the probability and the threshold map."""
        in2, in3, in4, in5 = (getattr(self, f"in{i}")(f) for i, f in enumerate(features, start=2))
        in4 = in4 + upsample(in5, 2)
        in3 = in3 + upsample(in4, 2)
        in2 = in2 + upsample(in3, 2)
        fused = torch.cat([self.out5(in5), self.out4(in4), self.out3(in3), self.out2(in2)], 1)
        return self.binarize(fused), self.thresh(fused)


class Authors(nn.Module):
    """The network with the names of the DBNet authors' code; pictures are BGR."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = ResNet(backbone, width=WIDTH)
        self.backbone.fc = nn.Linear(4, 4)  # theirs have both and use neither
        self.backbone.smooth = nn.Conv2d(4, 4, 1)
        self.decoder = AuthorsDecoder(self.backbone.channels)

    def forward(self, images):
        """Normalise as their code does, then return both maps."""
        mean = torch.tensor([122.67891434, 116.66876762, 104.00698793]).reshape(1, 3, 1, 1)
        return self.decoder(self.backbone((images.flip(1).float() - mean) / 255))

    @staticmethod
    def saved(state):
        """Return a state dict as they save it: of a model in a DataParallel."""
        return {f"model.module.{name}": value for name, value in state.items()}


class Convolution(nn.Module):
    """A convolution inside of a module, as mmcv has it."""

    def __init__(self, *args, **kwargs):
        super().__init__()
        self.conv = nn.Conv2d(*args, bias=False, **kwargs)

    def forward(self, x):
        """Return its output."""
        return self.conv(x)


class MmocrNeck(nn.Module):
    """The pyramid with mmocr's names, concatenated from the finest level on."""

    def __init__(self, channels):
        super().__init__()
        self.lateral_convs = nn.ModuleList(Convolution(c, INNER, 1) for c in channels)
        self.smooth_convs = nn.ModuleList(
            Convolution(INNER, INNER // 4, 3, padding=1) for _ in channels
        )

    def forward(self, features):
        """Return the fused features."""
        levels = [conv(f) for conv, f in zip(self.lateral_convs, features, strict=True)]
        for i in (2, 1, 0):
            levels[i] = levels[i] + upsample(levels[i + 1], 2)
        outs = [conv(level) for conv, level in zip(self.smooth_convs, levels, strict=True)]
        return torch.cat([outs[0], *(upsample(o, 2**i) for i, o in enumerate(outs[1:], 1))], 1)


class Mmocr(nn.Module):
    """The network with mmocr's names."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = ResNet(backbone, width=WIDTH)
        self.neck = MmocrNeck(self.backbone.channels)
        self.det_head = nn.ModuleDict({"binarize": head(), "threshold": head([nn.Sigmoid()])})

    def forward(self, images):
        """Normalise as mmocr's preprocessor does, then return both maps."""
        mean = torch.tensor([123.675, 116.28, 103.53]).reshape(1, 3, 1, 1)
        std = torch.tensor([58.395, 57.12, 57.375]).reshape(1, 3, 1, 1)
        fused = self.neck(self.backbone((images.float() - mean) / std))
        return torch.sigmoid(self.det_head["binarize"](fused)), self.det_head["threshold"](fused)

    @staticmethod
    def saved(state):
        """Return a checkpoint as mmengine saves it."""
        return {"meta": {"epoch": 1}, "state_dict": state}


def scrambled(net):
    """Give every parameter and statistic another value, so that none can be mistaken or missed."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if value.is_floating_point():
                noise = torch.rand(value.shape, generator=generator)
                centred = noise - 0.5 if value.dim() > 1 else noise + 0.5
                value.copy_(centred * (2 / value[0].numel() ** 0.5 if value.dim() > 1 else 1))
            assert value.isfinite().all(), name
    return net.eval()


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
@pytest.mark.parametrize("theirs", [Authors, Mmocr])
def test_networks_of_others_compute_the_same(tmp_path, theirs, backbone):
    """Their checkpoint loads, and both maps of a picture are theirs within float error."""
    other = scrambled(theirs(backbone))
    torch.save(theirs.saved(other.state_dict()), tmp_path / "other.pth")
    normalised = {"mean": AUTHORS_MEAN, "std": AUTHORS_STD} if theirs is Authors else {}
    net = DBNet(config(backbone, **normalised)).eval()
    load_weights(net, tmp_path / "other.pth")
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8)
    with torch.no_grad():
        prob, thresh = other(images)
        ours = net(images, thresholds=True)
    assert prob.std() > 1e-3 and thresh.std() > 1e-3
    torch.testing.assert_close(ours.prob, prob, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.thresh, thresh, atol=1e-5, rtol=1e-4)


def test_older_mmocr_heads(tmp_path):
    """The head that was called bbox_head loads as well."""
    state = scrambled(Mmocr("resnet18")).state_dict()
    old = {name.replace("det_head.", "bbox_head."): value for name, value in state.items()}
    first, second = DBNet(config()), DBNet(config())
    load_weights(first, state)
    load_weights(second, old)
    assert all(
        torch.equal(a, b) for a, b in zip(*(map(DBNet.parameters, (first, second))), strict=True)
    )


def imagenet(backbone="resnet18"):
    """Return a state dict as torchvision and timm save it, with other values than a new network."""
    state = scrambled(ResNet(backbone, width=WIDTH)).state_dict()
    return {**state, "fc.weight": torch.zeros(1000, 8), "fc.bias": torch.zeros(1000)}


WRAPPED = {
    "plain": lambda s: s,
    "state_dict": lambda s: {"state_dict": s, "epoch": 3},
    "model": lambda s: {"model": s, "optimizer": {}},
    "both": lambda s: {"model": {"state_dict": s}},
    "module": lambda s: {f"module.{n}": v for n, v in s.items()},
    "prefixes": lambda s: {"state_dict": {f"module.backbone.{n}": v for n, v in s.items()}},
    "no counters": lambda s: {n: v for n, v in s.items() if "batches_tracked" not in n},
}


@pytest.mark.parametrize("wrap", WRAPPED)
def test_resnets_load_into_the_backbone(tmp_path, wrap):
    """However the state dict is wrapped, every value arrives, and nothing else changes."""
    net, state = DBNet(config()), imagenet()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.save(WRAPPED[wrap](state), tmp_path / "r18.pth")
    load_weights(net, tmp_path / "r18.pth")
    for name, value in net.state_dict().items():
        inner = name.removeprefix("backbone.")
        if "batches_tracked" not in name:
            assert torch.equal(value, state[inner] if inner != name else before[name]), name


def test_safetensors(tmp_path):
    """A file of safetensors, as timm publishes them, loads."""
    state = {name: value.contiguous() for name, value in imagenet().items()}
    save_file(state, tmp_path / "model.safetensors")
    net = DBNet(config())
    load_weights(net, tmp_path / "model.safetensors")
    assert torch.equal(net.backbone.conv1.weight, state["conv1.weight"])


def test_own_checkpoints(tmp_path):
    """The weights of an earlier training, best.ckpt, load into the whole network."""
    net, other = DBNet(config()), scrambled(DBNet(config()))
    state = {f"net.{name}": value for name, value in other.state_dict().items()}
    torch.save({"state_dict": state, "ocrstore": {}}, tmp_path / "best.ckpt")
    load_weights(net, tmp_path / "best.ckpt")
    assert all(torch.equal(v, other.state_dict()[n]) for n, v in net.state_dict().items())


REFUSED = {
    "missing": (lambda s: s.pop("layer4.1.conv2.weight"), "layer4.1.conv2.weight is missing"),
    "no statistics": (lambda s: s.pop("bn1.running_var"), r"bn1\.running_var is missing"),
    "unknown": (lambda s: s.update({"fc2.weight": torch.zeros(1)}), "fc2.weight is unknown"),
    "shape": (
        lambda s: s.update({"conv1.weight": torch.zeros(64, 3, 7, 7)}),
        r"conv1.weight is \(64, 3, 7, 7\), expected \(16, 3, 7, 7\).*--width",
    ),
    "deformable": (
        lambda s: s.update({"layer2.0.conv2_offset.weight": torch.zeros(27, 8, 3, 3)}),
        r"conv2_offset.weight is unknown.*deformable",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_loading_is_strict(case):
    """What is missing, unknown or of another shape is refused by name, and nothing is loaded."""
    net, state = DBNet(config()), imagenet()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    change, message = REFUSED[case]
    change(state)
    with pytest.raises(SchemaError, match=message):
        load_weights(net, state)
    assert all(torch.equal(v, before[n]) for n, v in net.state_dict().items())


def test_networks_of_others_are_strict(tmp_path):
    """A checkpoint without its threshold head, or of another backbone, is refused by name."""
    state = Authors("resnet18").state_dict()
    with pytest.raises(SchemaError, match=r"backbone\.layer1\.0\.conv3\.weight is missing"):
        load_weights(DBNet(config("resnet50")), state)
    for name in [name for name in state if name.startswith("decoder.thresh.")]:
        del state[name]
    with pytest.raises(SchemaError, match=r"thresh_head\.layers\.0\.weight is missing"):
        load_weights(DBNet(config()), state)


class Code:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_files_that_are_no_weights_are_refused(tmp_path):
    """No file, a file of something else, a pickle with code: each an error; no code is run."""
    with pytest.raises(SchemaError, match="no weights at"):
        read_state_dict(tmp_path / "absent.pth")
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("hello")
        with pytest.raises(SchemaError, match="not a file of tensors"):
            read_state_dict(tmp_path / name)
    torch.save({"state_dict": imagenet(), "meta": Code(tmp_path / "ran")}, tmp_path / "code.pth")
    with pytest.raises(SchemaError, match=r"If you trust it.*weights_only=False"):
        read_state_dict(tmp_path / "code.pth")
    assert not (tmp_path / "ran").exists()
    for content in ([1, 2], {"state_dict": {"a": 1}}, {3: torch.zeros(1)}):
        torch.save(content, tmp_path / "other.pth")
        with pytest.raises(SchemaError, match="no state dict"):
            read_state_dict(tmp_path / "other.pth")
    torch.save({"model": {}}, tmp_path / "empty.pth")
    with pytest.raises(SchemaError, match=r"conv1\.weight is missing"):
        load_weights(DBNet(config()), tmp_path / "empty.pth")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return the folder of torch.hub's cache, which is empty."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    return tmp_path / "hub" / "hub" / "checkpoints"


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Serve the weights of a small resnet18 as torchvision would; return the address."""
    folder = tmp_path / "www"
    folder.mkdir()
    torch.save(imagenet(), folder / "weights")
    digest = hashlib.sha256((folder / "weights").read_bytes()).hexdigest()[:8]
    name = f"resnet18-{digest}.pth"
    (folder / "weights").rename(folder / name)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    serve = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/{name}"
        monkeypatch.setitem(weights.IMAGENET, "resnet18", url)
        yield url
        server.shutdown()
        thread.join()


def test_pretrained_weights_are_fetched_once(hub, published, monkeypatch):
    """They come over the network, into the cache, and from then on without it."""
    state = fetch_imagenet("resnet18")
    assert all(torch.equal(value, state[name]) for name, value in imagenet().items())
    (cached,) = hub.iterdir()
    assert cached.name == published.rpartition("/")[2]
    monkeypatch.setitem(weights.IMAGENET, "resnet18", f"http://127.0.0.1:9/{cached.name}")
    assert fetch_imagenet("resnet18").keys() == state.keys()


def test_pretrained_weights_are_checked(hub, published, monkeypatch):
    """A file of another hash at the address is refused and not kept."""
    folder, _, name = published.rpartition("/")
    wrong = f"{folder}/{name}?resnet18-00000000.pth"
    monkeypatch.setitem(weights.IMAGENET, "resnet18", wrong)
    with pytest.raises(SchemaError, match="hash"):
        fetch_imagenet("resnet18")
    assert not list(hub.glob("*.pth*"))


def test_the_addresses_have_hashes():
    """Each address ends with the backbone's name and eight digits of its file's hash."""
    for backbone, url in weights.IMAGENET.items():
        assert url.startswith(f"https://download.pytorch.org/models/{backbone}-")
        assert len(bytes.fromhex(url.removesuffix(".pth").rpartition("-")[2])) == 4


def train(*args):
    """Call `ocrstore train` for one epoch of a small network."""
    small = ["--width", WIDTH, "--inner", 32, "--epochs", 1, "--workers", 0, "--precision", "32"]
    quick = ["--device", "cpu", "--batch-size", 3, "--log-every", 1, "-q"]
    arguments = ["train", *args, *small, *quick]
    return CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec")
@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
@pytest.mark.filterwarnings("ignore:.*Experiment logs directory")
def test_train_begins_with_them(drawn_store, hub, published, tmp_path):
    """`--pretrained` and `--weights` run; with a rate of nearly 0 the backbone stays as it came."""
    expected = imagenet()["conv1.weight"]
    file = tmp_path / "w.pth"
    torch.save({"model": imagenet()}, file)
    for name, options in (("a", ("--pretrained", "resnet18")), ("b", ("--weights", file))):
        done = train(drawn_store, "--out", tmp_path / name, "--lr", "1e-12", *options)
        assert done.exception is None, done.output
        state = torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"]
        torch.testing.assert_close(state["net.backbone.conv1.weight"], expected)


def test_train_without_a_network(drawn_store, hub, tmp_path, monkeypatch):
    """The message has the address, where to put the file, and --weights; nothing is trained."""
    monkeypatch.setitem(weights.IMAGENET, "resnet18", "http://127.0.0.1:9/resnet18-f37072fd.pth")
    done = train(drawn_store, "--out", tmp_path / "a", "--pretrained", "resnet18")
    assert isinstance(done.exception, SchemaError)
    for part in ("127.0.0.1:9", str(hub / "resnet18-f37072fd.pth"), "--weights"):
        assert part in str(done.exception)
    assert not (tmp_path / "a" / "last.ckpt").exists()


def test_what_contradicts_itself_is_refused(drawn_store, hub, tmp_path):
    """Two backbones, two origins, and a backbone that nobody publishes."""
    out = ("--out", tmp_path / "a")
    two = train(drawn_store, *out, "--pretrained", "resnet18", "--backbone", "resnet50")
    assert "which one?" in str(two.exception)
    (tmp_path / "w.pth").touch()
    both = train(drawn_store, *out, "--pretrained", "resnet18", "--weights", tmp_path / "w.pth")
    assert "one of the two" in str(both.exception)
    with pytest.raises(SchemaError, match="expected resnet18, resnet34, resnet50"):
        fetch_imagenet("resnet10")
