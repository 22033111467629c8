"""One thread for torch, and drawn data that needs no store."""

import cv2
import numpy as np
import pytest

from ocrstore.building.build import build
from ocrstore.maps import draw_maps

torch = pytest.importorskip("torch")
pytest.importorskip("ocrstore.torch.lightning_bases")


@pytest.fixture(autouse=True)
def one_thread():
    """Run every test with one torch thread and a known seed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def draw_sample(seed, *, size=64, scale=2.0):
    """Draw one dark bar on paper, as a sample of a batch; the picture is `scale` times its view."""
    rng = np.random.default_rng(seed)
    view = np.full((size, size, 3), 220, np.uint8)
    left, top = rng.integers(4, 14, 2)
    box = np.array([(0, 0), (44, 0), (44, 24), (0, 24)], np.float32)
    box += np.array((left, top), np.float32)
    cv2.fillPoly(view, [box.astype(np.int32)], (30, 30, 40))
    maps = draw_maps([box], [False], size, size)
    return {
        "images": torch.from_numpy(view).permute(2, 0, 1),
        "prob_maps": torch.from_numpy(maps.prob_map)[None].half(),
        "prob_masks": torch.from_numpy(maps.prob_mask)[None],
        "thresh_maps": torch.from_numpy(maps.thresh_map)[None].half(),
        "thresh_masks": torch.from_numpy(maps.thresh_mask)[None],
        "inverse_matrix": torch.diag(torch.tensor([scale, scale, 1.0], dtype=torch.float64)),
        "raw_size": torch.tensor([int(size * scale)] * 2),
        "polygons": [box],
        "ignored": [False],
        "texts": ["bar"],
        "image_filename": f"bar-{seed}.jpg",
    }


class Bars(torch.utils.data.Dataset):
    """Drawn samples, the same every time."""

    def __init__(self, count, **kwargs):
        self.samples = [draw_sample(seed, **kwargs) for seed in range(count)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, row):
        return self.samples[row]


def collate(samples):
    """Stack tensors, list the rest."""
    return {
        name: torch.stack([s[name] for s in samples])
        if isinstance(samples[0][name], torch.Tensor)
        else [s[name] for s in samples]
        for name in samples[0]
    }


def bars_loader(count, *, batch_size=2):
    """Return a loader of drawn samples."""
    return torch.utils.data.DataLoader(Bars(count), batch_size=batch_size, collate_fn=collate)


@pytest.fixture(name="bars_loader", scope="session")
def bars_loader_fixture():
    """Return the function that makes loaders of drawn samples."""
    return bars_loader


@pytest.fixture(scope="session")
def drawn_store(drawn_folder, tmp_path_factory):
    """Build a store of six drawn pictures at 96 px."""
    out = tmp_path_factory.mktemp("store") / "drawn.ocrs"
    build(drawn_folder / "images", out, size=96, workers=0)
    return out


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory):
    """Write a checkpoint of a small, untrained network for views of 96 px."""
    from dataclasses import asdict

    from ocrstore.dbnet.checkpoint import KEY, write_checkpoint
    from ocrstore.dbnet.network import DBNet, ModelConfig
    from ocrstore.evaluation.postprocess import PostParams
    from ocrstore.recipe import Recipe

    torch.manual_seed(0)
    net = DBNet(ModelConfig(backbone="resnet10", width=16, inner=32))
    recipe = Recipe(size=(96, 96)).to_json()
    record = {
        "model": net.config.to_json(),
        "post": asdict(PostParams()),
        "provenance": {"store_fingerprint": "", "recipe": recipe, "view": "96"},
    }
    state = {f"net.{name}": value for name, value in net.state_dict().items()}
    path = tmp_path_factory.mktemp("checkpoint") / "small.ckpt"
    write_checkpoint({KEY: record, "state_dict": state}, path)
    return path
