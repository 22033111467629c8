"""`ocrstore.dali`, where DALI is installed; `test_environments.py` sees to that."""

import io
import json

import cv2
import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia.dali", reason="DALI is not installed")

from nvidia.dali import fn, pipeline_def
from torch.utils.data import DataLoader

import ocrstore
from ocrstore.augment import BasicAugmentation
from ocrstore.dali import DALILoader, pipeline
from ocrstore.decode import decode
from ocrstore.errors import CorruptStoreError, DecodeError, SchemaError
from ocrstore.torch import OCRStoreDataset, ResumableSampler

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of DALI's own imports

COUNT = 11
SIZE = (120, 160)


def draw(number):
    """Return a smooth bright picture with two dark quadrilaterals, and these."""
    rng = np.random.default_rng(number)
    height, width = 200 + 12 * number, 300 - 8 * number
    small = rng.integers(170, 255, (height // 20, width // 20, 3), np.uint8)
    picture = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    quads = []
    for left, top in ((0.1, 0.15), (0.2, 0.6)):
        box = np.array([(0, 0), (0.6, 0.05), (0.6, 0.25), (0, 0.2)]) + np.array((left, top))
        quad = np.rint(box * (width, height)).astype(np.int32)
        cv2.fillPoly(picture, [quad], (10, 20, 30))
        quads.append(quad)
    return picture, quads


def as_jpeg(picture, orientation):
    """Return a JPEG file whose picture is shown as this one, by its EXIF orientation."""
    turns = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}
    image, turn = Image.fromarray(picture), turns[orientation]
    exif = Image.Exif()
    exif[0x112] = orientation
    file = io.BytesIO()
    (image if turn is None else image.transpose(turn)).save(file, "JPEG", quality=97, exif=exif)
    return file.getvalue()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores of the same pictures: raw, as files in three orientations, and views only."""
    folder = tmp_path_factory.mktemp("stores")
    orientations = [1, 3, 6] * COUNT
    samples = []
    for number, orientation in zip(range(COUNT), orientations, strict=False):
        picture, quads = draw(number)
        file = as_jpeg(picture, orientation)
        if number == 7:  # a file that is no JPEG, where such are stored
            file = cv2.imencode(".png", picture[..., ::-1])[1].tobytes()
        samples.append(ocrstore.SourceSample(f"{number}.jpg", file, quads))
    kinds = {
        "raw": {"codecs": {"image": "raw"}},
        "file": {"codecs": {"image": "file"}},
        "lz4": {"codecs": {"image": "lz4"}},
        "view": {"columns": ["tensor", "prob_map", "inverse_matrix"]},
    }
    for kind, options in kinds.items():
        ocrstore.build(
            samples,
            folder / f"{kind}.ocrs",
            size=256,
            workers=0,
            polygons_frame="upright",
            **options,
        )
    return folder


def dataset_of(stores, kind="raw", **changes):
    """Return a data set; colours stay as they are unless asked for."""
    transform = BasicAugmentation(*SIZE, **{"colour": 0, "scale": (0.9, 1.5), **changes})
    return OCRStoreDataset(stores / f"{kind}.ocrs", transform=transform)


def in_order(dataset):
    """Return a sampler that does not shuffle."""
    return ResumableSampler(dataset, shuffle=False)


def rows_of(loader):
    """Return the rows of one pass, batch by batch."""
    return [batch["rows"].tolist() for batch in loader]


@pytest.mark.parametrize("kind", ["raw", "file", "lz4", "view"])
def test_the_picture_is_warped_by_the_matrix(stores, kind):
    """DALI's warp equals OpenCV's, whose coordinates start at the centre of the first pixel."""
    dataset = dataset_of(stores, kind)
    store = ocrstore.open(stores / f"{kind}.ocrs")
    pictures = store["image" if "image" in store.columns else "tensor"]
    differences = []
    for batch in DALILoader(dataset, batch_size=4):
        for image, row, back in zip(
            batch["images"], batch["rows"], batch["inverse_matrix"], strict=True
        ):
            matrix = back.numpy()[:2].copy()
            matrix[:, 2] += matrix[:, :2] @ (0.5, 0.5) - 0.5
            flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            expected = cv2.warpAffine(pictures[int(row)], matrix, SIZE[::-1], flags=flags)
            found = image.permute(1, 2, 0).numpy()
            differences.append(np.abs(found.astype(int) - expected).mean())
    assert len(differences) == COUNT and max(differences) < 0.05


@pytest.mark.parametrize("kind", ["raw", "file"])
def test_batches_are_those_of_the_data_set(stores, kind):
    """Same keys, shapes, strides and dtypes; for the same random numbers same maps and polygons."""
    dataset = dataset_of(stores, kind)
    sampler = in_order(dataset)
    torch.manual_seed(3)
    expected = next(iter(DataLoader(dataset, batch_size=5, sampler=sampler)))
    torch.manual_seed(3)
    found = next(iter(DALILoader(dataset, batch_size=5, sampler=in_order(dataset))))
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert type(found[name]) is type(value)
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
            assert found[name].stride() == value.stride(), name
            if name != "images":
                assert torch.equal(found[name], value), name
        elif name == "polygons":
            for mine, theirs in zip(found[name], value, strict=True):
                assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
        else:
            assert found[name] == value, name
    # fewer than half as many pixels as before: the data set shrinks such pictures in two steps
    difference = (found["images"].int() - expected["images"].int()).abs().float().mean()
    assert difference < 1.5


@pytest.mark.parametrize("kind", ["raw", "file", "view"])
def test_polygons_and_maps_lie_on_the_text(stores, kind):
    """Polygons move by the matrix of the picture; where the map is 1, the picture is dark."""
    dataset = dataset_of(stores, kind)
    store = ocrstore.open(stores / f"{kind}.ocrs")
    drawn = 0
    for batch in DALILoader(dataset, batch_size=4):
        for number in range(batch.batch_size):
            key = batch["image_filename"][number]
            back = batch["inverse_matrix"][number].numpy()
            if "image" not in store.columns:  # from the view on to the picture
                back = store["inverse_matrix"][key] @ back
            quads = [quad.astype(float) for quad in draw(int(key.split(".")[0]))[1]]
            for polygon in batch["polygons"][number]:
                moved = np.c_[polygon, np.ones(len(polygon))] @ back.T
                points = moved[:, :2] / moved[:, 2:]
                assert min(np.abs(points - quad).max() for quad in quads) < 1e-3
            inside = batch["prob_maps"][number, 0].bool()
            assert (batch["images"][number, :, inside] < 80).float().mean() > 0.99
            drawn += int(inside.sum())
    assert drawn > 5000


def test_every_sample_once_in_every_epoch(stores):
    """With shards, each in its order; the last batch is smaller, or left out."""
    dataset = dataset_of(stores)
    shards = [
        DALILoader(
            dataset, batch_size=2, sampler=ResumableSampler(dataset, num_replicas=2, rank=rank)
        )
        for rank in range(2)
    ]
    orders = []
    for _ in range(3):
        epoch = [rows_of(shard) for shard in shards]
        assert [[len(rows) for rows in shard] for shard in epoch] == [[2, 2, 2], [2, 2, 1]]
        order = [row for shard in epoch for rows in shard for row in rows]
        assert sorted(order) == list(range(COUNT))
        orders.append(order)
    assert orders[0] != orders[1] != orders[2]
    dropping = DALILoader(dataset, batch_size=4, drop_last=True)
    assert len(dropping) == 2 and [len(rows) for rows in rows_of(dropping)] == [4, 4]
    assert [len(rows) for rows in rows_of(dropping)] == [4, 4]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_resumed(stores, workers):
    """A state counts what was handed out, whatever DALI and workers have prefetched."""
    dataset = dataset_of(stores)
    loader = DALILoader(dataset, batch_size=2, num_workers=workers)
    whole = rows_of(loader)
    assert loader.state_dict()["epoch"] == 1
    for used in range(1, len(whole) + 1):
        loader.sampler.set_epoch(0)
        passing = iter(loader)
        assert [next(passing)["rows"].tolist() for _ in range(used)] == whole[:used]
        state = loader.state_dict()
        del passing  # what was prefetched is dropped
        again = DALILoader(dataset, batch_size=2)
        again.load_state_dict(state)
        assert again.state_dict() == state
        if used < len(whole):
            assert rows_of(again) == whole[used:]
        assert again.state_dict()["epoch"] == 1 and again.state_dict()["position"] == 0
        rows_of(again)
        assert again.state_dict()["epoch"] == 2
    loader.sampler.set_epoch(0)
    next(iter(loader))
    drawn = []
    for rank in range(2):
        sampler = ResumableSampler(dataset, num_replicas=2, rank=rank)
        one = DALILoader(dataset, batch_size=2, sampler=sampler)
        one.load_state_dict(loader.state_dict())
        drawn += [row for rows in rows_of(one) for row in rows]
    assert sorted(drawn) == sorted(row for rows in whole[1:] for row in rows)


def test_tensors_are_yours(stores):
    """Batches that are kept stay as they are; writing to one changes nothing else."""
    dataset = dataset_of(stores)
    store = ocrstore.open(stores / "raw.ocrs")
    before = [store["image"][row].copy() for row in range(COUNT)]
    kept = []
    for _ in range(3):
        for batch in DALILoader(dataset, batch_size=3):
            kept.append((batch, batch["images"].clone(), batch["prob_maps"].clone()))
    for batch, images, maps in kept:
        assert torch.equal(batch["images"], images) and torch.equal(batch["prob_maps"], maps)
        batch["images"].fill_(7)
        batch["prob_maps"].fill_(7)
    assert all(np.array_equal(a, store["image"][row]) for row, a in enumerate(before))


def test_colours(stores):
    """Brightness and saturation are those of the data set's own augmentation."""
    change = {"colour": 1, "contrast": 0, "brightness": 0.4, "saturation": 0.4}
    exact = {"scale": (1, 1), "rotate": 0, "flip": 0}
    dataset = dataset_of(stores, **exact, **change)
    torch.manual_seed(3)
    expected = next(iter(DataLoader(dataset, batch_size=8, sampler=in_order(dataset))))["images"]
    torch.manual_seed(3)
    found = next(iter(DALILoader(dataset, batch_size=8, sampler=in_order(dataset))))["images"]
    plain = dataset_of(stores, **exact)
    torch.manual_seed(3)
    before = next(iter(DataLoader(plain, batch_size=8, sampler=in_order(plain))))["images"]
    difference = (found.int() - expected.int()).abs().float().mean(dim=(1, 2, 3))
    changed = (before.int() - expected.int()).abs().float().mean(dim=(1, 2, 3))
    assert difference.max() < 2 and changed.max() > 20


def test_other_targets_and_several_stores(stores):
    """What `targets=` draws is in the batch; rows are those of the whole data set."""

    def corners(polygons, ignored, height, width):
        found = np.zeros((height, width), np.uint8)
        found[0, : len(polygons)] = 1
        return {"corners": found}

    paths = [stores / "file.ocrs", stores / "raw.ocrs"]
    dataset = OCRStoreDataset(paths, transform=BasicAugmentation(*SIZE), targets=corners)
    seen = []
    for batch in DALILoader(dataset, batch_size=4):
        assert batch["corners"].sum(dim=(1, 2)).tolist() == [len(p) for p in batch["polygons"]]
        assert "prob_maps" not in batch
        seen += batch["rows"].tolist()
    assert sorted(seen) == list(range(2 * COUNT))


def test_the_pipeline_alone(stores):
    """It is an ordinary DALI pipeline, an epoch at a time."""
    dataset = dataset_of(stores)
    pipe = pipeline(dataset, batch_size=4)
    for _ in range(2):
        seen = []
        while True:
            try:
                images, matrices, rows, *maps = pipe.run()
            except StopIteration:
                pipe.reset()
                break
            seen += np.asarray(rows.as_tensor()).tolist()
            assert images.as_tensor().shape()[1:] == [*SIZE, 3]
            assert matrices.as_tensor().shape()[1:] == [3, 3] and len(maps) == 4
        assert sorted(seen) == list(range(COUNT))


def test_what_is_refused(stores):
    """Other transforms, other dtypes, and no data."""
    path = stores / "raw.ocrs"
    with pytest.raises(SchemaError, match="its transform is NoneType; DALI computes"):
        DALILoader(OCRStoreDataset(path), batch_size=2)
    basic = BasicAugmentation(*SIZE)
    with pytest.raises(SchemaError, match="leave out normalize= and numpy="):
        DALILoader(OCRStoreDataset(path, transform=basic, normalize=True), batch_size=2)
    with pytest.raises(ValueError, match="prefetch=1: expected at least 2"):
        DALILoader(dataset_of(stores), batch_size=2, prefetch=1)


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        ("signature", DecodeError, "not a picture that can be read"),
        ("size", CorruptStoreError, "its header promises 32 x 24 pixels, recorded are"),
        ("half", RuntimeError, "in a batch of"),
    ],
)
def test_a_damaged_picture_is_named(stores, tmp_path, damage, error, said):
    """In our error about its header, or beside DALI's about the rest."""
    store = ocrstore.open(stores / "file.ocrs")
    old = bytes(store["image"].stored(4))
    small = as_jpeg(np.zeros((24, 32, 3), np.uint8), 1)
    new = {"signature": old[:2], "size": small, "half": old[: len(old) // 2]}[damage]
    data = bytearray((stores / "file.ocrs").read_bytes())
    start = int(store["image"].offsets[4])
    data[start : start + len(old)] = new.ljust(len(old), b"\0")
    (tmp_path / "file.ocrs").write_bytes(data)
    dataset = dataset_of(tmp_path, "file")
    with pytest.raises(error) as caught:
        rows_of(DALILoader(dataset, batch_size=2, sampler=in_order(dataset)))
    message = [str(caught.value), *getattr(caught.value, "__notes__", ())][-1]
    assert said in message and repr(store.keys[4]) in message


@pytest.mark.filterwarnings("ignore")  # of Lightning: few workers, no logger
def test_lightning_takes_it(stores, tmp_path):
    """A Trainer draws whole epochs, and resumes within one from its checkpoint."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    seen = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 1, 1)

        def training_step(self, batch):
            seen.append(batch["rows"].tolist())
            return self.layer(batch["images"].float()).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    def fit(checkpoint=None):
        saving = ModelCheckpoint(tmp_path, every_n_train_steps=4, filename="{step}", save_top_k=-1)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            callbacks=[saving],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), DALILoader(dataset_of(stores), batch_size=4), ckpt_path=checkpoint)

    fit()
    whole = seen.copy()
    for epoch in (whole[:3], whole[3:]):
        assert sorted(row for rows in epoch for row in rows) == list(range(COUNT))
    seen.clear()
    fit(tmp_path / "step=4.ckpt")
    assert seen == whole[4:]


@pytest.mark.parametrize("kind", ["raw", "file"])
def test_dali_reads_exported_shards(stores, tmp_path, kind):
    """`readers.webdataset` gives every picture with its annotation and map; DALI decodes it."""
    out = tmp_path / "out"
    ocrstore.export(stores / f"{kind}.ocrs", to="webdataset", out=out, shard_size=2_000_000)
    shards = sorted(map(str, out.glob("*.tar")))
    assert len(shards) > 1

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def reading():
        file, record, prob_map = fn.readers.webdataset(
            paths=shards,
            ext=["jpg;png", "json", "prob_map.npy"],
            missing_component_behavior="error",
        )
        return file, fn.decoders.image(file, device="cpu"), record, prob_map

    built = reading()
    built.build()
    store = ocrstore.open(stores / f"{kind}.ocrs")
    for key in store.keys:
        file, picture, record, prob_map = (output.at(0) for output in built.run())
        given = json.loads(record.tobytes())
        assert given["key"] == key and given["polygons"]
        assert np.array_equal(decode(file.tobytes()).pixels, store["image"][key])
        assert np.abs(picture.astype(int) - store["image"][key]).mean() < 1.5
        assert np.array_equal(np.load(io.BytesIO(prob_map.tobytes())), store["prob_map"][key])


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", ["raw", "file", "view"])
def test_on_a_gpu(stores, kind):
    """The GPU computes what the CPU computes; pictures and maps are there, the rest on the host."""
    dataset = dataset_of(stores, kind, colour=1)
    torch.manual_seed(3)
    expected = list(DALILoader(dataset, batch_size=4, sampler=in_order(dataset)))
    torch.manual_seed(3)
    found = list(DALILoader(dataset, batch_size=4, sampler=in_order(dataset), device="cuda"))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert set(mine) == set(theirs)
        assert mine["images"].is_cuda and mine["prob_maps"].is_cuda
        assert not mine["rows"].is_cuda and not mine["inverse_matrix"].is_cuda
        assert torch.equal(mine["rows"], theirs["rows"])
        assert torch.equal(mine["prob_maps"].cpu(), theirs["prob_maps"])
        difference = (mine["images"].cpu().int() - theirs["images"].int()).abs().float().mean()
        assert difference < 1.5  # nvJPEG rounds otherwise than libjpeg-turbo


@pytest.mark.gpu
@needs_gpu
def test_kept_batches_on_a_gpu(stores):
    """Batches that are kept stay as they are, while the loop computes on torch's stream."""
    dataset = dataset_of(stores)
    kept = []
    for _ in range(4):
        for batch in DALILoader(dataset, batch_size=2, device="cuda", num_workers=2):
            kept.append((batch, batch["images"].clone(), batch["prob_maps"].clone()))
    torch.cuda.synchronize()
    for batch, images, maps in kept:
        assert torch.equal(batch["images"], images) and torch.equal(batch["prob_maps"], maps)
