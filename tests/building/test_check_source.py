"""`verify --source`: whatever differs between a store and its source is found and named."""

import numpy as np
import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.errors import SchemaError
from ocrstore.verification import verify
from tests.building.conftest import SIZE, draw, encode


def rewrite(dataset, column, change, key="img_001.jpg"):
    """Replace one sample by itself with one array changed."""
    store = ocrstore.open(dataset.store)
    row = store.row(key)
    arrays = {name: np.array(store[name][row]) for name in store.columns}
    change(arrays[column])
    attributes = store.attributes(row, as_stored=True)
    with ocrstore.edit(dataset.store) as writer:
        writer.replace(key, arrays, attributes=attributes)


@pytest.fixture
def built(dataset):
    """Six pictures, built."""
    dataset.fill(6)
    build(dataset.images, dataset.store, size=SIZE, workers=0)
    return dataset


def test_a_true_store(built):
    """Every sample is compared, every byte of it, by workers or without."""
    for workers in (0, 2):
        result = verify(built.store, source=built.images, workers=workers)
        assert result.ok and result.samples == result.of == 6
    per_view = SIZE * SIZE * (3 + 2 * 2 + 2) + 72
    files = sum(path.stat().st_size for path in built.images.iterdir())
    assert result.compared_nbytes == files + 6 * per_view


@pytest.mark.parametrize("column", ["image", "tensor", "prob_map", "thresh_mask", "inverse_matrix"])
def test_one_changed_value_is_found(built, column):
    """A single bit in any column is found, with its place; the file itself is sound."""

    def change(array):
        array.reshape(-1).view(np.uint8)[-1] ^= 1

    rewrite(built, column, change)
    assert ocrstore.verify(built.store).ok
    (finding,) = verify(built.store, source=built.images, workers=0).findings
    assert finding.sample == "img_001.jpg" and finding.column == column
    assert finding.message.startswith("1 of ")


def test_changed_sources_are_found(built):
    """Another picture, another annotation, one gone, one more, one broken."""
    built.add("img_000.jpg", seed=50)
    built.annotate("img_001.jpg", "5,5,60,5,60,40,5,40,x")
    (built.images / "img_002.jpg").unlink()
    built.add("img_9.jpg", seed=60)
    built.add("img_8.jpg", b"never a picture")
    (built.images / "img_003.jpg").write_bytes(b"")
    result = verify(built.store, source=built.images, workers=0)
    found = {(f.sample, f.column or f.message.split(" is ")[0]) for f in result.findings}
    assert ("img_000.jpg", "image") in found and ("img_000.jpg", "tensor") in found
    assert ("img_001.jpg", "attribute polygons") in found and ("img_001.jpg", "prob_map") in found
    messages = {f.sample: f.message for f in result.findings}
    assert "not in the source" in messages["img_002.jpg"]
    assert "not in the store" in messages["img_9.jpg"]
    assert "cannot be used any more" in messages["img_003.jpg"]
    assert "img_8.jpg" not in messages and "img_8.jpg" in result.notes[0]


def test_a_quick_look(built):
    """`sample` compares so many, always the same ones."""
    result = verify(built.store, source=built.images, sample=2, workers=0)
    assert result.ok and result.samples == 2 and result.of == 6
    assert verify(built.store, source=built.images, sample=99, workers=0).samples == 6
    with pytest.raises(SchemaError, match="1 or more"):
        verify(built.store, source=built.images, sample=0)


def test_another_shape_is_found(built):
    """A picture of another size is said to be one."""
    (built.images / "img_001.jpg").write_bytes(encode(draw(91, 120, seed=1)))
    result = verify(built.store, source=built.images, workers=0)
    assert any("height is 90" in f.message for f in result.findings)
    assert any(f.column == "image" for f in result.findings)


def test_a_store_of_something_else(built, tmp_path):
    """Only a store that was built from pictures has a source."""
    other = tmp_path / "other.ocrs"
    with ocrstore.create(other, {"x": ocrstore.Column("uint8", ())}) as writer:
        writer.append("a", {"x": 1})
    with pytest.raises(SchemaError, match="not built from pictures"):
        verify(other, source=built.images)


def test_options_of_a_source_need_one(built):
    """Options that have no meaning without a source are refused, not ignored."""
    with pytest.raises(SchemaError, match="sample, workers: only with `source`"):
        verify(built.store, sample=2, workers=0)
    assert verify(built.store).ok
