"""Stores behind URLs are read through a local copy: right, once, whatever happens."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import ocrstore
from ocrstore.remote.cache import PRESENT, header_start, marks_start, read_origin
from ocrstore.remote.client import ask
from tests.remote.local_copies import assert_equal, fetchers, make_large, stored_nbytes, upload
from tests.waiting import wait_until

SLOW_FAULTS = ("503", "500", "refuse")
FRAME_NBYTES = 1_300_000
"""What opening a store fetches: 128 KiB of its head, 1 MiB of its tail."""


def _rows_file(cache: Path) -> Path:
    (found,) = cache.glob("*.rows")
    return found


def test_rows_are_those_of_the_source(url, source, cache):
    """Single rows, ranges, lists and decoded rows; all columns."""
    store, local = ocrstore.open(url, cache=cache), ocrstore.open(source)
    assert store.keys == local.keys
    assert url in repr(store)
    assert (store["tensor"][3:90] == local["tensor"][3:90]).all()
    assert (store["tensor"][[5, 100, 7]] == local["tensor"][[5, 100, 7]]).all()
    assert (store["image"]["s0011"] == local["image"]["s0011"]).all()
    assert (store["number"][:] == np.arange(160)).all()
    assert_equal(store, source)


def test_only_the_columns_that_are_asked_for_are_downloaded_and_only_once(
    url, source, cache, proxy
):
    """In blocks and merged ranges, but each byte once; a second opening downloads nothing."""
    assert_equal(ocrstore.open(url, cache=cache), source, ("tensor", "number"))
    asked = stored_nbytes(source, "tensor", "number")
    assert asked <= proxy.downloaded() <= 1.05 * asked + FRAME_NBYTES
    before = proxy.downloaded()
    assert_equal(ocrstore.open(url, cache=cache), source, ("tensor", "number"))
    assert proxy.downloaded() == before
    assert_equal(ocrstore.open(url, cache=cache), source)
    every = stored_nbytes(source, *ocrstore.open(source).columns)
    assert proxy.downloaded() <= 1.05 * every + FRAME_NBYTES


@pytest.mark.slow
def test_threads_that_need_the_same_rows_share_one_download(url, source, cache, proxy):
    """Requests for the same rows are joined while these are on their way."""
    proxy.latency = 0.2
    store = ocrstore.open(url, cache=cache)
    before, found = proxy.downloaded(), []
    threads = [
        threading.Thread(target=lambda: found.append(store["tensor"][0:160].sum()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ocrstore.open(source)["tensor"][0:160].sum()] * 6
    assert proxy.downloaded() - before <= 1.05 * stored_nbytes(source, "tensor")


def test_a_pickled_store_opens_the_same_copy(url, source, cache, proxy):
    """As sent to spawned workers."""
    store = ocrstore.open(url, cache=cache)
    before = len(proxy.requests)
    again = pickle.loads(pickle.dumps(store))
    assert len(proxy.requests) == before
    assert (again["tensor"][5] == ocrstore.open(source)["tensor"][5]).all()


@pytest.mark.parametrize(
    "kind",
    ["wrong", "cut", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_FAULTS)],
)
def test_faults_that_pass_are_not_noticed(url, source, cache, proxy, kind):
    """Errors, lost connections, short and wrong answers, while opening and while reading."""
    proxy.fail(kind, times=2)
    store = ocrstore.open(url, cache=cache)
    proxy.fail(kind, times=2)
    assert_equal(store, source)


def test_a_row_that_stays_wrong_is_named(url, source, cache, proxy):
    """After three downloads; the others of its range are there."""
    store = ocrstore.open(url, cache=cache)
    proxy.fail("wrong", times=10**6)
    with pytest.raises(ocrstore.CorruptStoreError, match=r"train\.ocrs.*'s0000'.*'tensor'.*hash"):
        store["tensor"].stored(0)  # the first of its range
    proxy.faults.clear()
    assert_equal(store, source)


@pytest.mark.slow
def test_a_damaged_object_is_refused(s3_server, bucket, source, cache):
    """Damage in a row is found when the row is read, in the index when the store is opened."""
    data = bytearray(source.read_bytes())
    offset = int(ocrstore.open(source)["tensor"].offsets[9])
    data[offset + 5] ^= 1
    source.with_name("damaged.ocrs").write_bytes(data)
    url = upload(s3_server, f"{bucket}/damaged.ocrs", source.with_name("damaged.ocrs"))
    store = ocrstore.open(url)
    assert (store["tensor"][8] == ocrstore.open(source)["tensor"][8]).all()
    with pytest.raises(ocrstore.CorruptStoreError, match="'s0009'"):
        store["tensor"][9]
    data[-5000:] = bytes(5000)
    source.with_name("worse.ocrs").write_bytes(data)
    url = upload(s3_server, f"{bucket}/worse.ocrs", source.with_name("worse.ocrs"))
    with pytest.raises(ocrstore.OCRStoreError):
        ocrstore.open(url)


def test_an_object_that_was_replaced_is_noticed(s3_server, url, source, cache):
    """What was fetched stays readable; what was not raises; a new opening reads the new one."""
    store = ocrstore.open(url, cache=cache)
    first = store["tensor"][0].copy()
    other = make_large(source.with_name("other.ocrs"), seed=1)
    upload(s3_server, url, other)
    assert (store["tensor"][0] == first).all()
    with pytest.raises(ocrstore.StoreChangedError, match="replaced"):
        store["tensor"][159]
    assert_equal(ocrstore.open(url, cache=cache), other)


@pytest.mark.slow
def test_places_without_a_store(bucket, cache, s3_server, tmp_path, monkeypatch):
    """No such object, something else, an empty one, an unknown scheme, no server."""
    with pytest.raises(ocrstore.NotAStoreError, match="no such object"):
        ocrstore.open(f"{bucket}/none.ocrs")
    with pytest.raises(ocrstore.NotAStoreError, match=r"dataset\.json"):
        ocrstore.open(f"{bucket}/none/")
    for name, content in (("text.ocrs", b"hello" * 4000), ("empty.ocrs", b"")):
        (tmp_path / name).write_bytes(content)
        url = upload(s3_server, f"{bucket}/{name}", tmp_path / name)
        with pytest.raises(ocrstore.NotAStoreError, match=name):
            ocrstore.open(url)
    with pytest.raises(ocrstore.RemoteError, match="ftp"):
        ocrstore.open("ftp://host/train.ocrs")
    with pytest.raises(ValueError, match="not a size"):
        ocrstore.open(f"{bucket}/none.ocrs", cache_limit="many")


@pytest.mark.slow
def test_a_file_url_and_a_cache_folder_with_a_long_path(source, tmp_path):
    """Longer than the path of a socket may be."""
    cache = tmp_path / ("long" * 30)
    try:
        assert_equal(ocrstore.open(source.as_uri(), cache=cache), source)
    finally:
        for fetcher in fetchers(cache):
            fetcher.kill()


@pytest.mark.slow
def test_another_fetcher_takes_over(url, source, cache, proxy):
    """It is killed again and again while rows are on their way; each row is right."""
    proxy.latency = 0.05
    store = ocrstore.open(url, cache=cache)
    stop, killed = threading.Event(), []

    def kill() -> None:
        seen = len(proxy.requests)
        while not stop.wait(0.01):
            if len(proxy.requests) > seen + 2:  # in the middle of its work
                seen = len(proxy.requests)
                for fetcher in fetchers(cache):
                    fetcher.send_signal(signal.SIGKILL)
                    killed.append(fetcher.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while len(killed) < 3:
            assert_equal(store, source)
            for rows in cache.glob("*.rows"):
                rows.unlink()  # begin anew
            store = ocrstore.open(url, cache=cache)
    finally:
        stop.set()
        killer.join()


@pytest.mark.slow
def test_the_fetcher_ends_when_nobody_asks(source, cache, monkeypatch):
    """And is started again when a row is needed."""
    monkeypatch.setenv("OCRSTORE_FETCHER_IDLE", "0.3")
    store = ocrstore.open(source.as_uri())
    wait_until(lambda: not [p for p in fetchers(cache) if p.status() != "zombie"])
    assert (store["tensor"][5] == ocrstore.open(source)["tensor"][5]).all()


@pytest.mark.slow
def test_many_readers_elect_one_fetcher(source, cache):
    """Of processes that start at once, all are served by the same one."""
    code = (
        "import sys, ocrstore; from ocrstore.remote.client import ask; from pathlib import Path\n"
        f"store = ocrstore.open({source.as_uri()!r}); store['tensor'][3]\n"
        f"print(ask(Path({str(cache)!r}), {{'do': 'status'}})['pid'])"
    )
    command = [shutil.which("python3") and os.sys.executable, "-c", code]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    assert len({reader.communicate()[0] for reader in readers}) == 1


def test_marks_of_before_a_power_failure_are_checked_again(url, source, cache, proxy):
    """Rows that are right are kept, the others fetched again; nothing is believed."""
    store = ocrstore.open(url, cache=cache)
    store["tensor"][:]
    before = proxy.downloaded()
    for fetcher in fetchers(cache):
        fetcher.kill()
        fetcher.wait()
    rows, nbytes = _rows_file(cache), source.stat().st_size
    offset = int(store["tensor"].offsets[4])
    with rows.open("r+b") as file:  # marked, but never written
        file.seek(header_start(nbytes) + 8)
        file.write(b"another boot")
        file.seek(offset)
        file.write(bytes(1000))
    again = ocrstore.open(url, cache=cache)
    assert_equal(again, source, ("tensor",))
    row = int(store["tensor"].nbytes[4])
    assert row <= proxy.downloaded() - before <= 2 * row + 1000


@pytest.mark.slow
def test_marks_are_set_after_the_rows(url, source, cache):
    """Whatever is marked in the file is there, also while it is being filled."""
    store = ocrstore.open(url, cache=cache)
    store["tensor"][[3, 50, 100]]
    content = np.fromfile(_rows_file(cache), np.uint8)
    marks = content[marks_start(source.stat().st_size) :].reshape(len(store.columns), len(store))
    local = ocrstore.open(source)
    for number, name in enumerate(store.columns):
        for row in np.flatnonzero(marks[number] == PRESENT).tolist():
            start, size = int(local[name].offsets[row]), int(local[name].nbytes[row])
            assert content[start : start + size].tobytes() == bytes(local[name].stored(row))
    assert (marks[0, [3, 50, 100]] == PRESENT).all()


def test_a_limit_below_the_size_of_one_store(url, source, cache):
    """The local copy is begun anew; arrays that were handed out stay as they are."""
    store = ocrstore.open(url, cache=cache, cache_limit="2MB")
    local = ocrstore.open(source)
    held = [(row, store["tensor"][row]) for row in range(160)]
    assert all((array == local["tensor"][row]).all() for row, array in held)
    assert sum(path.stat().st_blocks * 512 for path in cache.glob("*.rows")) < 3_000_000
    assert_equal(store, source)


@pytest.mark.slow
def test_beyond_the_limit_the_first_stores_stay_and_the_others_pass_through(
    s3_server, bucket, tmp_path, cache
):
    """Of six stores with room for three: what came first is read again without a download."""
    sources = [make_large(tmp_path / f"s{n}.ocrs", samples=64, seed=n) for n in range(6)]
    urls = [upload(s3_server, f"{bucket}/{path.name}", path) for path in sources]
    size = stored_nbytes(sources[0], "tensor")
    for url, source in zip(urls, sources, strict=True):
        assert_equal(ocrstore.open(url, cache_limit=4 * size), source, ("tensor",))
        used = sum(path.stat().st_blocks * 512 for path in cache.glob("*.rows"))
        assert used <= 4.5 * size
    kept = {read_origin(path.with_suffix(".frame")).url for path in cache.glob("*.rows")}
    assert urls[0] in kept and urls[5] in kept and len(kept) < 6
    before = ask(cache, {"do": "status"})["downloaded"]
    assert_equal(ocrstore.open(urls[0]), sources[0], ("tensor",))
    assert ask(cache, {"do": "status"})["downloaded"] == before


@pytest.mark.slow
def test_an_emptied_cache_folder_is_filled_again(url, source, cache):
    """By the same fetcher, for a store that is open and for one that is opened."""
    store = ocrstore.open(url, cache=cache)
    store["tensor"][3]
    _rows_file(cache).unlink()
    assert_equal(store, source, ("tensor",))
    for path in (*cache.glob("*.rows"), *cache.glob("*.frame"), *cache.glob("*.json")):
        path.unlink()
    assert_equal(ocrstore.open(url, cache=cache), source)


def test_files_of_others_in_the_cache_folder_stay(url, source, cache):
    """Only local copies are removed, never what has no remote copy."""
    cache.mkdir()
    mine = [cache / name for name in ("mine.rows", "mine.ocrs", "mine.frame")]
    for path in mine:
        shutil.copy(source, path)
    assert_equal(ocrstore.open(url, cache_limit="1MB"), source)
    assert all(path.read_bytes() == source.read_bytes() for path in mine)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    for fetcher in fetchers(folder / "cache"):
        fetcher.kill()
        fetcher.wait()
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_streamed_over_with_one_warning(url, source, small_disk):
    """Rows are kept in memory instead; nothing is wrong and nothing is left there."""
    cache = small_disk / "cache"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = ocrstore.open(url, cache=cache)
        for _ in range(2):
            assert_equal(store, source)
        assert_equal(ocrstore.open(url, cache=cache), source)
    assert len([w for w in caught if "disk is full" in str(w.message)]) == 1
