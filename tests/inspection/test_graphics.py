"""Pictures for terminals: each way of writing them is decoded again and compared."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ocrstore.inspection import graphics, terminal
from ocrstore.inspection.shrinking import COUNTED, IGNORED, draw_outlines, fit, shrink

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def pixels():
    """A slope of colours, of an odd size."""
    ys, xs = np.mgrid[0:31, 0:45]
    return np.stack([xs * 5, ys * 8, (xs + ys) * 3], axis=2).astype(np.uint8)


def decode_png(data):
    """Read the PNGs that are written here: RGB, 8 bits, no filter."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, position = {}, 8
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        body = data[position + 4 : position + 8 + size]
        assert int.from_bytes(data[position + 8 + size : position + 12 + size], "big") == (
            zlib.crc32(body)
        )
        chunks[body[:4]] = body[4:]
        position += 12 + size
    width, height = (int.from_bytes(chunks[b"IHDR"][i : i + 4], "big") for i in (0, 4))
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def decode_sixel(text):
    """Draw a sixel picture as a terminal would."""
    width, height = map(int, re.match(r'\x1bPq"1;1;(\d+);(\d+)', text).groups())
    picture = np.zeros((height + 6, width, 3), np.uint8)
    palette, colour, x, y = {}, 0, 0, 0
    body = text[text.index('"') + 1 :]
    body = body[re.match(r"[\d;]+", body).end() : body.index("\x1b\\")]
    for token in re.finditer(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)(.)|([?-~])|(\$)|(-)", body):
        number, red, green, blue, times, repeated, single, back, down = token.groups()
        if number:
            colour = int(number)
            if red is not None:
                palette[colour] = [round(int(v) * 2.55) for v in (red, green, blue)]
        elif repeated or single:
            count = int(times or 1)
            bits = ord(repeated or single) - 63
            for row in range(6):
                if bits >> row & 1:
                    picture[y + row, x : x + count] = palette[colour]
            x += count
        elif back:
            x = 0
        elif down:
            x, y = 0, y + 6
    return picture[:height]


def test_png(pixels):
    """What is written is a PNG of exactly these pixels."""
    assert np.array_equal(decode_png(graphics.encode_png(pixels)), pixels)


def test_kitty(pixels):
    """Chunks of at most 4096 characters, the last one marked, with the PNG in them."""
    noisy = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    text = graphics.to_kitty(noisy, columns=40)
    parts = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", text)
    assert parts[0][0].startswith("a=T,f=100,q=2,c=40,m=1") and parts[-1][0] == "m=0"
    assert len(parts) > 2 and all(len(data) <= 4096 for _, data in parts)
    assert np.array_equal(decode_png(base64.b64decode("".join(d for _, d in parts))), noisy)


def test_iterm(pixels):
    """One sequence, ended by a bell, that says how many bytes it has."""
    text = graphics.to_iterm(pixels, columns=30)
    match = re.fullmatch(r"\x1b\]1337;File=inline=1;size=(\d+);width=30;[^:]*:([^\a]*)\a\n", text)
    data = base64.b64decode(match[2])
    assert len(data) == int(match[1]) and np.array_equal(decode_png(data), pixels)


def test_sixel(pixels):
    """Decoded, each pixel is within one level of what it was, and areas keep their colour."""
    drawn = decode_sixel(graphics.to_sixel(pixels)).astype(int)
    assert drawn.shape == pixels.shape
    assert np.abs(drawn - pixels).max() <= 52
    flat = np.full((48, 48, 3), (100, 150, 200), np.uint8)
    mean = decode_sixel(graphics.to_sixel(flat)).reshape(-1, 3).mean(axis=0)
    assert np.abs(mean - (100, 150, 200)).max() < 3


def test_half_blocks(pixels):
    """Two pixels in each cell, in true colours; an odd last line is doubled."""
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=80).print(
        graphics.to_blocks(pixels)
    )
    lines = out.getvalue().rstrip("\n").split("\n")
    assert len(lines) == 16 and lines[0].count("▀") == 45
    above, below = pixels[2, 7], pixels[3, 7]
    cell = f"38;2;{above[0]};{above[1]};{above[2]};48;2;{below[0]};{below[1]};{below[2]}m▀"
    assert cell in lines[1]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "230401"}, "kitty"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "190400"}, "blocks"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "mlterm"}, "sixel"),
        ({"TERM": "xterm-256color"}, "blocks"),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1"}, "blocks"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, "blocks"),
        ({}, "blocks"),
    ],
)
def test_what_the_environment_says(environment, expected):
    """Terminals are known by their variables; inside a multiplexer these say nothing."""
    assert terminal.detect(environment, ask=False) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are Unix's")
@pytest.mark.parametrize(
    ("answer", "expected"), [(b"\x1b[?62;4;22c", "sixel"), (b"\x1b[?62c", "blocks")]
)
def test_what_the_terminal_answers(answer, expected):
    """A terminal that counts 4 among its attributes gets sixels."""
    code = (
        "import fcntl, termios, os; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "from ocrstore.inspection import terminal; terminal._ANSWER_SECONDS = 20; "
        "print('found', terminal.detect({'TERM': 'xterm-256color'}))"
    )
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    os.close(theirs)
    seen = b""
    try:
        while b"\x1b[c" not in seen and b"rror" not in seen:
            seen += os.read(ours, 1024)
        os.write(ours, answer)
        while b"found" not in seen or not seen.endswith(b"\n"):
            seen += os.read(ours, 1024)
    except OSError:
        pass  # Linux says so when the other side has closed
    finally:
        process.wait(30)
        os.close(ours)
    assert f"found {expected}" in seen.decode("utf-8", "replace")


def test_shrinking_averages():
    """Each new pixel is the mean of those below it; sizes need not divide."""
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:2, :3] = 100
    assert shrink(pixels, 2, 2)[:, :, 0].tolist() == [[100, 0], [0, 0]]
    assert shrink(pixels, 1, 1)[0, 0].tolist() == [25, 25, 25]
    assert shrink(np.full((1000, 701, 3), 9, np.uint8), 7, 5).tolist() == [[[9] * 3] * 5] * 7
    assert shrink(pixels, 8, 12).shape == (8, 12, 3)


def test_fitting_never_enlarges():
    """A picture is scaled down to a box, and left as it is if it fits."""
    assert fit((100, 200), (50, 50)) == (25, 50)
    assert fit((10, 10), (50, 50)) == (10, 10)
    assert fit((7016, 2), (48, 80)) == (48, 1)


def test_outlines():
    """Edges are drawn in two colours; what lies outside or is not finite is passed over."""
    square = np.array([[2.0, 2.0], [8.0, 2.0], [8.0, 8.0], [2.0, 8.0]])
    polygons = [square, square + 6, square * np.nan, square + 1e9, square[:0]]
    pixels = np.zeros((12, 12, 3), np.uint8)
    drawn = draw_outlines(pixels, polygons, [False, True, False, False, False], matrix=np.eye(3))
    assert tuple(drawn[2, 5]) == COUNTED and tuple(drawn[8, 10]) == IGNORED
    assert not drawn[5, 5].any() and not pixels.any()
