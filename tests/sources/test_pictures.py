"""What counts as a picture below a folder, and how links and odd files are treated."""

import os
from collections import Counter

import pytest

from ocrstore.errors import SourceError
from ocrstore.sources import open_source
from ocrstore.sources.pictures import PICTURE_SUFFIXES, list_folder


def keys(listing):
    """The keys of the pictures of a listing."""
    return [file.key for file in listing.pictures]


def test_recursive_and_sorted(make):
    """Pictures of all depths come in the order of their keys, with POSIX slashes."""
    root = make({"b.jpg": None, "a/z.png": None, "a/b/c.webp": None, "Z.tif": None})
    assert keys(list_folder(root)) == ["Z.tif", "a/b/c.webp", "a/z.png", "b.jpg"]


@pytest.mark.parametrize("suffix", sorted(PICTURE_SUFFIXES))
def test_every_suffix_in_any_case(make, suffix):
    """Each documented ending counts, in either case."""
    root = make({"a" + suffix: None, "b" + suffix.upper(): None})
    assert len(list_folder(root).pictures) == 2


def test_other_files_are_reported(make):
    """A file that is no picture is not a sample, and is reported of."""
    source = open_source(make({"a.jpg": None, "notes.md": "hello", "sub/b.pdf": "x"}))
    assert source.keys == ("a.jpg",)
    told = [p.message for p in source.problems if p.kind == "not-a-picture"]
    assert len(told) == 2 and told[0].startswith("notes.md") and told[1].startswith("sub/b.pdf")


def test_hidden_files_are_counted_not_read(make):
    """Hidden pictures and what systems leave behind are passed over, with one note."""
    root = make({"a.jpg": None, ".b.jpg": None, ".git/c.jpg": None, "Thumbs.db": "x"})
    listing = list_folder(root)
    assert keys(listing) == ["a.jpg"] and listing.others == ()
    assert [p.kind for p in listing.problems] == ["hidden-files"]


def test_link_to_a_file_is_a_picture(make, tmp_path):
    """A link to a picture is a sample of its own, under the link's name."""
    root = make({"a.jpg": None})
    (root / "b.jpg").symlink_to(root / "a.jpg")
    assert keys(list_folder(root)) == ["a.jpg", "b.jpg"]


def test_link_to_a_folder_is_followed(make):
    """Pictures behind a link to a folder elsewhere are found under the link's name."""
    root = make({"a.jpg": None})
    (root / "more").symlink_to(make({"b.jpg": None}, into="elsewhere"))
    listing = list_folder(root)
    assert keys(listing) == ["a.jpg", "more/b.jpg"] and listing.problems == ()


def test_loops_end(make):
    """A link back to a folder above is not entered again, and is reported of."""
    root = make({"sub/a.jpg": None})
    (root / "sub" / "up").symlink_to(root)
    (root / "sub" / "self").symlink_to(root / "sub")
    listing = list_folder(root)
    assert keys(listing) == ["sub/a.jpg"]
    assert Counter(p.kind for p in listing.problems) == {"folder-seen-twice": 2}


def test_many_cross_links_stay_few(make):
    """Folders that all link to each other are each scanned once, under their real names."""
    root = make({f"{n}/a.jpg": None for n in range(8)})
    for n in range(8):
        for m in range(8):
            (root / str(n) / f"to{m}").symlink_to(root / str(m))
    listing = list_folder(root)
    assert keys(listing) == [f"{n}/a.jpg" for n in range(8)]
    assert len(listing.problems) == 64


def test_link_to_itself_and_to_nothing(make):
    """Links that lead nowhere are reported, not raised."""
    root = make({"a.jpg": None})
    (root / "b.jpg").symlink_to(root / "gone.jpg")
    (root / "c.jpg").symlink_to(root / "c.jpg")
    listing = list_folder(root)
    assert keys(listing) == ["a.jpg"]
    assert [p.kind for p in listing.problems] == ["broken-link", "broken-link"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipe_is_not_opened(make):
    """A pipe with a picture's name is reported; reading it would wait for ever."""
    root = make({"a.jpg": None})
    os.mkfifo(root / "b.jpg")
    listing = list_folder(root)
    assert keys(listing) == ["a.jpg"] and [p.kind for p in listing.problems] == ["not-a-file"]


def test_folder_that_cannot_be_listed(public_path, as_nobody):
    """A folder without permission is reported, the rest is read."""
    locked = public_path / "locked"
    locked.mkdir()
    for folder in (public_path, locked):
        (folder / "a.jpg").write_bytes(b"x")
    locked.chmod(0)
    try:
        listing = as_nobody(lambda: list_folder(public_path))
    finally:
        locked.chmod(0o755)
    assert keys(listing) == ["a.jpg"]
    assert [p.kind for p in listing.problems] == ["unreadable-folder"]


@pytest.mark.parametrize(
    ("files", "part"),
    [({}, "no picture in it"), ({"a.txt": "x"}, "1 other files")],
)
def test_no_pictures_is_an_error(make, files, part):
    """A folder without any picture is refused, and what is in it is reported."""
    with pytest.raises(SourceError, match=part):
        open_source(make(files))


def test_not_a_folder(make, tmp_path):
    """A missing folder and a file in its place are refused."""
    with pytest.raises(SourceError, match="found nothing"):
        open_source(tmp_path / "gone")
    with pytest.raises(SourceError, match="found a file"):
        open_source(make({"a.jpg": None}) / "a.jpg")
