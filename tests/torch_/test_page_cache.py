"""The page cache: what is in it, what is read into it, and the command that does so."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ocrstore
from ocrstore.cli import cli
from ocrstore.format import lmdb_writer
from ocrstore.torch import OCRStoreDataset
from ocrstore.torch.memory import page_cache
from tests.waiting import once_in


def test_warm_reads_everything(store_path, tmp_path):
    """After `warm` the view's columns are in the page cache, and progress was told to the end."""
    path = Path(shutil.copy(store_path, tmp_path / "cold.ocrs"))
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    dataset = OCRStoreDataset(path)
    view = dataset.views[0]
    nbytes, fd = view.nbytes, view.open_file().fd
    ranges = view.ranges(np.arange(37))

    def warm():
        told = []
        assert dataset.warm(progress=lambda done, total: told.append((done, total))) == nbytes
        assert told[-1][0] >= nbytes
        untold = page_cache.cached_pages(fd, *ranges[0]) is None
        return untold or all(page_cache.is_cached(fd, *part) for part in ranges)

    assert once_in(5, warm)
    done = CliRunner().invoke(cli, ["warm", str(path), "--column", "image"], standalone_mode=False)
    assert done.return_value == 0 and "in the page cache" in done.output
    done = CliRunner().invoke(cli, ["warm", str(path), "--json"], standalone_mode=False)
    assert json.loads(done.output)["nbytes"] == nbytes


def test_without_cachestat_rows_are_simply_read(store_path, monkeypatch):
    """Where nobody tells what is cached, rows are read; without preadv, their pages are touched."""
    monkeypatch.setattr(page_cache, "_syscall", lambda: None)
    read = []
    original = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: (read.append(at), original(fd, to, at))[1])
    view = OCRStoreDataset(store_path).views[0]
    rows = np.array([3, 4, 9])
    view.load(rows)
    ranges = page_cache.merge(view.ranges(rows))
    assert read == [offset for offset, _ in ranges]
    monkeypatch.delattr(os, "preadv")
    touched = []
    touch = page_cache._touch
    monkeypatch.setattr(
        page_cache, "_touch", lambda *args: (touched.append(args[1:]), touch(*args))
    )
    view.load(rows)
    assert touched == ranges
    view.read_ahead(rows)
    assert page_cache.merge([(0, 10), (5, 3), (10, 5), (2**30, 7)]) == [(0, 15), (2**30, 7)]


def test_one_column_is_asked_about_until_one_is_missing():
    """All columns at first; when nothing was missing for a while one in turn, until one is."""
    schedule = page_cache.ProbeSchedule()
    names = ("tensor", "prob_map", "thresh_map")
    for _ in range(schedule.PATIENCE):
        assert schedule.choose(names) == names
        schedule.note(missed=False)
    asked = [schedule.choose(names) for _ in range(6)]
    assert sorted(asked) == sorted((name,) for name in names * 2)
    assert schedule.choose(()) == ()
    schedule.note(missed=True)
    assert schedule.choose(names) == names


def test_evicted_rows_come_back_whole(store_path, tmp_path):
    """Also when only one column is asked about, every column that was evicted is read again."""
    path = Path(shutil.copy(store_path, tmp_path / "evicted.ocrs"))
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    view = OCRStoreDataset(path, columns=["tensor", "prob_map"]).views[0]
    fd = view.open_file().fd
    rows = np.array([3, 4, 9])
    ranges = view.ranges(rows)
    if page_cache.cached_pages(fd, *ranges[0]) is None:
        pytest.skip("nobody tells what is cached here")

    def evict():
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return not any(page_cache.is_cached(fd, *part) for part in ranges)

    def load_again():
        for _ in range(page_cache.ProbeSchedule.PATIENCE + 1):
            view.load(rows)
        assert once_in(5, evict)
        view.load(rows)
        return all(page_cache.is_cached(fd, *part) for part in ranges)

    if not once_in(5, evict):
        pytest.skip("this file system does not evict on demand")
    assert once_in(5, load_again)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no such advice")
def test_a_large_new_store_leaves_the_page_cache(tmp_path, monkeypatch):
    """What follows its beginning, once, row group by row group; a refusal disturbs nobody."""
    advised = []

    def advise(fd, start, nbytes, advice):
        assert advice == os.POSIX_FADV_DONTNEED
        advised.append((start, start + nbytes))
        raise OSError("no")

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(lmdb_writer, "CACHED_NBYTES", 100_000)
    columns = {"x": ocrstore.Column("uint8", (40_000,))}

    def write(path, samples):
        with ocrstore.create(path, columns, group_rows=2) as writer:
            for number in range(samples):
                writer.append(str(number), {"x": np.full(40_000, number, np.uint8)})

    write(tmp_path / "small.ocrs", 1)
    assert advised == []
    write(tmp_path / "large.ocrs", 9)
    assert [start for start, _ in advised] == [100_000, *(end for _, end in advised[:-1])]
    nbytes = (tmp_path / "large.ocrs").stat().st_size
    assert len(advised) == 5 and 9 * 40_000 < advised[-1][1] <= nbytes
    assert ocrstore.verify(tmp_path / "large.ocrs").ok
