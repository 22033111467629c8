"""Expected sizes, and the advice that follows from them and the memory."""

import dataclasses

import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.building.estimate import HEADROOM, advise, estimate
from ocrstore.errors import SourceError
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
    """As memory shrinks, columns are compressed, then dropped; what is said is what it takes."""
    seen = []
    for share in (2.0, 0.7, 0.35, 0.2, 0.01):
        nbytes = int(expected.total_nbytes * share / HEADROOM)
        advice = advise(expected, Memory(nbytes, nbytes, "machine"))
        total = sum(expected.nbytes[name][codec] for name, codec in advice.codecs.items())
        assert advice.advised_nbytes == total
        assert advice.fits_as_advised == (total <= advice.limit_nbytes)
        assert not set(advice.dropped) & set(advice.codecs)
        seen.append(advice)
    assert seen[0].fits_as_asked and not seen[0].steps and seen[0].command == ""
    assert seen[1].codecs["image"] == "jpeg" and "--codec image=jpeg" in seen[1].command
    assert "prob_mask" in " ".join(seen[2].steps)
    assert "image" in seen[3].dropped and "--columns tensor" in seen[3].command
    assert not seen[4].fits_as_advised


def test_jpeg_is_advised_for_jpegs_only(dataset):
    """Among pictures of other formats the jpeg codec would lose some."""
    dataset.fill(3)
    dataset.add("x.png", encode(draw(), ".png"))
    views = (View("v", Recipe.make(size=SIZE), default=True),)
    expected = estimate(open_source(dataset.images), views)
    assert "jpeg" not in expected.nbytes["image"]
    advice = advise(expected, Memory(1000, 1000, "machine"))
    assert "image" in advice.dropped


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
