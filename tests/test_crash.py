"""Danger: the writing process is killed. The store is then absent, or whole as before or after."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

import ocrstore
from ocrstore.format.publish import partial_path

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL"),
    # later Pythons warn of forking beside threads; the children here only write and die
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

OPERATIONS = {"create", "resume", "append", "update", "add_column", "add_view", "compact"}
RESUMED = ("resume", "update", "add_view")
SPEC = {"a": ocrstore.Column("uint8", (5000,))}


def _check(counts):
    """All operations were killed, and what the driver checked at each point it found true."""
    assert {line["operation"] for line in counts} == OPERATIONS
    for line in counts:
        assert line["points"] >= 3
        assert line["before"] > 0
    return {line["operation"]: line for line in counts}


def test_killed_at_every_border_of_a_call(run_driver, quick_path):
    """SIGKILL before and after each commit, sync, truncation, removal and rename."""
    counts = _check(run_driver("crash.py", quick_path, "calls"))
    assert all(line["after"] > 0 for line in counts.values())
    assert all(counts[name]["resumed"] > 3 for name in RESUMED)
    # a killed build leaves its hidden file for the next run, a killed append nothing
    assert all(counts[name]["hidden"] > 0 for name in ("create", *RESUMED))
    assert counts["append"]["hidden"] == counts["add_column"]["hidden"] == 0


@pytest.mark.parametrize("moment", ["before", "halfway"])
def test_killed_at_every_system_call(run_driver, quick_path, faults_library, moment):
    """SIGKILL before and in the middle of each write, sync and rename, inside LMDB too."""
    counts = _check(run_driver("crash.py", quick_path, moment, LD_PRELOAD=faults_library))
    assert all(counts[name]["resumed"] > 0 for name in RESUMED)


def test_killed_at_any_time(run_driver, quick_path):
    """SIGKILL at calls of Python that are drawn from the whole run, whatever threads do then."""
    for line in _check(run_driver("crash.py", quick_path, "drawn")).values():
        assert line["killed at the first call"] == 1
        assert line["killed on the way"] >= 6  # of 8; the number of calls differs a little
        assert line["got through"] >= 1
        assert line["before"] >= 3
        assert line["after"] >= 1


def _interrupt(path, *, samples=30, token="work"):
    """Leave what a killed build leaves: whole row groups in a hidden file, the last one lost."""
    child = os.fork()
    if child == 0:
        try:
            with ocrstore.create(path, SPEC, group_rows=4, resume=token) as writer:
                _fill(writer, samples)
                writer._container.wait()  # a thread writes; the test needs to know how far it got
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)  # an error must not go on with the tests in the child
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    return partial_path(path)


def _fill(writer, samples=40):
    for number in range(samples):
        if f"s{number}" not in writer:
            row = np.full(5000, number, np.uint8)
            writer.append(f"s{number}", {"a": row}, attributes={"number": number})


def _fingerprint(path, **options):
    with ocrstore.create(path, SPEC, group_rows=4, **options) as writer:
        resumed = writer.resumed
        _fill(writer)
    assert ocrstore.verify(path).ok
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with ocrstore.open(path) as store:
        return store.fingerprint, resumed


def test_resume_continues_and_gives_the_same_store(quick_path):
    """A resumed build takes up whole row groups and ends with the content of a build in one go."""
    path = quick_path / "store.ocrs"
    _interrupt(path)
    resumed_fingerprint, resumed = _fingerprint(path, resume="work")
    assert resumed == 28
    whole, _ = _fingerprint(path, overwrite=True)
    assert resumed_fingerprint == whole


@pytest.mark.parametrize("token", ["other work", None])
def test_other_work_starts_again(quick_path, token):
    """What another build left is neither used nor kept."""
    path = quick_path / "store.ocrs"
    _interrupt(path)
    assert _fingerprint(path, resume=token)[1] == 0


@pytest.mark.parametrize(
    ("place", "sound"),
    [("row", 4), ("header", 8), ("record", 0), ("cut", 12), ("garbage", 0), ("empty", 0)],
)
def test_what_is_damaged_in_a_hidden_file_is_written_again(quick_path, place, sound):
    """After a power failure the hidden file may hold anything: what is sound is used, no more."""
    path = quick_path / "store.ocrs"
    partial = _interrupt(path)
    data = partial.read_bytes()
    damaged = {
        "row": data.replace(b"\x05" * 5000, b"\x05" * 4999 + b"\x04"),
        "header": data.replace(b"OCRSEXT1\2\0", b"OCRSEXT1\7\0"),
        "record": data.replace(b"OCRSGRP1", b"OCRSGRP2"),
        "cut": data[: len(data) // 2],
        "garbage": os.urandom(50_000),
        "empty": b"",
    }
    assert damaged[place] != data
    partial.write_bytes(damaged[place])
    fingerprint, resumed = _fingerprint(path, resume="work")
    assert resumed == sound
    assert fingerprint == _fingerprint(path, overwrite=True)[0]


def test_interrupt_after_the_commit_keeps_what_was_published(make_store, monkeypatch):
    """Ctrl-C just behind the commit that publishes does not take the new rows away again."""
    from ocrstore.format import lmdb_update

    path = make_store(samples=3)
    commit = lmdb_update.Environment.commit

    def interrupted(self, puts, **options):
        places = commit(self, puts, **options)
        if any(key.startswith(b"manifest/") for key in puts):
            raise KeyboardInterrupt
        return places

    monkeypatch.setattr(lmdb_update.Environment, "commit", interrupted)
    arrays = {name: column[0] for name, column in ocrstore.open(path)._columns.items()}
    with pytest.raises(KeyboardInterrupt), ocrstore.edit(path) as writer:
        writer.append("new", arrays, attributes={"number": 1})
    with pytest.raises(KeyboardInterrupt):
        spec = ocrstore.Column("uint8", (9000,))
        ocrstore.add_column(path, "more", spec, np.ones((4, 9000), "u1"))
    monkeypatch.undo()
    assert ocrstore.verify(path).ok
    with ocrstore.open(path) as store:
        assert store.generations == [1, 2, 3]
        assert (store["tensor"][store.row("new")] == store["tensor"][0]).all()
        assert store["more"][3].all()


def test_what_a_killed_append_left_is_used_again(quick_path, run_driver):
    """Row groups that were never published are freed by the next writer, not kept for ever."""
    path = quick_path / "store.ocrs"
    _fingerprint(path)
    sizes = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            with ocrstore.edit(path) as writer:
                for number in range(100, 170):
                    row = np.full(5000, number, np.uint8)
                    writer.append(f"n{number}", {"a": row}, attributes={"number": 1})
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        sizes.append(path.stat().st_size)
    assert len(set(sizes[-3:])) == 1
    assert ocrstore.verify(path).ok
