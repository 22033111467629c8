"""Small files with rows that decode to gigabytes: rule R47 of docs/FORMAT.md 11."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import ocrstore
from ocrstore.errors import CorruptStoreError, DecodeError, SchemaError
from ocrstore.format.codecs import decode_row
from tools import crafting as craft

LARGE = 2_000_000_000
LIMIT = 1000
RULE = "R47"


def write(path, codec, shape):
    """Write two rows of zeros."""
    with ocrstore.create(path, {"a": ocrstore.Column("uint8", shape, codec)}) as writer:
        for key in "xy":
            writer.append(key, {"a": np.zeros(LIMIT + 1, np.uint8)})


@pytest.mark.parametrize("shape", [(LIMIT + 1,), (None,)], ids=[f"{RULE}-fixed", f"{RULE}-open"])
@pytest.mark.parametrize("codec", ["zstd", "lz4", "lz4block"])
def test_rows_beyond_the_limit_are_refused(tmp_path, codec, shape):
    """One row or several; the user can raise the limit, and it survives pickling."""
    path = tmp_path / "a.ocrs"
    write(path, codec, shape)
    small = pickle.loads(pickle.dumps(ocrstore.open(path, max_row_nbytes=LIMIT)))
    for rows in (0, slice(0, 2), [1, 0]):
        with pytest.raises(DecodeError, match=f"max_row_nbytes={LIMIT + 1}"):
            small["a"][rows]
    assert len(ocrstore.open(path, max_row_nbytes=LIMIT + 1)["a"][0]) == LIMIT + 1
    assert len(ocrstore.open(path)["a"][0:2]) == 2


def test_the_environment_raises_the_limit(tmp_path, monkeypatch):
    """For everything that opens a store; what a data set was given counts in its workers, too."""
    pytest.importorskip("torch", reason="the data set needs it")
    from ocrstore.torch import OCRStoreDataset

    path = tmp_path / "a.ocrs"
    write(path, "zstd", (None,))
    monkeypatch.setenv("OCRSTORE_MAX_ROW_NBYTES", str(LIMIT))
    refused = f"OCRSTORE_MAX_ROW_NBYTES={LIMIT + 1} in the environment"
    with pytest.raises(DecodeError, match=refused):
        OCRStoreDataset(path)[0]["a"]
    given = pickle.loads(pickle.dumps(OCRStoreDataset(path, max_row_nbytes=LIMIT + 1)))
    assert len(given[0]["a"]) == LIMIT + 1
    monkeypatch.setenv("OCRSTORE_MAX_ROW_NBYTES", str(LIMIT + 1))
    assert len(OCRStoreDataset(path)[0]["a"]) == len(ocrstore.open(path)["a"][0]) == LIMIT + 1
    monkeypatch.setenv("OCRSTORE_MAX_ROW_NBYTES", "2 GB")
    with pytest.raises(SchemaError, match="OCRSTORE_MAX_ROW_NBYTES='2 GB': expected a number"):
        ocrstore.open(path)


def test_raw_rows_have_no_limit(tmp_path):
    """They are in the file, and are not copied."""
    write(tmp_path / "a.ocrs", "raw", (None,))
    assert len(ocrstore.open(tmp_path / "a.ocrs", max_row_nbytes=1)["a"][0]) == LIMIT + 1


CHILD = f"""
import resource, sys
import numpy, pyarrow, ocrstore.store, ocrstore.verification
from ocrstore.errors import OCRStoreError
store = ocrstore.open(sys.argv[1])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {200 * 2**20}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for action in (lambda: store["a"][0], lambda: store["a"][0:4], lambda: store["a"][[0, 0]]):
    try:
        action()
    except OCRStoreError as exc:
        print(type(exc).__name__)
print(ocrstore.verify(sys.argv[1]).ok)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space limits of Linux")
@pytest.mark.parametrize("codec", ["zstd", "lz4block"])
def test_a_bomb_allocates_nothing(tmp_path, codec):
    """A file of some kilobytes with a row of 2 GB, in a process that may hardly allocate."""
    path = tmp_path / "bomb.ocrs"
    with ocrstore.create(path, {"a": ocrstore.Column("uint8", (None,), codec)}) as writer:
        writer.append("x", {"a": np.zeros(4, np.uint8)})
    craft.edit_place(path, "a", 0, shape=[LARGE])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True
    )
    # the fingerprint is of the shape that was written
    assert done.stdout.split() == ["DecodeError", "DecodeError", "DecodeError", "False"]


def test_a_block_that_cannot_hold_its_shape():
    """An LZ4 byte stands for at most 255: what would need more is refused before allocating."""
    column = ocrstore.Column("uint8", (None,), "lz4block")

    def refuse(*_):
        raise AssertionError("allocated")

    with pytest.raises(CorruptStoreError, match="10 stored bytes cannot hold as many"):
        decode_row(column, memoryview(bytes(10)), (2551,), where="it", empty=refuse)
    zeros = ocrstore.format.codecs.encode_row(column, np.zeros(10**8, np.uint8))
    assert not decode_row(column, zeros.data, (10**8,), where="it").any()


def frames(*parts):
    """Compress parts as one zstd frame each."""
    return b"".join(bytes(pa.Codec("zstd").compress(part)) for part in parts)


def test_frames_that_declare_another_size():
    """Refused before anything is decoded; several frames count together."""
    column = ocrstore.Column("uint8", (None,), "zstd")
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    for sizes in ((5,), (300, 300), (70_000, 200, 0, 300_000)):
        parts = [np.random.default_rng(0).bytes(size) for size in sizes]
        data = memoryview(frames(*parts) + skippable)
        found = decode_row(column, data[: -len(skippable)], (sum(sizes),), where="it")
        assert found.tobytes() == b"".join(parts)
        for wrong in (sum(sizes) - 1, sum(sizes) + 1, 10**8):
            with pytest.raises(CorruptStoreError, match=f"frames declare {sum(sizes)}"):
                decode_row(column, data, (wrong,), where="it")


@pytest.mark.parametrize("codec", ["jpeg", "file"])
def test_pictures_of_another_size(tmp_path, codec):
    """A JPEG whose header promises more than the index says is not decoded."""
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV to make a JPEG")
    jpeg = cv2.imencode(".jpg", np.zeros((64, 48, 3), np.uint8))[1].tobytes()
    path = tmp_path / "a.ocrs"
    columns = {"a": ocrstore.Column("uint8", (None, None, 3), codec)}
    with ocrstore.create(path, columns) as writer:
        writer.append("x", {"a": ocrstore.Encoded(jpeg, (64, 48, 3))})
        writer.append("y", {"a": ocrstore.Encoded(jpeg, (8, 8, 3))})
    store = ocrstore.open(path)
    assert store["a"][0].shape == (64, 48, 3)
    with pytest.raises(CorruptStoreError, match="its header contradicts"):
        store["a"][1]
    with pytest.raises(DecodeError, match="the limit is 64"):
        ocrstore.open(path, max_row_nbytes=64)["a"][0]
