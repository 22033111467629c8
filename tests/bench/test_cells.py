"""What one cell measures, and what it finds wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.waiting import once_in
from tools.bench import accounting, cell, consumers, prepared
from tools.bench.accounting import Moment
from tools.bench.peers import limit_memcpy, limit_view, memmap


def batches(samples, rows=None, change=None):
    """One batch of samples as a peer hands them out, changed by a function."""
    rows = list(range(len(samples))) if rows is None else rows
    batch = {
        "images": torch.from_numpy(np.array(samples.images[rows])).permute(0, 3, 1, 2),
        "prob_maps": torch.from_numpy(np.array(samples.prob_maps[rows]))[:, None],
        "thresh_maps": torch.from_numpy(np.array(samples.thresh_maps[rows])),
        "polygons": [list(samples.polygons[row]) for row in rows],
        "image_filename": [samples.keys[row] for row in rows],
    }
    if change:
        change(batch)
    return [batch]


def test_equal_content_passes(samples):
    """Any order and either layout of the same samples is right."""
    rows = list(range(len(samples)))[::-1]
    assert cell.compare(batches(samples, rows), samples) == []


@pytest.mark.parametrize("name", ["images", "prob_maps", "thresh_maps"])
def test_a_flipped_bit_is_found(samples, name):
    """One bit in any array is named with its sample."""

    def flip(batch):
        array = batch[name].numpy()
        kind = np.uint8 if name == "images" else np.uint16
        array.view(kind)[5, ..., 7, 9] ^= kind(1)

    assert cell.compare(batches(samples, change=flip), samples) == [f"img_5.jpg: {name} differs"]


def test_other_faults_are_found(samples):
    """Missing, repeated, unknown samples, other polygons and other types are named."""

    def spoil(batch):
        batch["polygons"][1] = [batch["polygons"][1][0] + 1]
        batch["image_filename"][3] = "other.jpg"
        batch["prob_maps"] = batch["prob_maps"].float()

    found = cell.compare(batches(samples, [0, 1, 2, 3, 4, 4], spoil), samples)
    assert "img_1.jpg: polygons differ" in found
    assert "other.jpg: no such sample" in found
    assert "img_3.jpg: missing" in found
    assert "img_4.jpg: more than once" in found
    assert any(text.startswith("img_0.jpg: prob_maps is float32") for text in found)


def test_polygons_survive_packing(samples):
    """Packed polygons come back, also from longer buffers and when there are none."""
    for polygons in samples.polygons:
        packed = prepared.pack_polygons(polygons)
        back = prepared.unpack_polygons(packed + b"\0" * 8)
        assert len(back) == len(polygons)
        assert all(np.array_equal(a, b) for a, b in zip(polygons, back, strict=True))


def moments(*, seconds=1.0, own=1.0, busy=1.0, stolen=0.0):
    """Two readings of the clocks with these differences."""
    return Moment(10, 5, 100, 3), Moment(10 + seconds, 5 + own, 100 + busy, 3 + stolen)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({}, 0.0),
        ({"busy": 1.03}, 0.0),  # a few ticks are not told from nothing
        ({"busy": 1.5}, 0.25),
        ({"stolen": 0.5}, 0.25),
        ({"own": 1.2, "stolen": 0.2}, 0.1),
        ({"busy": 9.0}, 1.0),
    ],
)
def test_disturbance_is_the_share_of_others(given, share):
    """Time of others and stolen time count against all cores; own time does not."""
    found = accounting.disturbance(*moments(**given), cores=2)
    assert found == pytest.approx(share)


def test_accounts_of_this_process():
    """Memory, processor time and age of a running process are positive; its children count."""
    pids = accounting.descendants()
    assert accounting.memory(pids).own > 1e6
    assert accounting.cpu_seconds(pids) > 0
    assert accounting.process_age() > 0
    before = accounting.moment()
    assert accounting.moment().clock > before.clock


def test_the_cache_is_dropped_and_filled(tmp_path):
    """What was dropped is not resident, what was read is; memory file systems cannot drop."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    assert once_in(20, lambda: accounting.drop_from_cache([path]) in (0.0, 1.0))
    with path.open("rb") as file:

        def fill():
            accounting.read_into_cache([path])
            return accounting._resident(file.fileno(), 1 << 20) == (1 << 20) // 4096

        assert once_in(5, fill)


@pytest.mark.parametrize("layout", ["planar", "channels last", "rows first", "with gaps"])
def test_consumers_take_any_layout(layout):
    """Touching and copying work on every memory layout; copies are equal and reuse buffers."""
    images = torch.randint(0, 255, (4, 3, 8, 8), dtype=torch.uint8)
    if layout == "channels last":
        images = images.to(memory_format=torch.channels_last)
    elif layout == "rows first":
        images = images.permute(0, 2, 3, 1)
    elif layout == "with gaps":
        images = images.repeat(2, 1, 1, 1)[::2]
    maps = torch.rand(4, 1, 8, 8).half()
    batch = {"images": images, "prob_maps": maps, "thresh_maps": maps}
    buffers = {}
    for _ in range(2):
        consumers.touch(batch)
        consumers.copy(batch, buffers)
    assert all(torch.equal(buffers[name], batch[name]) for name in consumers.NAMES)


def job(samples, folder, **options):
    """A cell's job on small samples."""
    return {
        "folder": str(folder),
        "prepared": str(samples.folder),
        "samples": len(samples),
        "batch_size": 4,
        "seed": 0,
        "workers": 0,
        "shuffle": True,
        "consumer": "copy",
        "least_s": 0.01,
        "slow_s": 0.01,
        "epoch_s": 500.0,
        **options,
    }


@pytest.mark.parametrize("epoch_s", [500.0, 0.0])
def test_rate_start_and_cold_give_their_figures(samples, tmp_path, epoch_s):
    """Each kind of cell returns what the tables need, for whole epochs and for parts of them."""
    folder = tmp_path / "built"
    built = cell.build(memmap, folder, samples.folder)
    assert built["disk_mb"] * 1e6 > samples.images.nbytes
    todo = job(samples, folder, epoch_s=epoch_s)
    found = cell.rate(memmap, todo)
    assert found["rate"] == pytest.approx(found["samples"] / found["seconds"])
    assert found["whole"] is (epoch_s > 0)
    assert found["own_mb"] > 0
    assert cell.start(memmap, todo, 0.0)["first_batch_s"] > 0
    assert cell.cold(memmap, todo)["samples"] == len(samples)


@pytest.mark.parametrize("peer", [memmap, limit_view, limit_memcpy])
@pytest.mark.parametrize("shuffle", [False, True])
def test_peers_deliver_what_was_prepared(samples, tmp_path, peer, shuffle):
    """Each epoch has every sample once, bit for bit, and epochs can be repeated."""
    folder = tmp_path / "built"
    cell.build(peer, folder, samples.folder)
    loader = cell.make_loader(peer, job(samples, folder, shuffle=shuffle))
    for _ in range(2):
        copies = (
            {n: v.clone() if hasattr(v, "clone") else v for n, v in b.items()} for b in loader
        )
        assert cell.compare(copies, samples) == []


def test_what_a_peer_cannot_do_is_said(samples, tmp_path):
    """A limit with workers is no failure: the cell says why it is empty."""
    assert "one process" in cell.why_unsupported(limit_view, job(samples, tmp_path, workers=2))
