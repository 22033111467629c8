"""The worker processes: order, memory, crashes, and what a worker says."""

import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from ocrstore.building.derive import Derived, Job, JPEGBytes, Task
from ocrstore.building.pool import SLOTS_PER_WORKER, Inline, Pool
from ocrstore.building.slots import Slot
from ocrstore.building.views import View
from ocrstore.errors import OCRStoreError
from ocrstore.recipe import Recipe
from ocrstore.sample import Problem, SourceSample
from ocrstore.sources import open_source

from .conftest import SIZE, draw, encode

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


def test_results_come_in_order_whatever_their_size(dataset):
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
    assert not psutil.Process().children()


def test_memory_is_bounded(dataset):
    """However small the budget, large pictures come through, one at a time."""
    for i in range(12):
        dataset.add(f"{i:03}.png", encode(draw(300, 300, seed=i), ".png"))
    with Pool(JOB, workers=2, budget_nbytes=100_000) as pool:
        shapes = [out.columns["image"].shape for _, out in pool.derive_all(tasks(dataset))]
        sizes = [os.fstat(slot._descriptor).st_size for slot in pool._slots]
        assert len(sizes) == 2 * SLOTS_PER_WORKER
    assert shapes == [(300, 300, 3)] * 12


def test_slots_grow_and_shrink():
    """A slot holds what it needs, and gives back what one large sample took."""
    slot = Slot.create()
    other = Slot.attach(slot.name)
    small = {"a": np.arange(5, dtype=np.float16), "b": np.array(7.0), "c": np.empty((0, 3))}
    large = {"a": np.ones((2000, 1000), np.uint8), "j": JPEGBytes(b"abc", (1, 2, 3))}
    for columns in (small, large, small):
        placed = other.put(columns, keep_nbytes=100_000)
        got = slot.get(placed)
        assert got.keys() == columns.keys()
        for name, value in columns.items():
            if isinstance(value, JPEGBytes):
                assert got[name] == value
            else:
                assert np.array_equal(got[name], value) and got[name].dtype == value.dtype
    assert os.fstat(slot._descriptor).st_size < 100_000
    slot.close()


def test_slots_by_path(monkeypatch):
    """Where the system has no anonymous files, a temporary one serves, and is removed."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    slot = Slot.create()
    path = Path(slot.name.path)
    other = Slot.attach(slot.name)
    placed = other.put({"a": np.arange(9)}, keep_nbytes=10)
    assert np.array_equal(slot.get(placed)["a"], np.arange(9))
    other.close()
    assert path.exists()
    slot.close()
    assert not path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSEGV")
@pytest.mark.parametrize("when", ["once", "always"])
def test_a_crash_is_tied_to_its_picture(dataset, monkeypatch, tmp_path, when):
    """One crash is forgiven; a picture that crashes its worker twice is skipped, and named."""
    path = special(monkeypatch, tmp_path, "Crashing", when)
    dataset.fill(5)
    work = tasks(dataset)
    work[2] = Task(SourceSample("img_002.jpg", path(work[2].sample.path)))
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
    work[1] = Task(SourceSample("img_001.jpg", path(work[1].sample.path)))
    with (
        pytest.raises(OCRStoreError, match=r"(?s)img_001\.jpg: a worker failed.*a mistake in the"),
        Pool(JOB, workers=1) as pool,
    ):
        list(pool.derive_all(work))


def test_what_libraries_print_does_not_disturb(dataset, monkeypatch, tmp_path):
    """Standard output of a worker carries messages only."""
    path = special(monkeypatch, tmp_path, "Loud")
    dataset.fill(1)
    work = [Task(SourceSample("img_000.jpg", path(tasks(dataset)[0].sample.path)))]
    with Pool(JOB, workers=1) as pool:
        assert [type(out) for _, out in pool.derive_all(work)] == [Derived]


def test_a_pool_can_be_left_early(dataset):
    """Leaving in the middle ends the workers."""
    dataset.fill(12)
    with Pool(JOB, workers=2) as pool:
        next(iter(pool.derive_all(tasks(dataset))))
    assert not psutil.Process().children()
