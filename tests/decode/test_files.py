"""Reading a picture's bytes from disk."""

import os

import pytest

from ocrstore.decode import decode, format_by_name, read_picture
from ocrstore.errors import DecodeError


def test_a_file_is_read_whole(tmp_path):
    """The bytes, with no other work done."""
    path = tmp_path / "a b'\n🙂.jpg"
    path.write_bytes(b"\xff\xd8 anything")
    assert read_picture(path) == b"\xff\xd8 anything"


def missing(folder):
    """A name without a file."""
    return folder / "gone.jpg"


def directory(folder):
    """A folder that is called like a picture."""
    path = folder / "folder.jpg"
    path.mkdir()
    return path


def loop(folder):
    """A link to itself."""
    path = folder / "loop.jpg"
    path.symlink_to(path)
    return path


def pipe(folder):
    """A pipe without a writer, which must not be waited for."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes here")
    path = folder / "pipe.jpg"
    os.mkfifo(path)
    return path


def below_a_file(folder):
    """A path that goes through a file."""
    (folder / "plain").write_bytes(b"x")
    return folder / "plain" / "a.jpg"


def null_byte(folder):
    """A name no file system takes."""
    return folder / "a\0b.jpg"


@pytest.mark.parametrize("make", [missing, directory, loop, pipe, below_a_file, null_byte])
def test_what_cannot_be_read_is_a_decode_error(make, tmp_path):
    """One kind of error for everything that goes wrong, with the path in it."""
    path = make(tmp_path)
    with pytest.raises(DecodeError) as caught:
        read_picture(path)
    assert str(path) in str(caught.value)


def test_a_file_that_may_not_be_read(public_path, as_nobody):
    """Without the permission the error says so, with the path."""
    path = public_path / "secret.jpg"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(DecodeError, match="Permission denied") as caught:
        as_nobody(lambda: read_picture(path))
    assert str(path) in str(caught.value)


def test_an_empty_file_is_read_and_then_refused(tmp_path):
    """Zero bytes are no picture."""
    path = tmp_path / "empty.png"
    path.touch()
    with pytest.raises(DecodeError, match="empty"):
        decode(read_picture(path), name=str(path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.JPG", "jpeg"), ("b.tif", "tiff"), ("c.webp", "webp"), ("d.txt", None), ("jpg", None)],
)
def test_names_promise_formats(name, expected):
    """So that a mislabelled picture can be reported next to what it really is."""
    assert format_by_name(name) == expected
