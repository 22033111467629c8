"""Keys are valid Unicode, and the file name can be restored from them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrstore.keys import fraction_of, from_lines, shown, to_lines
from ocrstore.sources import key_of, path_of


@given(st.binary(max_size=40))
def test_any_bytes_round_trip(name):
    """Every POSIX file name has a key that is valid UTF-8 and leads back to the same bytes."""
    path = name.decode("utf-8", "surrogateescape")
    key = key_of(path)
    key.encode("utf-8")
    assert path_of(key).encode("utf-8", "surrogateescape") == name


@given(st.text(max_size=20), st.text(max_size=20))
def test_different_names_have_different_keys(a, b):
    """No two names share a key, even if one is spelled as the other's escape."""
    assert (key_of(a) == key_of(b)) == (a == b)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (b"plain.jpg", "plain.jpg"),
        (b"a b/100%.jpg", "a b/100%.jpg"),
        (b"caf\xe9.jpg", "caf\\xe9.jpg"),
        (b"back\\slash.jpg", "back\\\\slash.jpg"),
        (b"\\xe9.jpg", "\\\\xe9.jpg"),
        ("日本 🎉.jpg".encode(), "日本 🎉.jpg"),
        (b"new\nline.jpg", "new\nline.jpg"),
    ],
)
def test_known_keys(name, key):
    """The escaping is the documented one and stays so."""
    assert key_of(name.decode("utf-8", "surrogateescape")) == key


def test_windows_surrogate_round_trips():
    """A lone surrogate, as Windows names may hold, is written as its code."""
    assert key_of("a\ud800.jpg") == "a\\ud800.jpg"
    assert path_of("a\\ud800.jpg") == "a\ud800.jpg"


@given(st.binary(max_size=40))
def test_shown_is_printable(name):
    """What goes into a message is valid and on one line."""
    text = shown(os.fsdecode(name))
    text.encode("utf-8")
    assert "\n" not in text and "\x1b" not in text


def test_a_share_of_keys():
    """A tenth of many keys lies below 0.1, always the same ones, whatever the others are."""
    keys = [f"img_{number}.jpg" for number in range(4000)]
    tenth = [key for key in keys if fraction_of(key) < 0.1]
    assert 320 < len(tenth) < 480
    assert tenth[:3] == ["img_15.jpg", "img_17.jpg", "img_18.jpg"]
    assert all(0 <= fraction_of(key) < 1 for key in ("", "日本.jpg"))


@given(st.lists(st.text(min_size=1, max_size=20).map(key_of)))
def test_a_file_of_keys(keys):
    """A key a line, whatever line ends and backslashes the names have."""
    text = to_lines(keys)
    assert text.count("\n") == len(keys) and from_lines(text) == keys
    assert from_lines("a.jpg\r\n\nb c.jpg") == ["a.jpg", "b c.jpg"]
