"""Expected sizes, and the advice that follows from them and the memory."""

import dataclasses
import shutil
from types import SimpleNamespace

import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.building.estimate import HEADROOM, advise, estimate
from ocrstore.errors import SourceError, WriteError
from ocrstore.machine import Memory
from ocrstore.recipe import Recipe
from ocrstore.sources import open_source
from ocrstore.views import View
from tests.building.conftest import SIZE, draw, encode


def test_the_estimate_is_what_a_build_makes(dataset):
    """Expected and real bytes agree: exactly for raw columns, nearly for compressed ones."""
    for i in range(30):
        dataset.add(f"{i}.jpg", encode(draw(60 + 5 * i, 80, seed=i)))
    dataset.add("bad.jpg", b"bad")
    recipe = Recipe.make(size=SIZE, codecs={"prob_map": "zstd", "thresh_mask": "lz4"})
    source = open_source(dataset.images)
    expected = estimate(source, (View("v", recipe, default=True),))
    report = build(dataset.images, dataset.store, recipe=recipe, workers=0)
    scale = 30 / 31  # the estimate cannot know of the one that fails
    for name, nbytes in report.columns.items():
        wide = 0.2 if name in ("prob_map", "thresh_mask") else 0.01
        assert abs(expected.columns[name] * scale - nbytes) <= wide * nbytes, name
    assert expected.total_nbytes == sum(expected.columns.values())


def test_an_estimate_of_nothing(dataset):
    """Where no picture can be used there is nothing to expect."""
    dataset.add("bad.jpg", b"bad")
    with pytest.raises(SourceError, match="none can be used"):
        estimate(open_source(dataset.images), (View("v", Recipe(), default=True),))


@pytest.fixture
def expected(dataset):
    """What ten pictures would take, in every codec."""
    dataset.fill(10)
    views = (View("v", Recipe.make(size=SIZE), default=True),)
    return estimate(open_source(dataset.images), views)


def test_advice_follows_the_memory(expected):
    """As memory shrinks, presets are tried, then `image` is dropped; what is said is true."""
    presets = {name: cost.nbytes / expected.total_nbytes for name, cost in expected.presets.items()}
    assert presets["fast"] == 1 > presets["balanced"] > presets["small"]
    seen = []
    for share in (2.0, presets["balanced"], presets["small"], presets["small"] * 0.9, 0.01):
        nbytes = int(expected.total_nbytes * share / HEADROOM) + 2
        advice = advise(expected, Memory(nbytes, nbytes, "machine"))
        total = sum(expected.nbytes[name][codec] for name, codec in advice.codecs.items())
        assert advice.advised_nbytes == total
        assert advice.fits_as_advised == (total <= advice.limit_nbytes)
        assert not set(advice.dropped) & set(advice.codecs)
        seen.append(advice)
    assert seen[0].fits_as_asked and not seen[0].steps and seen[0].command == ""
    assert seen[1].codecs["image"] == "file" and seen[1].command == "--preset balanced"
    assert seen[2].command == "--preset small" and seen[2].fits_as_advised
    assert "image" in seen[3].dropped and "--columns tensor" in seen[3].command
    assert not seen[4].fits_as_advised


def test_presets_are_estimated_for_pictures_of_all_formats(dataset):
    """Sizes and times of each preset; those of a build with it are nearly the same."""
    dataset.fill(3)
    dataset.add("x.png", encode(draw(), ".png"))
    dataset.add("y.bmp", encode(draw(), ".bmp"))
    views = (View("v", Recipe.make(size=SIZE), default=True),)
    expected = estimate(open_source(dataset.images), views)
    for preset, cost in expected.presets.items():
        report = build(dataset.images, dataset.store, size=SIZE, preset=preset, workers=0)
        assert report.ok and cost.nbytes == pytest.approx(sum(report.columns.values()), rel=0.05)
        assert cost.batch_seconds > 0 and (cost.picture_seconds > 0) == (preset != "fast")


def test_the_advised_build_is_as_large_as_advised(dataset, expected):
    """The command's options make what the advice says."""
    nbytes = int(expected.total_nbytes * 0.3 / HEADROOM)
    advice = advise(expected, Memory(nbytes, nbytes, "machine"))
    report = build(
        dataset.images,
        dataset.store,
        recipe=Recipe.make(size=SIZE, columns=list(advice.codecs), codecs=dict(advice.codecs)),
        workers=0,
    )
    assert sum(report.columns.values()) <= advice.advised_nbytes * 1.05
    assert dataclasses.asdict(advice)["memory"]["limited_by"] == "machine"
    assert ocrstore.verify(dataset.store).ok


@pytest.fixture
def disk(monkeypatch):
    """Set the free space that the system reports."""

    def disk(free):
        def usage(_):
            if free is None:
                raise OSError("not told")
            return SimpleNamespace(free=free)

        monkeypatch.setattr(shutil, "disk_usage", usage)

    return disk


def test_a_build_that_does_not_fit_the_disk_does_not_start(dataset, disk):
    """The error names needed and free bytes, and no file is left; what fits just so is built."""
    dataset.fill(10)
    options = {"size": SIZE, "workers": 0}
    needed = sum(build(dataset.images, dataset.root / "other.ocrs", **options).columns.values())
    disk(needed - 1)
    with pytest.raises(WriteError, match=rf"about {needed:,} bytes.* has {needed - 1:,} free"):
        build(dataset.images, dataset.store, **options)
    assert not [p.name for p in dataset.root.iterdir() if "out.ocrs" in p.name]
    disk(needed)
    assert build(dataset.images, dataset.store, **options).ok


def test_only_what_is_written_needs_room(dataset, disk):
    """Nothing to do and one more picture are no rebuild; another size is."""
    dataset.fill(10)
    options = {"size": SIZE, "workers": 0}
    report = build(dataset.images, dataset.store, **options)
    each = sum(report.columns.values()) // 10
    disk(0)
    assert build(dataset.images, dataset.store, **options).action == "nothing"
    dataset.add("new.jpg")
    with pytest.raises(WriteError, match="has 0 free"):
        build(dataset.images, dataset.store, **options)
    disk(2 * each)
    assert build(dataset.images, dataset.store, **options).samples == 11
    with pytest.raises(WriteError, match="Nothing was written"):
        build(dataset.images, dataset.store, size=2 * SIZE, workers=0)


def test_a_compressed_store_needs_less_room(dataset, disk):
    """Where raw columns would not fit, samples are compressed before a build is refused."""
    dataset.fill(10)
    names = ("tensor", "prob_map", "thresh_map", "prob_mask", "thresh_mask")
    recipe = Recipe.make(size=SIZE, codecs={"image": "file"} | dict.fromkeys(names, "zstd"))
    raw = estimate(open_source(dataset.images), (View("v", Recipe.make(size=SIZE), default=True),))
    disk(raw.total_nbytes - 1)
    assert build(dataset.images, dataset.store, recipe=recipe, workers=0).ok
    disk(1000)
    with pytest.raises(WriteError, match="the build needs about"):
        build(dataset.images, dataset.store, recipe=recipe, workers=0, force=True)


def test_pictures_that_stay_files_need_no_estimate(dataset, disk, monkeypatch):
    """Decoded they would not fit the disk; as files they do, so no sample is measured."""
    dataset.fill(10)
    recipe = Recipe.make(size=SIZE, columns=["image"], codecs={"image": "file"})
    sizes = [path.stat().st_size for path in dataset.images.glob("*.jpg")]
    assert len(sizes) == 10
    disk(sum(sizes) + 1)
    monkeypatch.setattr("ocrstore.building.estimate.estimate", None)
    assert build(dataset.images, dataset.store, recipe=recipe, workers=0).ok


def test_a_disk_that_does_not_tell(dataset, disk):
    """Without an answer, or without a picture to estimate by, the build goes on."""
    dataset.fill(2)
    disk(None)
    assert build(dataset.images, dataset.store, size=SIZE, workers=0).ok
    disk(0)
    for path in dataset.images.iterdir():
        path.write_bytes(b"bad")
    with pytest.raises(SourceError, match="none of the 2 pictures can be used"):
        build(dataset.images, dataset.root / "bad.ocrs", size=SIZE, workers=0)
