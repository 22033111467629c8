"""How stores, samples and batches show themselves: text, HTML, figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import ocrstore
from tests.drawn import HOSTILE, build_drawn

pytest.importorskip("torch")

from ocrstore.torch import OCRStoreDataset

MARK = '"><script>alert(1)</script>'


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    """A small store with ignored and hostile polygons."""
    return build_drawn(tmp_path_factory.mktemp("drawn"))


def tags(text):
    """All elements of a piece of HTML."""
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    parser.feed(text)
    return found


def test_text_has_names_dtypes_and_shapes(store_path):
    """One line for each value; neither payload is read nor a tensor kept."""
    store = ocrstore.open(store_path)
    assert re.search(r"tensor +uint8 +64 x 64 x 3, raw", repr(store))
    assert re.search(r"image +uint8 +\? x \? x 3, file", repr(store))
    assert repr(store["prob_map"]) == (
        f"<ocrstore.StoredColumn 'prob_map': {len(store)} rows of float16 64 x 64, lz4block>"
    )
    dataset = OCRStoreDataset(store_path)
    sample, batch = dataset[0], dataset[0:3]
    assert re.search(r"image +uint8 +3 x 64 x 64\n", repr(sample))
    assert re.search(
        r"whole_image +uint8 +3 x 96 x 128\n",
        repr(OCRStoreDataset(store_path, columns=["image", "tensor"])[0]),
    )
    assert re.search(r"polygons +list +3\n", repr(sample)) and "'a.jpg'" in repr(sample)
    assert repr(batch).startswith("Batch of 3\n")
    assert re.search(r"prob_maps +float16 +3 x 1 x 64 x 64\n", repr(batch))
    assert sample.is_reference and not batch._taken
    batch["images"] = batch["images"].float()
    assert re.search(r"images +float32 +3 x 3 x 64 x 64\n", repr(batch))


def test_html_is_a_table_and_a_picture_with_outlines(store_path):
    """A sample has its picture with all polygons; store and batch are tables."""
    dataset = OCRStoreDataset(store_path)
    sample = dataset[0]
    elements = tags(sample._repr_html_())
    assert sample.is_reference
    colours = [of["stroke"] for tag, of in elements if tag == "polygon"]
    assert colours == ["rgb(0, 230, 118)", "rgb(0, 230, 118)", "rgb(255, 82, 82)"]
    (picture,) = [of for tag, of in elements if tag == "image"]
    assert picture["href"].startswith("data:image/jpeg;base64,") and picture["width"] == "64"
    for shown in (dataset[0:2], ocrstore.open(store_path)):
        elements = tags(shown._repr_html_())
        assert len([tag for tag, _ in elements if tag == "tr"]) >= 7
        assert not any(tag == "svg" for tag, _ in elements)


def test_hostile_names_stay_text(tmp_path):
    """Markup in a key, in a path or in a value makes no element; control characters are escaped."""
    path = tmp_path / "<b>a.ocrs"
    columns = {"tensor": ocrstore.Column("uint8", (8, 8, 3))}
    with ocrstore.create(path, columns) as writer:
        writer.append(MARK + "\x1b[2J$x_", {"tensor": np.zeros((8, 8, 3), np.uint8)})
    store = ocrstore.open(path)
    sample = OCRStoreDataset(path)[0]
    sample["note"] = HOSTILE
    for shown in (store, sample):
        names = {tag for tag, _ in tags(shown._repr_html_())}
        assert names <= {"div", "b", "table", "tr", "td", "svg", "image", "polygon"}
        assert "\x1b" not in shown._repr_html_() + repr(shown)
    figure = ocrstore.plot(sample)
    assert "$x_" in figure.axes[0].get_title() and "\x1b" not in figure.axes[0].get_title()


def test_a_closed_store_is_text_alone(store_path):
    """A notebook falls back to the text."""
    with ocrstore.open(store_path) as store:
        assert "<table>" in store._repr_html_()
    assert store._repr_html_() is None and "closed" in repr(store)


def test_a_damaged_sample_can_be_shown(tmp_path):
    """A value that cannot be read is named in its line."""
    path = tmp_path / "a.ocrs"
    columns = {"tensor": ocrstore.Column("uint8", (8, 8, 3), codec="zstd")}
    with ocrstore.create(path, columns) as writer:
        writer.append("a", {"tensor": np.zeros((8, 8, 3), np.uint8)})
    place = int(ocrstore.open(path)["tensor"].offsets[0])
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 8)
    sample = OCRStoreDataset(path)[0]
    assert re.search(r"image +uint8 +3 x 8 x 8\n", repr(sample))
    assert "<table>" in sample._repr_html_() and "<svg" not in sample._repr_html_()


def test_plot_draws_picture_polygons_and_maps(store_path, tmp_path):
    """A row for each sample: the picture with every outline, then each map."""
    import matplotlib.pyplot as plt

    dataset = OCRStoreDataset(store_path)
    figure = ocrstore.plot(dataset[0])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["a.jpg", "prob_map", "thresh_map", "prob_mask", "thresh_mask"]
    assert len(figure.axes[0].patches) == 3
    drawn = figure.axes[1].images[0].get_array()
    assert np.array_equal(drawn, dataset[0]["prob_map"][0].float())
    assert len(ocrstore.plot(dataset[0:6]).axes) == 4 * 5  # at most four samples
    assert len(ocrstore.plot(dataset[0:6], limit=2).axes) == 2 * 5
    assert len(ocrstore.plot(dataset[0:3].as_dict()).axes) == 3 * 5  # a plain dict will do
    whole = OCRStoreDataset(store_path, columns=["image"])
    assert ocrstore.plot(whole[1]).axes[0].images[0].get_array().shape == (128, 64, 3)
    normalized = dataset[0]
    normalized["image"] = (normalized["image"].float() - 120) / 50
    pixels = ocrstore.plot(normalized).axes[0].images[0].get_array()
    assert pixels.min() == 0 and pixels.max() == 255
    ocrstore.plot(dataset[0:2]).savefig(tmp_path / "a.png")
    plt.close("all")


def test_what_cannot_be_drawn_is_named(store_path):
    """Something else than a sample or a batch, or one without pictures and maps."""
    with pytest.raises(TypeError, match="expected a sample or a batch, found Store"):
        ocrstore.plot(ocrstore.open(store_path))
    with pytest.raises(TypeError, match="expected a picture or maps, found inverse_matrix"):
        ocrstore.plot(OCRStoreDataset(store_path, columns=["inverse_matrix"])[0])
