"""Pictures with known polygons, drawn small, and the ways to write them down."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[2]
SIZE = 64
QUADS = [
    [[10, 10], [70, 12], [69, 30], [9, 28]],
    [[20, 50], [90, 50], [90, 70], [20, 70]],
]


def draw(height=90, width=120, seed=0):
    """A picture with text-like marks on a slope of colours; every seed another one."""
    rng = np.random.default_rng(seed)
    ys, xs = np.mgrid[0:height, 0:width]
    base = np.stack([xs * 200 // width, ys * 200 // height, (xs + ys) % 200], axis=2)
    pixels = (base + rng.integers(0, 40, (height, width, 3))).astype(np.uint8)
    cv2.putText(pixels, f"t{seed}", (12, 26), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (255, 255, 255), 2)
    return pixels


def encode(pixels, suffix=".jpg", params=()):
    """Encode RGB pixels by OpenCV, which wants BGR."""
    done, data = cv2.imencode(suffix, np.ascontiguousarray(pixels[..., ::-1]), list(params))
    assert done
    return data.tobytes()


def with_exif(jpeg, orientation):
    """Put an EXIF orientation into a JPEG."""
    tiff = (
        b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([orientation]) + b"\0\0\0\0\0\0"
    )
    body = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + jpeg[2:]


def icdar_line(quad, text="word"):
    """One line of an ICDAR file."""
    return ",".join(f"{v:g}" for point in quad for v in point) + f",{text}"


class Dataset:
    """A folder of pictures with ICDAR annotations beside it."""

    def __init__(self, root):
        self.root = root
        self.images = root / "images"
        self.gt = root / "gt"
        self.images.mkdir(parents=True)
        self.gt.mkdir()
        self.store = root / "out.ocrs"

    def add(self, name, data=None, *, seed=0, quads=QUADS, texts=None):
        """Add a picture (drawn, or given as bytes) and its annotation."""
        path = self.images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(draw(seed=seed)) if data is None else data)
        if quads is not None:
            texts = texts or ["word"] * len(quads)
            lines = [icdar_line(q, t) for q, t in zip(quads, texts, strict=True)]
            self.annotate(name, "\n".join(lines))
        return path

    def annotate(self, name, text):
        """Write a picture's annotation as it is."""
        relative = Path(name)
        path = self.gt / relative.parent / f"gt_{relative.stem}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def fill(self, count, start=0):
        """Add so many different pictures."""
        for i in range(start, start + count):
            self.add(f"img_{i:03}.jpg", seed=i)
        return self


@pytest.fixture
def dataset(tmp_path):
    """An empty data set."""
    return Dataset(tmp_path / "data")


@pytest.fixture
def cli():
    """Run a command in a process of its own; returns its result."""

    def run(*arguments, code=None, **options):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
        command = [sys.executable, "-c", "from ocrstore.cli import main; main()"]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            encoding="utf-8",
            env=environment,
            timeout=300,
            **options,
        )
        if code is not None:
            assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    return run


def kinds(report):
    """The kinds of problems in a report, as a set."""
    return {problem.kind for problem in report.problems}


def write_npz(path, **arrays):
    """Write a map file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path.write_bytes(buffer.getvalue())


def read_json(path):
    """Read a JSON file."""
    return json.loads(Path(path).read_text())
