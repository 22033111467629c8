r"""Sample keys: file names as valid Unicode, and back; lists of keys, shares of them, foreign text.

A key is the picture's path relative to the images folder with `/` between its parts. File names may
hold bytes that are no UTF-8; a key may not. So in a key a backslash is written `\\`, a byte that
does not decode `\xNN`, and (Windows) a lone surrogate `\uNNNN`. Every other name is its own key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import xxhash

_ESCAPED = re.compile(r"[\\\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LINE_END = re.compile(r"\\(\\|n|r)")
_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4})")


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char == "\\":
        return "\\\\"
    code = ord(char)
    # Python's surrogateescape puts undecodable bytes 0x80..0xff here
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}"


def _unescape(match: re.Match[str]) -> str:
    body = match[1]
    if body == "\\":
        return "\\"
    code = int(body[1:], 16)
    return chr(code + 0xDC00) if body[0] == "x" else chr(code)


def key_of(relative: str) -> str:
    r"""Turn a relative POSIX path, as `os.fsdecode` gives it, into a key.

    >>> key_of("a b/100%.jpg"), key_of("caf\udce9.jpg")
    ('a b/100%.jpg', 'caf\\xe9.jpg')
    """
    return _ESCAPED.sub(_escape, relative)


def path_of(key: str) -> str:
    """Turn a key back into the relative POSIX path it was made from; the inverse of `key_of`."""
    return _ESCAPE.sub(_unescape, key)


def to_lines(keys: Iterable[str]) -> str:
    r"""Return a text with a key in each line; line ends inside of a key become `\n` and `\r`."""
    escaped = (key.replace("\n", "\\n").replace("\r", "\\r") for key in keys)
    return "".join(f"{key}\n" for key in escaped)


def from_lines(text: str) -> list[str]:
    """Return the keys of a text that `to_lines` wrote; empty lines are skipped."""
    ends = {"n": "\n", "r": "\r"}
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    # a backslash of a name is doubled in its key, so that a single one begins an escape
    return [_LINE_END.sub(lambda m: ends.get(m[1], m[0]), line) for line in lines if line]


def hash_of(key: str) -> int:
    """Return 64 bits that follow from the key alone, evenly spread over keys."""
    return xxhash.xxh3_64_intdigest(key.encode())


def fraction_of(key: str) -> float:
    """Return a number in [0, 1) that follows from the key alone, evenly spread over keys.

    For parts of a data set that stay the same when samples are added: a tenth is all keys below
    0.1, and a larger part contains the smaller one.
    """
    return hash_of(key) / 2**64


def shown(text: object) -> str:
    r"""Escape what a terminal obeys instead of showing it; every foreign string is printed so.

    Control characters (C0, C1), line ends, bidirectional and other invisible marks and lone
    surrogates are written as escapes like `\x1b`: the result is valid Unicode on one line.
    """
    text = _SURROGATE.sub(_escape, str(text))
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown_lines(text: object) -> str:
    """Do the same for a text of several lines."""
    return "\n".join(shown(line) for line in str(text).split("\n"))
