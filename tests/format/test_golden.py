"""The golden stores are read, by every version, with the content written out here."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa
import pytest

import ocrstore

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1.0.ocrs"
SHA256 = "18c41e040f75fb5286647c3e3c6873ed3a87f22f5846d423dea8cc82e919b26f"
BLOCKS = GOLDEN.with_name("lz4block.ocrs")
BLOCKS_SHA256 = "f6ab8b5380c067ef6fe20286dc6e563bb10e84af013132324e60ba42390f9ff3"
BLOCKS_FINGERPRINT = "cb3951237581f530c53d338ddd9c91fbffd4be00d18ca09f2478f06abcc4660e"
FILES = GOLDEN.with_name("file.ocrs")
FILES_SHA256 = "cd28e33cb1a0ede559e3f9e576d4e4be905bd5b8ac88071f35aa1efd116e53fa"
FILES_FINGERPRINT = "062d8b6be2a67d4aed9442db7af9f30ca478eeeb51640d9b9192740bc28357c8"
FINGERPRINTS = {
    1: "8ecd430fa4b5b1674a1624baf951edbe024f576e9aa25790382cb502f5d65ba6",
    2: "c8373394657d6448fe316b4fadb31ec4dbf4edc48fbc6bc889a9cba0d668b13e",
    3: "84da88aa76c453566903089ad87ca568c53a2475ed05d7a0529686809c83cdd8",
}
KEYS = {
    1: ("img/0.jpg", "img/1.jpg", "img/2.jpg", "img/3.jpg"),
    2: ("img/0.jpg", "img/1.jpg", "img/3.jpg", "ünï/6.jpg"),
    3: ("img/0.jpg", "img/1.jpg", "img/3.jpg", "ünï/6.jpg"),
}
NUMBERS = {1: (0, 1, 2, 3), 2: (0, 13, 3, 6), 3: (0, 13, 3, 6)}
COMPRESSED = ("labels", "mask")
WRITTEN_WITH = {"liblmdb": (0, 9), "pyarrow": 26}


def load_script():
    """Import the script that made the store; it is not part of a package."""
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN.with_name("make_golden.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(number: int) -> dict[str, np.ndarray]:
    """Write a row's arrays out element by element, with nothing shared with the script."""
    height, width = {1: (40, 35), 13: (40, 47)}.get(number, (2, 1 + number))
    image = [(i * (number + 1)) % 251 for i in range(height * width * 3)]
    return {
        "image": np.array(image, np.uint8).reshape(height, width, 3),
        "tensor": np.array([(i + number) % 256 for i in range(4096)], np.uint8).reshape(32, 32, 4),
        "prob_map": np.array([i / 64 + number for i in range(64)], np.float16).reshape(8, 8),
        "score": np.array(number / 8, np.float64),
        "words": np.array([i - number for i in range(number % 3)], np.int32),
        "labels": np.array([i * 10**10 for i in range(number * 2)], np.int64).reshape(-1, 2),
        "mask": np.array([[x <= y + number % 16 - 8 for x in range(16)] for y in range(16)]),
    }


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_every_row_is_as_written(generation):
    """Each array of each generation is bit-identical to what the test spells out."""
    store = ocrstore.open(GOLDEN, generation=generation)
    assert store.keys == KEYS[generation]
    for row, number in enumerate(NUMBERS[generation]):
        for name, want in expected(number).items():
            found = store[name][row]
            assert (found.dtype, found.shape) == (want.dtype, want.shape), name
            assert found.tobytes() == want.tobytes(), name
            assert not found.flags.writeable


def test_the_newest_generation_has_the_added_column():
    """Generation 3 added one column and changed nothing else."""
    store = ocrstore.open(GOLDEN)
    assert (store.generation, store.generations) == (3, [1, 2, 3])
    assert store["view/edge_map"][:].tolist() == [[[n, n], [n, n]] for n in (-2, -1, 0, 1)]
    assert "view/edge_map" not in ocrstore.open(GOLDEN, generation=2)


def test_columns_are_as_declared():
    """Names, order, dtypes, shapes and codecs come back."""
    store = ocrstore.open(GOLDEN)
    assert {name: (c.dtype, c.shape, c.codec) for name, c in store.columns.items()} == {
        "image": ("uint8", (None, None, 3), "raw"),
        "tensor": ("uint8", (32, 32, 4), "raw"),
        "prob_map": ("float16", (8, 8), "raw"),
        "score": ("float64", (), "raw"),
        "words": ("int32", (None,), "raw"),
        "labels": ("int64", (None, 2), "zstd"),
        "mask": ("bool", (16, 16), "lz4"),
        "scan": ("uint8", (None, None, 3), "jpeg"),
        "view/edge_map": ("int8", (2, 2), "raw"),
    }


def test_a_sequential_batch_is_one_view_of_the_file():
    """Rows of a fixed column lie at one stride, so a slice copies nothing."""
    store = ocrstore.open(GOLDEN, generation=1)
    batch = store["tensor"][0:4]
    assert batch.shape == (4, 32, 32, 4)
    assert batch[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    start = store.snapshot.mapping.address
    assert start <= batch.ctypes.data < start + GOLDEN.stat().st_size
    assert not batch.flags.owndata


def test_jpeg_rows_are_the_source_bytes():
    """A jpeg column gives back the stream it was given."""
    stored = bytes(ocrstore.open(GOLDEN)["scan"].stored(0))
    assert (stored[:3], stored[-2:]) == (b"\xff\xd8\xff", b"\xff\xd9")
    assert hashlib.sha256(stored).hexdigest() == (
        "28675a3f352f92de59f0ad447791a306617448e838255a8b8da26bd5cf9ce1e8"
    )


def test_attributes_are_as_written():
    """Nested, missing and odd attribute values come back, with their Arrow types."""
    store = ocrstore.open(GOLDEN, generation=1)
    schema = store.index.schema
    assert {name: str(schema.field(name).type) for name in schema.names[9:]} == {
        "width": "int32",
        "polygons": "list<item: list<item: float>>",
        "texts": "list<item: string>",
        "ignored": "list<item: bool>",
        "origin": "struct<folder: string, number: uint16>",
        "corner": "fixed_size_list<item: double>[2]",
        "digest": "binary",
        "weight": "halffloat",
    }
    assert store.attributes("img/1.jpg") == {
        "width": 42,
        "polygons": [[0.0, 0.5, 1.0, 0.5, 1.0, 9.25], []],
        "texts": ["größe 1", None, ""],
        "ignored": [True, None, False],
        "origin": {"folder": "a/b", "number": None},
        "corner": [1.1, -0.0],
        "digest": b"\x01\x00\xff",
        "weight": float(np.float16(1 / 3)),
    }
    assert set(store.attributes("img/2.jpg").values()) == {None}


def test_metadata_and_history_are_as_written():
    """What the layers above put into the manifest comes back."""
    store = ocrstore.open(GOLDEN)
    assert store.metadata == {
        "made_for": "tests",
        "nested": {"list": [1, 2.5, None, True, "é"]},
    }
    at = {"at": "2025-06-15T15:06:40Z", "by": "ocrstore 0.1.0"}
    changed = {"appended": 1, "replaced": 1, "deleted": 1}
    created = {"appended": 4, "replaced": 0, "deleted": 0}
    assert store.history == (
        {"action": "create", "generation": 1, "samples": 4, **created, **at},
        {"action": "append", "generation": 2, "samples": 4, **changed, **at},
        {"action": "add_column", "generation": 3, "samples": 4, "columns": 1, **at},
    )


def test_the_rows_of_lz4block_are_as_written():
    """Each array is bit-identical to what the test spells out, and so is one stored block."""
    store = ocrstore.open(BLOCKS)
    assert store.snapshot.manifest.version == (1, 1)
    assert store.fingerprint == BLOCKS_FINGERPRINT
    for row in range(4):
        ones = [float(100 * row <= i < 100 * row + 100) for i in range(4096)]
        noise = [i * 2654435761 % 2**32 >> 24 for i in range(row * 120)]
        want = {
            "prob_map": np.array(ones, np.float16).reshape(64, 64),
            "image": np.array(noise, np.uint8).reshape(row, 40, 3),
            "score": np.array(row / 8, np.float64),
            "mask": np.array([[x <= y + row for x in range(16)] for y in range(16)]),
        }
        for name, array in want.items():
            found = store[name][row]
            assert (found.dtype, found.shape) == (array.dtype, array.shape), name
            assert found.tobytes() == array.tobytes(), name
            assert not found.flags.writeable
    assert store["score"][0:4].tolist() == [0.0, 0.125, 0.25, 0.375]
    # a token for 8 literals, and the float64 0.125
    assert bytes(store["score"].stored(1)).hex() == "80" + "000000000000c03f"
    assert ocrstore.verify(BLOCKS).ok


def test_every_file_is_as_written():
    """Pictures' files are decoded by what they are; pixels without a file are a marked block."""
    store = ocrstore.open(FILES)
    assert store.fingerprint == FILES_FINGERPRINT
    assert store.snapshot.manifest.version == (1, 1)
    script = load_script()
    assert [bytes(store["image"].stored(row)) for row in (0, 1)] == [script.JPEG, script.PNG]
    assert store["image"][0].shape == (8, 8, 3)
    assert store["image"][1].tolist() == [
        [[10, 0, 0], [20, 0, 0], [30, 0, 0]],
        [[0, 0, 40], [0, 0, 50], [0, 0, 60]],
    ]
    pixels = np.array([i // 75 for i in range(600)], np.uint8).reshape(4, 50, 3)
    assert np.array_equal(store["image"][2], pixels) and not store["image"][2].flags.writeable
    stored = bytes(store["image"].stored(2))
    assert stored[:8] == b"OCRSPIX1" and len(stored) < 100
    # a token for 1 literal and a match of at least 19 bytes, 0, one byte back
    assert stored[8:].hex().startswith("1f00" + "0100")
    assert ocrstore.verify(FILES).ok


def test_the_golden_files_themselves_never_change():
    """A store that was published as golden is not made again."""
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == SHA256
    assert hashlib.sha256(FILES.read_bytes()).hexdigest() == FILES_SHA256
    assert hashlib.sha256(BLOCKS.read_bytes()).hexdigest() == BLOCKS_SHA256
    assert GOLDEN.stat().st_size < 200_000


def test_fingerprints_are_those_of_format_1_0():
    """The canonical hash of each generation is part of the format."""
    for generation, fingerprint in FINGERPRINTS.items():
        assert ocrstore.open(GOLDEN, generation=generation).fingerprint == fingerprint


def test_verify_finds_nothing():
    """The whole-file check accepts the golden store."""
    result = ocrstore.verify(GOLDEN)
    assert result.ok, result.findings
    assert result.generations == [1, 2, 3]


def test_the_script_still_makes_it(tmp_path, monkeypatch):
    """Same input, same fingerprint; and the same bytes where the libraries are the same."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    target = tmp_path / "again.ocrs"
    load_script().make(target)
    for generation, fingerprint in FINGERPRINTS.items():
        again = ocrstore.open(target, generation=generation)
        golden = ocrstore.open(GOLDEN, generation=generation)
        if any((again[n].hashes != golden[n].hashes).any() for n in COMPRESSED):
            pytest.skip("this zstd or lz4 compresses differently, so the stored bytes differ")
        assert again.fingerprint == fingerprint
    libraries = {
        "liblmdb": lmdb.version()[:2],
        "pyarrow": int(pa.__version__.split(".")[0]),
    }
    if libraries == WRITTEN_WITH:
        assert target.read_bytes() == GOLDEN.read_bytes()


def test_the_script_still_makes_the_blocks(tmp_path, monkeypatch):
    """The same content; and the same fingerprint where LZ4 compresses the same."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    load_script().make_lz4block(tmp_path / "again.ocrs")
    again, golden = ocrstore.open(tmp_path / "again.ocrs"), ocrstore.open(BLOCKS)
    for name in golden.columns:
        for row in range(4):
            assert again[name][row].tobytes() == golden[name][row].tobytes()
    same = all((again[name].hashes == golden[name].hashes).all() for name in golden.columns)
    assert (again.fingerprint == golden.fingerprint) == same
