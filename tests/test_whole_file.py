"""Danger: a command is killed or the disk is full while it writes a result file."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from ocrstore.whole_file import replaced, write_whole


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    """What was written before the error is gone, and the former file is there."""
    path = tmp_path / "boxes.json"
    write_whole(path, b"before")
    with pytest.raises(ZeroDivisionError), replaced(path) as partial:
        partial.write_bytes(b"half of")
        raise ZeroDivisionError
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child only writes and dies
def test_the_next_run_replaces_what_a_killed_one_left(tmp_path):
    """SIGKILL in the middle: no half file under the name, nothing beside it after the next run."""
    path = tmp_path / "boxes.json"
    child = os.fork()
    if child == 0:
        with replaced(path) as partial:
            partial.write_bytes(b"half of")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert not path.exists()
    write_whole(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_names_as_long_as_file_systems_allow(tmp_path):
    """A name of 255 bytes leaves no room for a longer hidden one."""
    path = tmp_path / "deep" / ("é" * 127 + "a")
    write_whole(path, b"whole")
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == b"whole"


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
def test_links_and_pipes_are_not_replaced(tmp_path):
    """A link goes on pointing to its file; what is no file is written to."""
    link, real, pipe = tmp_path / "link", tmp_path / "real", tmp_path / "pipe"
    link.symlink_to(real)
    write_whole(link, b"whole")
    assert link.is_symlink()
    assert real.read_bytes() == b"whole"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"whole")
    assert os.read(reading, 10) == b"whole"
    assert pipe.is_fifo()
    os.close(reading)
