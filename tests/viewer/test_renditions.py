"""Thumbnails and layers: right pixels, right place, one tag per content."""

import cv2
import numpy as np
import pytest

import ocrstore
from ocrstore.viewer.renditions import (
    COLOURS,
    MAX_SIDE,
    Outline,
    Thumbnails,
    encode_map,
    encode_picture,
    find_picture,
    find_views,
    picture_size,
    shown_matrices,
)


def decode(data, flags=cv2.IMREAD_UNCHANGED):
    """Decode as the browser would; RGB."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    return pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]


def test_views(opened):
    """The manifest says which column is what."""
    (view,) = find_views(opened)
    assert view.name == "64" and view.maps == ["prob_map", "thresh_map", "prob_mask", "thresh_mask"]
    assert find_picture(opened) == "image"
    assert picture_size(opened, 1, "image") == (160, 120)
    np.testing.assert_allclose(shown_matrices(opened, 0, view)[0], np.diag([0.4, 0.4, 1]))


def test_a_store_of_other_columns(make_store):
    """Without a manifest's word, names and shapes decide; without pictures there are none."""
    store = ocrstore.open(make_store())
    (view,) = find_views(store)
    assert view.columns == {"tensor": "tensor"} and find_picture(store) == "image"
    assert shown_matrices(store, 0, view) is None
    thumbnails = Thumbnails(store, "image", view)
    assert decode(thumbnails.make(2, 320, [])).shape == (64, 64, 3)


def test_a_thumbnail_is_cut_to_the_picture(opened):
    """The padding of the view is not shown."""
    (view,) = find_views(opened)
    thumbnails = Thumbnails(opened, "image", view)
    assert decode(thumbnails.make(0, 160, [])).shape == (48, 64, 3)
    assert decode(thumbnails.make(1, 160, [])).shape == (64, 48, 3)
    assert decode(Thumbnails(opened, "image", None).make(1, 80, [])).shape == (80, 60, 3)


def test_outlines_are_drawn_where_the_polygon_is(opened):
    """The polygon goes through the matrix and the cut."""
    (view,) = find_views(opened)
    box = np.array([[40.0, 50], [120, 50], [120, 100], [40, 100]])
    thumbnails = Thumbnails(opened, "image", view)
    drawn = decode(thumbnails.make(0, 160, [Outline(box, "miss")])).astype(int)
    plain = decode(thumbnails.make(0, 160, [])).astype(int)
    rows, columns = np.nonzero(np.abs(drawn - plain).sum(axis=2) > 120)
    assert abs(rows.min() - 20) <= 2 and abs(rows.max() - 40) <= 2
    assert abs(columns.min() - 16) <= 2 and abs(columns.max() - 48) <= 2
    assert len(COLOURS["miss"]) == 3


def test_tags(opened):
    """The tag tells contents, sizes and outlines apart."""
    (view,) = find_views(opened)
    thumbnails = Thumbnails(opened, "image", view)
    outline = [Outline(np.zeros((3, 2)), "truth")]
    tags = [
        thumbnails.tag(0, 160, []),
        thumbnails.tag(1, 160, []),
        thumbnails.tag(0, 320, []),
        thumbnails.tag(0, 160, outline),
    ]
    assert len(set(tags)) == 4 and tags[0] == thumbnails.tag(0, 160, [])
    assert tags[0].startswith(f'"{int(opened["tensor"].hashes[0]):016x}')


def test_pictures_are_lossless_while_small(opened):
    """What is looked at closely is what is stored; huge ones are made smaller."""
    data, kind = encode_picture(opened["tensor"][3])
    assert kind == "image/png"
    np.testing.assert_array_equal(decode(data), opened["tensor"][3])
    data, kind = encode_picture(np.zeros((20, MAX_SIDE + 1000, 3), np.uint8))
    assert max(decode(data).shape) == MAX_SIDE
    assert encode_picture(np.zeros((1500, 1500, 3), np.uint8))[1] == "image/jpeg"
    assert encode_picture(np.zeros((0, 5, 3), np.uint8))[1] == "image/png"


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [("prob_map", 255, 0), ("thresh_map", 255, 0), ("prob_mask", 0, 204), ("thresh_mask", 204, 0)],
)
def test_maps_are_see_through(name, inside, outside):
    """Opaque where the map is high; masks show what does not count, or what does."""
    low, high = (0.3, 0.7) if name == "thresh_map" else (0, 1)
    values = np.full((8, 8), low, np.float16)
    values[2:5, 2:5] = high
    layer = decode(encode_map(name, values))
    assert (layer[3, 3, 3], layer[0, 0, 3]) == (inside, outside)
    values[0, 0] = np.nan
    assert decode(encode_map(name, values)).shape == (8, 8, 4)
