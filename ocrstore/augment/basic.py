"""The augmentation of `train --augment`: flip, rotate, scale, crop, colour; no albumentations.

Everything that moves pixels is one matrix, by which the picture is warped once and the points move.
Coordinates are those of `ocrstore.geometry`: (0, 0) is the outer corner of the top-left pixel.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore import buffers
from ocrstore.augment.warp import Matrix, Pixels
from ocrstore.errors import SchemaError
from ocrstore.stopwatch import lap

_GREY = np.array((0.299, 0.587, 0.114))
"""Shares of red, green and blue in the brightness of a pixel."""
_MARGIN = 2
"""Pixels around the visible part that interpolation reads."""


class BasicAugmentation:
    """Draws random flips, rotations, scales, crops and colours, for `transform=`.

    The picture is scaled so that its longest side is that of the result, then by a random factor;
    the crop is anywhere in it, and where it is smaller than the result it lies anywhere in black.
    Never modifies a picture in place. Not thread-safe.
    """

    writes = False
    """It does not write to the picture that it is given."""

    def __init__(
        self,
        height: int,
        width: int,
        *,
        flip: float = 0.5,
        rotate: float = 10.0,
        scale: tuple[float, float] = (0.7, 2.0),
        brightness: float = 0.25,
        contrast: float = 0.25,
        saturation: float = 0.25,
        colour: float = 0.8,
    ) -> None:
        """Take what is drawn.

        Args:
            height: Of the result.
            width: Of the result.
            flip: Probability of swapping left and right.
            rotate: Largest angle either way, in degrees.
            scale: Smallest and largest factor.
            brightness: Largest change either way of the factor 1; so are `contrast` and
                `saturation`.
            contrast: See `brightness`.
            saturation: See `brightness`.
            colour: Probability of changing these three.
        """
        if min(height, width) < 1 or not 0 < scale[0] <= scale[1]:
            raise SchemaError(
                f"expected a size of at least 1x1 and 0 < scale[0] <= scale[1], found {height}x"
                f"{width} and {scale}"
            )
        self.size = (height, width)
        self.flip, self.rotate, self.scale = flip, rotate, scale
        self.colours = (brightness, contrast, saturation)
        self.colour = colour
        self.random_generator = np.random.default_rng()
        """A data set sets it anew for each sample."""

    def __call__(self, *, image: Pixels, keypoints: npt.NDArray[Any]) -> dict[str, Any]:
        """Return the transformed picture and points, as many and in the same order."""
        matrix, factors = self.draw((image.shape[0], image.shape[1]), self.random_generator)
        points = move_points(keypoints, matrix)
        lap("keypoints")
        drawn = warp_visible(image, matrix, self.size)
        lap("warp")
        if factors is not None:
            drawn = _recolour(drawn, *factors)
        lap("colour")
        return {"image": drawn, "keypoints": points}

    def draw(
        self, size: tuple[int, int], random: np.random.Generator
    ) -> tuple[Matrix, tuple[float, float, float] | None]:
        """Draw what happens to a picture.

        Args:
            size: Height and width of the picture.
            random: Where the random numbers come from.

        Returns:
            The (2, 3) matrix from the picture to the result, and the factors of brightness,
            contrast and saturation; None if colours stay as they are.
        """
        draws = random.random(9)
        matrix = self._matrix(size, draws[:5].tolist())
        if draws[5] >= self.colour:
            return matrix, None
        low = 1 - np.array(self.colours)
        brightness, contrast, saturation = (low + 2 * (1 - low) * draws[6:]).tolist()
        return matrix, (brightness, contrast, saturation)

    def _matrix(self, size: tuple[int, int], draws: list[float]) -> Matrix:
        """Return the (2, 3) matrix from a picture to the result."""
        flip, turn, zoom, down, right = draws
        height, width = size
        low, high = self.scale
        scale = max(self.size) / max(size) * (low + (high - low) * zoom)
        angle = math.radians(self.rotate) * (2 * turn - 1)
        cosine, sine = scale * math.cos(angle), scale * math.sin(angle)
        matrix = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
        # the centre of the picture goes to the centre of the scaled picture, less the crop's corner
        centre = np.array((width, height)) / 2
        room = scale * np.array((width, height)) - (self.size[1], self.size[0])
        matrix[:, 2] = scale * centre - matrix[:, :2] @ centre - room * (right, down)
        if flip < self.flip:
            matrix[:, 2] += width * matrix[:, 0]
            matrix[:, 0] *= -1
        return matrix


def move_points(points: npt.NDArray[Any], matrix: Matrix) -> npt.NDArray[np.float64]:
    """Return the x and y of points, moved by a (2, 3) matrix."""
    return np.asarray(points, np.float64)[:, :2] @ matrix[:, :2].T + matrix[:, 2]


def warp_visible(pixels: Pixels, matrix: Matrix, size: tuple[int, int]) -> Pixels:
    """Warp (H, W, 3) uint8 by a (2, 3) matrix into a black frame of `size`, linearly.

    Reads only the part that is seen. One that shrinks to less than half is resized first, which
    reads fewer of its pixels.
    """
    height, width = size
    corners = np.array(((0, 0, 1), (width, 0, 1), (width, height, 1), (0, height, 1)))
    seen = corners @ cv2.invertAffineTransform(matrix).T
    far = np.array((pixels.shape[1], pixels.shape[0]))
    low = np.clip(np.floor(seen.min(axis=0)) - _MARGIN, 0, far - 1).astype(int)
    high = np.clip(np.ceil(seen.max(axis=0)) + _MARGIN, low + 1, far).astype(int)
    part = pixels[low[1] : high[1], low[0] : high[0]]
    forward = matrix.copy()
    forward[:, 2] += matrix[:, :2] @ low
    scale = math.sqrt(abs(np.linalg.det(matrix[:, :2])))
    if scale < 0.5:
        shape = np.maximum(np.rint((high - low) * scale), 1)
        forward[:, :2] /= shape / (high - low)
        part = cv2.resize(part, shape.astype(int).tolist())
    # OpenCV counts from the centre of the first pixel
    forward[:, 2] += forward[:, :2] @ (0.5, 0.5) - 0.5
    # four channels are interpolated in a third of the time of three
    wide = cv2.cvtColor(part, cv2.COLOR_RGB2RGBA, dst=buffers.scratch_bytes((*part.shape[:2], 4)))
    warped = cv2.warpAffine(
        wide, forward, (width, height), dst=buffers.scratch_bytes((height, width, 4))
    )
    return cv2.cvtColor(warped, cv2.COLOR_RGBA2RGB, dst=buffers.scratch_bytes((height, width, 3)))


def _recolour(pixels: Pixels, brightness: float, contrast: float, saturation: float) -> Pixels:
    """Change saturation, brightness and contrast, in this order, as one matrix of colours."""
    grey = float(np.dot(cv2.mean(pixels)[:3], _GREY))
    matrix = saturation * np.eye(3) + (1 - saturation) * _GREY
    offset = np.full((3, 1), (1 - contrast) * brightness * grey)
    colours = np.hstack((contrast * brightness * matrix, offset))
    return cv2.transform(pixels, colours, dst=buffers.scratch_bytes(pixels.shape))
