"""Draws text-like pictures with known polygons, for the tools that need pictures anywhere.

    python tools/scenes.py drawn/ --count 32

writes `drawn/images/*.jpg` and `drawn/gt/gt_*.txt` (ICDAR's text files).
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from ocrstore.geometry import rotate_points

FONTS = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
)
WORDS = (  # noqa: SIM905  # as a sentence they can be read
    "TOTAL receipt 12.50 CASH Milk bread 0031 Thank you Street Open coffee SUB TAX 19% Kiosk "
    "exit 4 Platform Bakery 24h invoice Apples 3.99 VISA change No.7 Market"
).split()


def draw_scene(seed: int, *, height: int = 480, width: int = 640, words: int = 8):
    """Return a picture (H, W, 3) uint8 RGB, its (n, 4, 2) polygons, texts and ignore flags."""
    rng = np.random.default_rng(seed)
    picture = _paper(rng, height, width)
    taken = np.zeros((height, width), np.uint8)
    polygons, texts, ignored = [], [], []
    for _ in range(words * 6):
        if len(polygons) == words:
            break
        text = str(rng.choice(WORDS))
        font = int(rng.choice(FONTS))
        scale = rng.uniform(0.9, 2.2)
        thickness = max(1, round(scale * rng.uniform(1, 2)))
        (w, h), baseline = cv2.getTextSize(text, font, scale, thickness)
        pad = 3
        box = np.array(
            [(-pad, -h - pad), (w + pad, -h - pad), (w + pad, pad), (-pad, pad)], np.float64
        )
        if any(c in text for c in "gjpqy,"):
            box[2:, 1] += baseline * 0.6
        angle = np.radians(rng.normal(0, 8))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        shift = rng.uniform((20, 40), (width - 60, height - 20))
        quad = box @ turn.T + shift
        if quad.min() < 2 or quad[:, 0].max() > width - 2 or quad[:, 1].max() > height - 2:
            continue
        region = cv2.fillPoly(np.zeros_like(taken), [quad.astype(np.int32)], 1)
        if (region & taken).any():
            continue
        taken |= cv2.dilate(region, np.ones((9, 9), np.uint8))
        ink = rng.uniform(0, 90, 3) if rng.random() < 0.8 else rng.uniform(60, 130, 3)
        _write(picture, text, font, scale, thickness, np.c_[turn, shift], ink)
        polygons.append(quad.astype(np.float32))
        texts.append(text)
        ignored.append(False)
    return picture, polygons, texts, ignored


def _paper(rng, height: int, width: int) -> np.ndarray:
    tone = rng.uniform(170, 245, 3)
    ramp = np.linspace(-20, 20, width)[None, :, None] * rng.uniform(-1, 1)
    coarse = cv2.resize(rng.normal(0, 10, (height // 40, width // 40)), (width, height))
    grain = rng.normal(0, 5, (height, width, 1))
    return np.clip(tone + ramp + coarse[..., None] + grain, 0, 255).astype(np.uint8)


def _write(picture, text, font, scale, thickness, matrix, ink) -> None:
    height, width = picture.shape[:2]
    (w, h), baseline = cv2.getTextSize(text, font, scale, thickness)
    margin = 8
    stamp = np.zeros((h + baseline + 2 * margin, w + 2 * margin), np.uint8)
    cv2.putText(stamp, text, (margin, h + margin), font, scale, 255, thickness, cv2.LINE_AA)
    # the stamp's baseline start is (margin, h + margin); it goes to the origin, then to its place
    to_origin = np.array([[1, 0, -margin], [0, 1, -(h + margin)], [0, 0, 1.0]])
    alpha = cv2.warpAffine(stamp, matrix @ to_origin, (width, height), flags=cv2.INTER_LINEAR)
    mix = alpha[..., None].astype(np.float32) / 255
    picture[:] = np.rint(picture * (1 - mix) + np.asarray(ink, np.float32) * mix).astype(np.uint8)


def write_scenes(
    folder: Path, count: int, *, seed: int = 0, orientations: Sequence[int] = (1,), **size: int
) -> None:
    """Write `count` pictures with ICDAR annotations below a folder.

    `orientations` are EXIF's, taken in turn: such a picture is stored turned, with a flag that says
    how to turn it back, and its annotation speaks of the stored one, as a camera and a labelling
    tool that ignores the flag would leave it.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / "gt").mkdir(exist_ok=True)
    for number in range(count):
        picture, polygons, texts, ignored = draw_scene(seed + number, **size)
        orientation = orientations[number % len(orientations)]
        picture, polygons = _turn_away(picture, polygons, orientation)
        ok, jpeg = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
        if not ok:
            raise RuntimeError("OpenCV could not write a JPEG")
        data = _with_orientation(jpeg.tobytes(), orientation)
        (folder / "images" / f"img_{number:04d}.jpg").write_bytes(data)
        lines = [
            ",".join(str(round(float(v))) for v in quad.ravel()) + "," + ("###" if skip else text)
            for quad, text, skip in zip(polygons, texts, ignored, strict=True)
        ]
        (folder / "gt" / f"gt_img_{number:04d}.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _turn_away(picture, polygons, orientation: int):
    """Turn an upright picture and its polygons into the frame they are stored in."""
    if orientation == 1:
        return picture, polygons
    height, width = picture.shape[:2]
    # each orientation is a transposition or not, then flips; this is how to undo its effect
    stored = {
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.transpose(1, 0, 2),
        6: lambda p: p[:, ::-1].transpose(1, 0, 2),
        7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
        8: lambda p: p[::-1].transpose(1, 0, 2),
    }[orientation](picture)
    size = (height, width) if orientation >= 5 else (width, height)
    turned = [rotate_points(quad, orientation, size, inverse=True) for quad in polygons]
    return np.ascontiguousarray(stored), turned


def _with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """Put an EXIF segment with nothing but the orientation behind the start of a JPEG."""
    if orientation == 1:
        return jpeg
    tiff = struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    segment = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + jpeg[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_scenes(args.folder, args.count, seed=args.seed)


if __name__ == "__main__":
    main()
