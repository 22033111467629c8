"""The training path: maps follow the polygons, and randomness is random where it should be."""

import gc
import os
import pickle
import shutil
import subprocess
import sys
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

import ocrstore
from ocrstore import shared_slots
from ocrstore.maps import draw_maps
from ocrstore.torch import OCRStoreDataset

A = pytest.importorskip("albumentations")
MAPS = ("prob_map", "thresh_map", "prob_mask", "thresh_mask")


def augmented(store_path, *transforms, **options):
    """Return the store with a transform that ends in one size."""
    steps = [*transforms, A.PadIfNeeded(288, 288), A.CenterCrop(288, 288)]
    return OCRStoreDataset(store_path, transform=A.Compose(steps), **options)


@pytest.mark.parametrize(
    "transform",
    [
        A.NoOp(),
        A.HorizontalFlip(p=1),
        A.VerticalFlip(p=1),
        A.Rotate((30, 30), p=1),
        A.RandomRotate90(p=1),
        A.RandomCrop(120, 110, p=1),
        A.Perspective(p=1),
        A.Affine(scale=(0.7, 1.3), rotate=(-20, 20), p=1),
    ],
    ids=lambda t: type(t).__name__,
)
def test_maps_follow_the_polygons(store_path, transform):
    """The maps are those of the moved polygons, and the polygons lie on the moved pixels."""
    dataset = augmented(store_path, transform)
    plain = OCRStoreDataset(store_path, columns=["image"])
    for row in (0, 3, 11):
        sample = dataset[row]
        maps = draw_maps(sample["polygons"], sample["ignored"], 288, 288)
        for name in MAPS:
            expected = getattr(maps, name)
            assert np.array_equal(sample[name][0].float(), expected.astype(np.float16)), name
        inverse = sample["inverse_matrix"].numpy()
        originals = plain.anns[sample["image_filename"]]
        texts = plain.annotations[sample["image_filename"]].texts
        for polygon, text in zip(sample["polygons"], sample["texts"], strict=True):
            points = np.concatenate([polygon, np.ones((len(polygon), 1))], axis=1) @ inverse.T
            back = points[:, :2] / points[:, 2:]
            assert np.allclose(back, originals[texts.index(text)], atol=0.5)
        inner = [p for p in sample["polygons"] if p.min() > 2 and p.max() < 285]
        # regions are drawn bright: their middle must be so in the new picture
        for polygon in inner:
            x, y = polygon.mean(axis=0).round().astype(int)
            moved_out = isinstance(transform, A.RandomCrop | A.Perspective)
            padding = moved_out and not sample["image"][:, y, x].any()
            assert padding or sample["image"][:, y, x].float().mean() > 200


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    "transform",
    [A.HorizontalFlip(p=1), A.OneOf([A.HorizontalFlip(p=1)], p=1)],
    ids=lambda t: type(t).__name__,
)
def test_a_transform_alone_is_composed(store_path, transform, fuse):
    """A transform that is no composition does what a composition of it does."""
    alone = OCRStoreDataset(store_path, transform=transform, fuse=fuse)[3]
    composed = OCRStoreDataset(store_path, transform=A.Compose([A.HorizontalFlip(p=1)]))[3]
    assert torch.equal(alone["image"], composed["image"])
    assert len(alone["polygons"]) and all(
        map(np.array_equal, alone["polygons"], composed["polygons"])
    )


@pytest.mark.parametrize("transform", [[A.NoOp()], 3, "flip", A.HorizontalFlip])
def test_what_is_no_transform_is_refused_at_once(store_path, transform):
    """Lists, numbers and classes are TypeErrors before the first sample."""
    with pytest.raises(TypeError, match=r"expected an albumentations transform.*Compose"):
        OCRStoreDataset(store_path, transform=transform)


@pytest.mark.parametrize("fuse", [True, False])
def test_a_store_cut_while_a_transform_is_planned(store_path, tmp_path, fuse):
    """The file is looked at once more before pixels are read; its loss is no transform's fault."""
    path = Path(shutil.copy(store_path, tmp_path / "own.ocrs"))

    class Cuts(A.HorizontalFlip):
        """Cuts the file when its parameters are asked for."""

        def get_params(self):
            os.truncate(path, 8192)
            return super().get_params()

    steps = [A.VerticalFlip(p=1), Cuts(p=1)]
    dataset = OCRStoreDataset(path, transform=A.Compose(steps), fuse=fuse)
    if not fuse:  # pixels are read from the first step on
        dataset.views[0].annotation = lambda row: os.truncate(path, 8192)
    with pytest.raises(ocrstore.StoreChangedError, match=r"own.ocrs: was truncated from"):
        dataset[3]


def test_warming_for_a_transform(store_path):
    """Training reads whole pictures; the view's columns stay where they are."""
    dataset = OCRStoreDataset(store_path, transform=A.NoOp())
    store = ocrstore.open(store_path)
    told = []
    nbytes = dataset.warm(progress=lambda done, total: told.append((done, total)))
    assert nbytes == int(store["image"].nbytes.sum()) == told[-1][1]
    plain = OCRStoreDataset(store_path, columns=["tensor"]).warm()
    assert plain == int(store["tensor"].nbytes.sum())


def test_polygons_outside_of_a_crop_are_gone(store_path):
    """What a crop leaves outside has no polygon, flag or text."""
    dataset = OCRStoreDataset(store_path, transform=A.Compose([A.Crop(0, 0, 60, 60)]))
    counts = {len(dataset[row]["polygons"]) for row in range(37)}
    assert 0 in counts
    for row in range(37):
        sample = dataset[row]
        assert len(sample["polygons"]) == len(sample["ignored"]) == len(sample["texts"])
        for polygon in sample["polygons"]:
            assert (polygon.max(axis=0) >= 0).all() and (polygon.min(axis=0) <= 60).all()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_transformed_batches_are_whole(store_path, workers):
    """Each batch holds the same samples as the main process computes, with annotations."""
    dataset = augmented(store_path, A.HorizontalFlip(p=1))
    seen = []
    for batch in DataLoader(dataset, batch_size=8, num_workers=workers):
        for position, row in enumerate(batch["rows"].tolist()):
            sample = dataset[row]
            assert torch.equal(batch["images"][position], sample["image"])
            assert torch.equal(batch["thresh_maps"][position], sample["thresh_map"])
            assert torch.equal(batch["inverse_matrix"][position], sample["inverse_matrix"])
            assert batch["texts"][position] == sample["texts"]
            assert batch["raw_size"][position].tolist() == sample["raw_size"].tolist()
            for mine, other in zip(batch["polygons"][position], sample["polygons"], strict=True):
                assert np.array_equal(mine, other)
        assert batch["images"].is_contiguous(memory_format=torch.channels_last)
        batch["images"].fill_(1)
        seen += batch["rows"].tolist()
    assert seen == list(range(37))


def first_pixels(dataset, *, workers=0, seed=0, epochs=1, persistent=False, **options):
    """Return what tells randomness apart: a few pixels of every sample, epoch by epoch."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=workers,
        generator=generator,
        persistent_workers=persistent,
        **options,
    )
    return [
        [tuple(b["inverse_matrix"].flatten(1)[:, 2].tolist()) for b in loader]
        for _ in range(epochs)
    ]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_random_transforms_are_random_and_repeat_with_the_seed(store_path, workers, persistent):
    """They differ between samples, workers and epochs, and the same seed gives the same ones."""
    crop = A.RandomCrop(64, 64, p=1)
    dataset = OCRStoreDataset(store_path, transform=A.Compose([crop]), columns=["tensor"])
    options = {"workers": workers, "persistent": persistent, "epochs": 2}
    first = first_pixels(dataset, seed=1, **options)
    assert first[0] != first[1]
    values = [value for epoch in first for batch in epoch for value in batch]
    assert len(set(values)) > len(values) // 3
    assert first[0][0] != first[0][1]  # the first batches of two workers
    assert first_pixels(dataset, seed=1, **options) == first
    assert first_pixels(dataset, seed=2, **options) != first


def test_ranks_and_samples_differ_under_one_seed(store_path, monkeypatch):
    """The same seed in every rank, and one draw of torch's generator, still gives other numbers."""
    dataset = OCRStoreDataset(store_path, transform=A.Compose([A.RandomCrop(64, 64)]))

    def draw(row, rank):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(5)
        return dataset[row]["inverse_matrix"].tolist()

    drawn = [draw(row, rank) for row in (0, 1) for rank in (0, 1)]
    assert len({str(matrix) for matrix in drawn}) == 4
    assert draw(1, 1) == drawn[-1]


def test_transforms_of_one_pipeline_decide_apart(store_path):
    """Two flips of equal probability do not always happen together."""
    steps = [A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5)]
    dataset = OCRStoreDataset(store_path, transform=A.Compose(steps))
    torch.manual_seed(0)
    signs = set()
    for row in range(24):
        matrix = dataset[row]["inverse_matrix"]
        signs.add((matrix[0, 0].item() > 0, matrix[1, 1].item() > 0))
    assert len(signs) == 4


@pytest.mark.parametrize("order", ["rotate first", "crop first"])
def test_planned_and_step_by_step_are_the_same(store_path, order):
    """`fuse` changes the work, not the result: every tensor and polygon of every sample."""
    crop = A.RandomCrop(120, 112, pad_if_needed=True)
    steps = [A.HorizontalFlip(), A.Affine(rotate=(-10, 10), p=1), crop, A.ColorJitter()]
    if order == "crop first":
        steps = [crop, *steps[:2], steps[3]]
    drawn = {}
    for fuse in (True, False):
        dataset = OCRStoreDataset(store_path, transform=A.Compose(steps), fuse=fuse)
        dataset = pickle.loads(pickle.dumps(dataset))
        torch.manual_seed(3)
        drawn[fuse] = [dataset[row] for row in range(37)]
    for mine, other in zip(drawn[True], drawn[False], strict=True):
        for name in ("image", "inverse_matrix", *MAPS):
            assert torch.equal(mine[name], other[name]), name
        assert mine["texts"] == other["texts"]
        for polygon, same in zip(mine["polygons"], other["polygons"], strict=True):
            assert np.array_equal(polygon, same)


def test_a_planned_picture_is_the_samples_own(store_path):
    """Writing on a sample changes neither the file nor the next sample of the same row."""
    before = store_path.read_bytes()
    dataset = OCRStoreDataset(store_path, transform=A.Compose([A.NoOp()]))
    first = dataset[0]["image"]
    kept = first.clone()
    first.fill_(9)
    assert torch.equal(dataset[0]["image"], kept)
    assert store_path.read_bytes() == before


def test_a_transform_may_write_on_the_picture(store_path):
    """The picture is private memory: not even a transform that paints on it changes the file."""

    class Paint(A.ImageOnlyTransform):
        def apply(self, img, **params):
            img[:] = 3
            return img

    before = store_path.read_bytes()
    dataset = OCRStoreDataset(store_path, transform=A.Compose([Paint(p=1)]), columns=["tensor"])
    assert (dataset[0]["image"] == 3).all()
    assert store_path.read_bytes() == before
    assert not (OCRStoreDataset(store_path, columns=["image"])[0]["image"] == 3).all()


def test_without_whole_pictures_the_view_is_transformed(tmp_path):
    """A store of baked tensors alone can be augmented, too, with polygons in the view's frame."""
    from tests.torch_.making import make_store

    path = make_store(tmp_path / "baked.ocrs", samples=4, keep_image=False)
    dataset = OCRStoreDataset(path, transform=A.Compose([A.HorizontalFlip(p=1)]))
    baked = OCRStoreDataset(path)
    sample = dataset[2]
    assert torch.equal(sample["image"], baked[2]["image"].flip(2))
    moved = baked[2]["polygons"][0].copy()
    moved[:, 0] = 159 - moved[:, 0]
    assert np.allclose(sample["polygons"][0], moved, atol=1e-3)


def test_other_callables_and_tensors(store_path):
    """A plain function is a transform; a tensor and a float picture come through."""

    def halve(image, keypoints):
        return {"image": image[::2, ::2].astype(np.float32) / 255, "keypoints": keypoints / 2}

    sample = OCRStoreDataset(store_path, transform=halve)[0]
    assert sample["image"].dtype == torch.float32
    assert sample["prob_map"].shape[1:] == sample["image"].shape[1:]
    pipeline = A.Compose([A.Resize(64, 64), A.ToTensorV2()])
    batch = OCRStoreDataset(store_path, transform=pipeline)[[0, 1]]
    assert batch["images"].shape == (2, 3, 64, 64)

    def forgetful(image, keypoints):
        return {"image": image}

    with pytest.raises(ocrstore.SchemaError, match=r"img_000.jpg.*no keypoints"):
        OCRStoreDataset(store_path, transform=forgetful)[0]

    def losing(image, keypoints):
        return {"image": image, "keypoints": keypoints[1:]}

    with pytest.raises(ocrstore.SchemaError, match="remove_invisible=False"):
        OCRStoreDataset(store_path, transform=losing)[0]
    strict = A.Compose(
        [A.Crop(0, 0, 40, 40)], keypoint_params=A.KeypointParams("xy", remove_invisible=True)
    )
    assert OCRStoreDataset(store_path, transform=strict)[0]["image"].shape == (3, 40, 40)


def failing(image, keypoints):
    """A transform with a fault."""
    raise ZeroDivisionError("by the wheel")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_name_the_file_and_the_sample(store_path, workers):
    """What goes wrong in a worker says where."""
    dataset = OCRStoreDataset(store_path, transform=failing)
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, sampler=[4, 5])
    with pytest.raises(
        ocrstore.OCRStoreError, match=r"val.ocrs: sample 'img_004.jpg' \(row 4\).*by the wheel"
    ):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_different_sizes_are_named(store_path, workers):
    """A batch of pictures of different sizes is refused with names, sizes and the remedy."""
    dataset = OCRStoreDataset(store_path, transform=A.Compose([A.NoOp()]))
    with pytest.raises(ocrstore.SchemaError, match=r"differ in 'image'.*img_00.*End the transform"):
        next(iter(DataLoader(dataset, batch_size=4, num_workers=workers)))


# --- the way from a worker to its parent


needs_slots = pytest.mark.skipif(not shared_slots.supported, reason="needs memory files")


def shared_files(*names):
    """Return the inodes of the shared memory of these names that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if any(name in line for name in names)}


@needs_slots
def test_slots_are_used_again_and_held_ones_are_not(store_path):
    """A batch that is kept stays as it is while the workers go on; memory does not grow."""
    before = shared_files("/torch_")
    dataset = augmented(store_path, A.HorizontalFlip(p=1))
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    kept = []
    for _ in range(3):
        for number, batch in enumerate(loader):
            if number == 2:
                mask = batch["prob_masks"]  # one tensor of the batch
                kept.append((mask, mask.clone(), batch["rows"].tolist()))
    del batch, mask
    reader = list(shared_slots._readers.values())[-1]  # the newest is this loader's
    assert len(reader._mapped) <= 3 + 4  # kept ones and those on their way
    for mask, was, rows in kept:
        assert torch.equal(mask, was)
        assert torch.equal(mask[0], dataset[rows[0]]["prob_mask"])
    assert sum(memory[0] for memory in reader._mapped.values()) >= 3
    kept.clear()
    del mask, was
    gc.collect()
    assert not shared_files("/torch_") - before
    del loader, reader
    gc.collect()


@needs_slots
def test_memory_of_ended_workers_is_let_go(store_path):
    """After a loader is gone, and the last batch with it, no slot stays mapped."""
    before = shared_files("ocrstore-slot")
    dataset = augmented(store_path)
    for batch in DataLoader(dataset, batch_size=8, num_workers=2):
        last = batch["images"]
    del batch
    assert (last >= 0).all()
    deadline = time.monotonic() + 300
    while shared_files("ocrstore-slot") - before:
        del last
        gc.collect()
        shared_slots._forget_ended_workers()
        last = None
        assert time.monotonic() < deadline
    readers = shared_slots._readers.values()
    assert not [reader for reader in readers if not shared_slots._is_alive(reader.pid)]


@needs_slots
def test_an_abandoned_epoch_loses_no_slot(store_path):
    """Batches that were sent and never looked at are freed when the loader starts anew."""
    dataset = augmented(store_path)
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    for _ in range(6):
        next(iter(loader))
    reader = list(shared_slots._readers.values())[-1]  # the newest is this loader's
    assert len(reader._mapped) <= 6
    del loader, reader


@pytest.mark.parametrize("how", ["unsupported", "refused"])
def test_without_memory_files_torch_shares(store_path, monkeypatch, how):
    """Where there are no memory files, batches still arrive whole."""
    if how == "unsupported":
        monkeypatch.setattr(shared_slots, "supported", False)
    else:
        monkeypatch.setattr(
            os, "memfd_create", lambda *args: (_ for _ in ()).throw(OSError("no")), raising=False
        )
    before = set(shared_slots._readers)
    dataset = augmented(store_path, columns=["tensor", "prob_map"])
    for batch in DataLoader(dataset, batch_size=8, num_workers=1):
        assert torch.equal(batch["images"][0], dataset[int(batch["rows"][0])]["image"])
    assert set(shared_slots._readers) <= before


@needs_slots
def test_a_process_that_ends_with_a_batch_says_nothing(store_path):
    """Slots that are in use when the interpreter ends cause no message on standard error."""
    code = f"""
import albumentations as A
from torch.utils.data import DataLoader
from ocrstore.torch import OCRStoreDataset

dataset = OCRStoreDataset({str(store_path)!r}, transform=A.Compose([A.CenterCrop(32, 32)]))
for batch in DataLoader(dataset, batch_size=4, num_workers=2):
    images = batch["images"]
print(tuple(images.shape[1:]))
"""
    # torch warns where workers outnumber cores
    command = [sys.executable, "-W", "ignore::UserWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(3, 32, 32)\n", "")


def test_computed_batches_pickle_anywhere(store_path):
    """Outside of a worker's queue a computed batch pickles as plain tensors."""
    from ocrstore.torch.collate import ComputedBatch

    dataset = augmented(store_path)
    computed = ComputedBatch(dataset.__getitems__([1, 2]).computed)
    for dumps in (pickle.dumps, pickle.dumps, ForkingPickler.dumps):
        batch = pickle.loads(dumps(computed))
        assert torch.equal(batch["images"][1], dataset[2]["image"])
    del batch
    with pytest.raises(RuntimeError, match="only once"):
        ForkingPickler.dumps(computed)
    both = ConcatDataset([dataset, dataset])
    batch = next(iter(DataLoader(both, batch_size=3, num_workers=1, sampler=[1, 38, 2])))
    assert torch.equal(batch["images"][1], dataset[1]["image"])
    assert batch["image_filename"] == ["img_001.jpg", "img_001.jpg", "img_002.jpg"]
    assert batch["raw_size"].shape == (3, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_of_ones_own(store_path, workers):
    """It sees samples with tensors, which are its own."""
    dataset = augmented(store_path)
    loader = DataLoader(dataset, batch_size=3, num_workers=workers, collate_fn=list)
    batches = list(loader)
    for number, sample in enumerate(sample for batch in batches for sample in batch):
        assert sample["row"] == number
        assert torch.equal(sample["image"], dataset[number]["image"])
