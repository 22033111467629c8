"""Pictures for terminals: shrunk, outlined, and written as half blocks."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from ocrstore.inspection.thumbnail import (
    COUNTED,
    IGNORED,
    draw_outlines,
    fit,
    shrink,
    to_blocks,
)


@pytest.fixture
def pixels():
    """A slope of colours, of an odd size."""
    ys, xs = np.mgrid[0:31, 0:45]
    return np.stack([xs * 5, ys * 8, (xs + ys) * 3], axis=2).astype(np.uint8)


def test_half_blocks(pixels):
    """Two pixels in each cell, in true colours; an odd last line is doubled."""
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=80).print(
        to_blocks(pixels)
    )
    lines = out.getvalue().rstrip("\n").split("\n")
    assert len(lines) == 16 and lines[0].count("▀") == 45
    above, below = pixels[2, 7], pixels[3, 7]
    cell = f"38;2;{above[0]};{above[1]};{above[2]};48;2;{below[0]};{below[1]};{below[2]}m▀"
    assert cell in lines[1]


def test_shrinking_averages():
    """Each new pixel is the mean of those below it; sizes need not divide."""
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:2, :3] = 100
    assert shrink(pixels, 2, 2)[:, :, 0].tolist() == [[100, 0], [0, 0]]
    assert shrink(pixels, 1, 1)[0, 0].tolist() == [25, 25, 25]
    assert shrink(np.full((1000, 701, 3), 9, np.uint8), 7, 5).tolist() == [[[9] * 3] * 5] * 7
    assert shrink(pixels, 8, 12).shape == (8, 12, 3)


def test_fitting_never_enlarges():
    """A picture is scaled down to a box, and left as it is if it fits."""
    assert fit((100, 200), (50, 50)) == (25, 50)
    assert fit((10, 10), (50, 50)) == (10, 10)
    assert fit((7016, 2), (48, 80)) == (48, 1)


def test_outlines():
    """Edges are drawn in two colours; what lies outside or is not finite is passed over."""
    square = np.array([[2.0, 2.0], [8.0, 2.0], [8.0, 8.0], [2.0, 8.0]])
    polygons = [square, square + 6, square * np.nan, square + 1e9, square[:0]]
    pixels = np.zeros((12, 12, 3), np.uint8)
    drawn = draw_outlines(pixels, polygons, [False, True, False, False, False], matrix=np.eye(3))
    assert tuple(drawn[2, 5]) == COUNTED and tuple(drawn[8, 10]) == IGNORED
    assert not drawn[5, 5].any() and not pixels.any()
