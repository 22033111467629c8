"""The worker processes: order, memory, crashes, and what a worker says."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ocrstore.annotation import FoundSample, Problem
from ocrstore.building.derive import Derived, Job, Task, views_nbytes
from ocrstore.building.workers import (
    RESULTS_PER_WORKER,
    Inline,
    Pool,
    _columns,
    _fill_slot,
    _Need,
)
from ocrstore.errors import OCRStoreError, WriteError
from ocrstore.format.codecs import decode_row
from ocrstore.format.columns import Encoded
from ocrstore.recipe import Recipe
from ocrstore.shared_slots import SlotReader, SlotWriter
from ocrstore.sources import open_source
from ocrstore.views import View, stored_columns
from tests.building.conftest import SIZE, draw, encode

JOB = Job((View("v", Recipe.make(size=SIZE), default=True),))
CRASHING = """
import os, signal
from pathlib import Path

class Crashing(type(Path())):
    def open(self, *args, **kwargs):
        if "{when}" == "always" or not Path("{mark}").exists():
            Path("{mark}").touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().open(*args, **kwargs)

class Failing(type(Path())):
    def open(self, *args, **kwargs):
        raise RuntimeError("a mistake in the code")

class Loud(type(Path())):
    def open(self, *args, **kwargs):
        print("a library prints to standard output")
        os.write(1, b"and so does a C library")
        return super().open(*args, **kwargs)
"""


def tasks(dataset):
    """The tasks of all pictures."""
    return [Task(sample) for sample in open_source(dataset.images)]


def special(monkeypatch, tmp_path, kind, when="once"):
    """A kind of path that misbehaves in whichever process opens it."""
    name = f"special_paths_{os.getpid()}_{tmp_path.name}"
    text = CRASHING.format(when=when, mark=tmp_path / "mark")
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return getattr(__import__(name), kind)


def test_results_come_in_order_whatever_their_size(dataset, children):
    """Large and small pictures alternate; the arrays are those of a build in this process."""
    for i in range(30):
        dataset.add(f"{i:03}.png", encode(draw(20 + 150 * (i % 3), 30, seed=i), ".png"))
    wanted = {task.sample.key: out for task, out in Inline(JOB).derive_all(tasks(dataset))}
    with Pool(JOB, workers=3) as pool:
        seen = []
        for task, out in pool.derive_all(tasks(dataset)):
            seen.append(task.sample.key)
            assert isinstance(out, Derived) and out.key == task.sample.key
            for name, array in wanted[out.key].columns.items():
                assert np.array_equal(array, out.columns[name])
            assert str(out.attributes) == str(wanted[out.key].attributes)
        assert seen == [task.sample.key for task in tasks(dataset)]
        assert len(pool.process_ids) == 3
    assert not children()


def test_memory_is_bounded(dataset):
    """However small the budget, large pictures come through, one at a time."""
    for i in range(12):
        dataset.add(f"{i:03}.png", encode(draw(300, 300, seed=i), ".png"))
    with Pool(JOB, workers=2, budget_nbytes=100_000) as pool:
        shapes = [out.columns["image"].shape for _, out in pool.derive_all(tasks(dataset))]
        slots = [memory for w in pool._workers for memory in w.slots._mapped.values()]
        assert len(slots) <= 2 * (RESULTS_PER_WORKER + 1)
    assert shapes == [(300, 300, 3)] * 12


@pytest.mark.parametrize(("side", "asked"), [(150, 0), (300, 1)])
def test_only_a_picture_beyond_the_allowance_is_asked_for(dataset, monkeypatch, side, asked):
    """A worker with nothing else in memory may use all of its part, without waiting."""
    besides = views_nbytes(JOB)
    needs = []
    handle = Pool._handle

    def spy(pool, worker, message):
        needs.extend([message] if isinstance(message, _Need) else [])
        handle(pool, worker, message)

    monkeypatch.setattr(Pool, "_handle", spy)
    dataset.add("a.png", encode(draw(side, side), ".png"))
    with Pool(JOB, workers=1, budget_nbytes=besides + 3 * 200 * 200) as pool:
        assert [type(out) for _, out in pool.derive_all(tasks(dataset))] == [Derived]
    assert [need.nbytes for need in needs] == [besides + 3 * side * side] * asked


def test_columns_travel_as_they_are():
    """Arrays of any dtype, empty ones and JPEG bytes come out of a slot as they went in."""
    columns = {
        "a": np.arange(5, dtype=np.float16),
        "b": np.array(7.0),
        "c": np.empty((0, 3)),
        "d": np.ones((200, 100, 3), np.uint8)[:, ::2],
        "j": Encoded(b"abc", (1, 2, 3)),
        "k": Encoded(b"", (0, 4), trusted=True),
    }
    writer = SlotWriter()
    done = _fill_slot(0, Derived("k", columns, {}, ()), writer)
    got = _columns(done, SlotReader(os.getpid()).receive(done.ticket))
    assert got.keys() == columns.keys() and got["j"] == columns["j"]
    for name in "abcd":
        assert np.array_equal(got[name], columns[name]) and got[name].dtype == columns[name].dtype


def test_a_writer_gets_compressed_columns_encoded(dataset):
    """They decode to the arrays, here and from workers; raw columns stay arrays."""
    dataset.fill(6)
    dataset.add("z.png", encode(draw(30, 20), ".png"))
    recipe = Recipe.make(size=SIZE, codecs={"image": "file", "thresh_map": "lz4block"})
    job = Job((View("v", recipe, default=True),))
    columns = stored_columns(job.views)
    wanted = [out.columns for _, out in Inline(job).derive_all(tasks(dataset))]
    encoding = replace(job, encode=columns)
    with Pool(encoding, workers=2) as pool:
        for maker in (Inline(encoding), pool):
            outcomes = list(maker.derive_all(tasks(dataset)))
            for (task, out), arrays in zip(outcomes, wanted, strict=True):
                row = out.columns["thresh_map"]
                assert row.trusted and isinstance(row, Encoded)
                array = decode_row(
                    columns["thresh_map"], memoryview(row.data), row.shape, where=task
                )
                assert array.tobytes() == arrays["thresh_map"].tobytes()
                assert isinstance(out.columns["image"], Encoded)
                assert np.array_equal(out.columns["tensor"], arrays["tensor"])


def test_workers_without_anonymous_memory(dataset, monkeypatch):
    """Where the system has none, files in a temporary folder serve, and are removed."""
    monkeypatch.setattr("ocrstore.building.workers.supported", False)
    dataset.fill(12)
    wanted = {task.sample.key: out for task, out in Inline(JOB).derive_all(tasks(dataset))}
    with Pool(JOB, workers=2) as pool:
        folder = Path(pool._folder.name)
        for task, out in pool.derive_all(tasks(dataset)):
            assert np.array_equal(out.columns["tensor"], wanted[task.sample.key].columns["tensor"])
        assert len(list(folder.iterdir())) <= 2 * (RESULTS_PER_WORKER + 1)
    assert not folder.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSEGV")
@pytest.mark.parametrize("when", ["once", "always"])
def test_a_crash_is_tied_to_its_picture(dataset, monkeypatch, tmp_path, when):
    """One crash is forgiven; a picture that crashes its worker twice is skipped, and named."""
    path = special(monkeypatch, tmp_path, "Crashing", when)
    dataset.fill(5)
    work = tasks(dataset)
    work[2] = Task(FoundSample("img_002.jpg", path(work[2].sample.path)))
    with Pool(JOB, workers=2) as pool:
        outcomes = [out for _, out in pool.derive_all(work)]
    assert [isinstance(out, Derived) for out in outcomes] == [
        True, True, when == "once", True, True
    ]  # fmt: skip
    if when == "always":
        assert isinstance(outcomes[2], Problem)
        assert outcomes[2].kind == "crashed" and "SIGSEGV" in outcomes[2].message


def test_a_mistake_in_a_worker_is_told(dataset, monkeypatch, tmp_path):
    """An error that is no picture's fault ends the build with the worker's traceback."""
    path = special(monkeypatch, tmp_path, "Failing")
    dataset.fill(2)
    work = tasks(dataset)
    work[1] = Task(FoundSample("img_001.jpg", path(work[1].sample.path)))
    with (
        pytest.raises(OCRStoreError, match=r"(?s)img_001\.jpg: a worker failed.*a mistake in the"),
        Pool(JOB, workers=1) as pool,
    ):
        list(pool.derive_all(work))


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_limit_on_file_sizes_is_told(dataset):
    """`ulimit -f` holds for the memory that workers share: an error, no traceback."""
    import resource

    dataset.fill(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with (
            pytest.raises(WriteError, match=r"no room for \d+ bytes.*too large.*ulimit -f"),
            Pool(JOB, workers=1) as pool,
        ):
            list(pool.derive_all(tasks(dataset)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_libraries_print_does_not_disturb(dataset, monkeypatch, tmp_path):
    """Standard output of a worker carries messages only."""
    path = special(monkeypatch, tmp_path, "Loud")
    dataset.fill(1)
    work = [Task(FoundSample("img_000.jpg", path(tasks(dataset)[0].sample.path)))]
    with Pool(JOB, workers=1) as pool:
        assert [type(out) for _, out in pool.derive_all(work)] == [Derived]


def test_a_pool_can_be_left_early(dataset, children):
    """Leaving in the middle ends the workers."""
    dataset.fill(12)
    with Pool(JOB, workers=2) as pool:
        next(iter(pool.derive_all(tasks(dataset))))
    assert not children()
