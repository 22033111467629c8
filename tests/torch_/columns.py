"""A column of rows in a plain file, and every way to get memory of it."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from ocrstore.torch.memory import address_range, written_pages
from ocrstore.torch.memory.column_memory import ColumnMemory
from ocrstore.torch.memory.row_layout import FileHandle, RowLayout, round_up

PAGE = mmap.PAGESIZE
ROWS = 24
SHAPE = (17 * PAGE // 2 - 100,)  # 17 pages, the last one not full
linux = pytest.mark.skipif(not address_range.supported, reason="needs Linux' private mappings")


def memory_of(column, **options):
    """Return the memory of the column, as the data set would make it."""
    path, layout, _ = column
    data = np.memmap(path, np.uint8, mode="r")
    return ColumnMemory(lambda: FileHandle(path), data, layout, **options)


def rows_of(*rows):
    """Return rows as the engine wants them."""
    return np.array(rows, np.int64)


@pytest.fixture
def column(tmp_path):
    """A file of page-aligned rows in three pieces, the second piece first, and its layout."""
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 60000, (ROWS, *SHAPE), np.uint16)
    pitch = round_up(truth[0].nbytes)
    places = [*range(8, 16), *range(8), *range(17, 25)]
    offsets = np.array(places, np.int64) * pitch + 3 * PAGE
    data = np.zeros(3 * PAGE + 26 * pitch, np.uint8)
    for row, offset in enumerate(offsets):
        data[offset : offset + truth[row].nbytes] = truth[row].view(np.uint8)
    path = tmp_path / "rows.bin"
    data.tofile(path)
    return path, RowLayout(offsets, SHAPE, np.dtype(np.uint16)), truth


STRATEGIES = [
    pytest.param({"strategy": "leases", "finder": "scan"}, marks=linux, id="scan"),
    pytest.param({"strategy": "leases", "finder": "read"}, marks=linux, id="pagemap"),
    pytest.param({"strategy": "leases", "finder": "all"}, marks=linux, id="all"),
    pytest.param({"strategy": "fresh"}, id="fresh"),
    pytest.param({"strategy": "copy"}, id="copy"),
]


@pytest.fixture(params=STRATEGIES)
def options(request):
    """Every way to get memory, forced."""
    name = request.param.get("finder")
    if name == "scan":
        with Path(sys.executable).resolve().open("rb") as file:
            if not written_pages.works(written_pages.make_finder(name), file.fileno()):
                pytest.skip("no PAGEMAP_SCAN here")
    return request.param
