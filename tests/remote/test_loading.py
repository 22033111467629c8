"""Ranks and workers read a store behind a URL together, and are killed while they do."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ocrstore.remote.client import ask
from tests.remote.local_copies import fetchers, stored_nbytes
from tests.sharded import shard_store
from tests.torch_.making import make_store

ROOT = Path(__file__).parents[2]
COLUMNS = ("tensor", "prob_map", "thresh_map", "prob_mask", "thresh_mask", "inverse_matrix")
pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path):
    """A store as a build makes it, some 20 MB."""
    path = tmp_path / "train.ocrs"
    make_store(path, samples=120, sizes=(160,), keep_image=True)
    return path


def start_rank(url, source, method, rank, replicas, epochs, kind):
    """Start a process that reads its share with two workers."""
    driver = ROOT / "tests" / "drivers" / "remote_epochs.py"
    command = [sys.executable, driver, url, source, method, rank, replicas, epochs, kind]
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def read(process):
    """Wait for a rank; return its epochs."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize(
    ("method", "kind"), [("fork", "window"), ("spawn", "full"), ("none", "full")]
)
def test_every_byte_is_downloaded_once_per_node(url, source, cache, proxy, method, kind):
    """Two ranks with two workers each: 1.0 times the columns, nothing in the second epoch."""
    ranks = [start_rank(url, source, method, rank, 2, 1, kind) for rank in range(2)]
    epochs = [read(rank)[0] for rank in ranks]
    assert sorted(epochs[0]["rows"] + epochs[1]["rows"]) == list(range(120))
    assert [epoch["wrong"] for epoch in epochs] == [0, 0]
    used = stored_nbytes(source, *COLUMNS)
    frame = 1_300_000
    assert used <= proxy.downloaded() <= 1.02 * used + frame
    before = proxy.downloaded()
    epochs = read(start_rank(url, source, method, 0, 1, 2, kind))
    assert [epoch["wrong"] for epoch in epochs] == [0, 0]
    assert proxy.downloaded() == before


def test_a_limit_below_what_is_used(url, source, cache, proxy, monkeypatch):
    """Ranks and workers, whose rows are removed before the epoch ends; nothing is wrong."""
    monkeypatch.setenv("LIMIT", "10MB")
    ranks = [start_rank(url, source, "fork", rank, 2, 2, "window") for rank in range(2)]
    first, second = (read(rank) for rank in ranks)
    for one, other in zip(first, second, strict=True):
        assert sorted(one["rows"] + other["rows"]) == list(range(120))
        assert one["wrong"] == other["wrong"] == 0
    assert sum(path.stat().st_blocks * 512 for path in cache.glob("*.rows")) < 15_000_000


class Writer:
    """`ocrstore push` of a data set, started again after each kill; a new URL when it is done."""

    def __init__(self, folder, bucket, scratch):
        self.folder, self.bucket, self.scratch = folder, bucket, scratch
        self.sets = self.done = 0
        self.next_set()

    def next_set(self):
        """Push to another URL."""
        self.sets += 1
        self.url = f"{self.bucket}/pushed-{self.sets}/"
        self.start()

    def start(self):
        """Start the command."""
        words = [sys.executable, "-m", "ocrstore", "push", str(self.folder), self.url, "-q"]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def kill(self):
        """Kill it; what is in the bucket is no data set yet, or the whole one. Then go on."""
        self.process.kill()
        self.process.communicate()
        assert self.process.returncode in (0, -9)
        self.check(may_be_missing=self.process.returncode != 0)
        self.start()

    def poll(self):
        """Check what was pushed to its end."""
        if self.process.poll() is not None:
            _, said = self.process.communicate()
            assert self.process.returncode == 0, said
            self.check(may_be_missing=False)
            self.done += 1
            self.next_set()

    def check(self, *, may_be_missing):
        """Pull what is in the bucket and compare it, byte by byte."""
        target = self.scratch / f"pulled-{self.sets}"
        words = [sys.executable, "-m", "ocrstore", "pull", self.url, str(target), "-q"]
        pulled = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
        if may_be_missing and pulled.returncode == 1 and "no such object" in pulled.stderr:
            return
        assert pulled.returncode == 0, pulled.stderr
        for path in self.folder.iterdir():
            assert (target / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("count", "limit"), [(100, None), (30, "12MB")])
def test_kills_make_nothing_wrong(
    url, source, bucket, cache, proxy, monkeypatch, tmp_path, count, limit
):
    """Fetchers, readers and writers are killed at random; what is read is right, nothing hangs."""
    proxy.latency = 0.01
    if limit is not None:
        monkeypatch.setenv("LIMIT", limit)
    rng = random.Random(5)
    kills = {"fetcher": 0, "reader": 0, "writer": 0}
    readers, epochs, number = [], [], 0
    writer = Writer(shard_store(source, tmp_path / "set", bits=3), bucket, tmp_path)
    end = time.monotonic() + 500
    while sum(kills.values()) < count and time.monotonic() < end:
        while len(readers) < 2:
            method = rng.choice(["fork", "none"])
            readers.append(start_rank(url, source, method, 0, 1, 3, rng.choice(["full", "window"])))
            number += 1
        time.sleep(rng.uniform(0.05, 0.8))
        choice = rng.random()
        if choice < 0.6:
            for fetcher in fetchers(cache):
                fetcher.kill()
                kills["fetcher"] += 1
        elif choice < 0.75:
            reader = readers.pop(0)
            if reader.poll() is None:
                os.killpg(reader.pid, 9)
                kills["reader"] += 1
            reader.communicate()
        else:
            writer.kill()
            kills["writer"] += 1
        writer.poll()
        for reader in [reader for reader in readers if reader.poll() is not None]:
            readers.remove(reader)
            epochs += read(reader)
            for rows in cache.glob("*.rows"):
                rows.unlink()  # begin anew, so that there is something to fetch
    assert sum(kills.values()) >= count and all(kills.values()), kills
    for reader in readers:
        epochs += read(reader)
    writer.process.wait(timeout=120)
    writer.poll()
    assert writer.done
    writer.process.kill()
    writer.process.communicate()
    assert epochs
    assert sum(epoch["wrong"] for epoch in epochs) == 0
    assert all(sorted(epoch["rows"]) == list(range(120)) for epoch in epochs)
    assert ask(cache, {"do": "status"})["pid"]
