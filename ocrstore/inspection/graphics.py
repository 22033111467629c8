"""Pixels become the escape sequences of kitty, iTerm2 and sixel terminals, or half-blocks."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.style import Style
from rich.text import Text

Pixels = npt.NDArray[np.uint8]
_KITTY_CHUNK = 4096
_LEVELS = 6
# an 8x8 Bayer matrix, so that six levels a channel look like more
_BAYER = np.array([[0, 2], [3, 1]])
for _ in range(2):
    _BAYER = np.block([[4 * _BAYER, 4 * _BAYER + 2], [4 * _BAYER + 3, 4 * _BAYER + 1]])


def encode_png(pixels: Pixels) -> bytes:
    """Encode RGB pixels as a PNG, which needs nothing but zlib."""
    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + 3 * width), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
        + chunk(b"IEND", b"")
    )


def to_kitty(pixels: Pixels, *, columns: int) -> str:
    """Write a picture for kitty's graphics protocol, so many cells wide."""
    data = base64.b64encode(encode_png(pixels)).decode()
    parts = [data[i : i + _KITTY_CHUNK] for i in range(0, len(data), _KITTY_CHUNK)]
    lines = []
    for number, part in enumerate(parts):
        more = int(number < len(parts) - 1)
        keys = f"a=T,f=100,q=2,c={columns},m={more}" if number == 0 else f"m={more}"
        lines.append(f"\x1b_G{keys};{part}\x1b\\")
    return "".join(lines) + "\n"


def to_iterm(pixels: Pixels, *, columns: int) -> str:
    """Write a picture as iTerm2, WezTerm and mintty take it, so many cells wide."""
    png = encode_png(pixels)
    data = base64.b64encode(png).decode()
    return (
        f"\x1b]1337;File=inline=1;size={len(png)};width={columns};preserveAspectRatio=1:{data}\a\n"
    )


def to_sixel(pixels: Pixels) -> str:
    """Write a picture as sixels, in a fixed palette of 216 colours with ordered dithering."""
    height, width = pixels.shape[:2]
    tiles = np.tile(_BAYER, (height // 8 + 1, width // 8 + 1))[:height, :width, None]
    scaled = pixels.astype(np.float64) * (_LEVELS - 1) / 255 + (tiles + 0.5) / 64 - 0.5
    levels = np.clip(np.rint(scaled), 0, _LEVELS - 1).astype(np.int64)
    indexed = (levels[..., 0] * _LEVELS + levels[..., 1]) * _LEVELS + levels[..., 2]
    out = [f'\x1bPq"1;1;{width};{height}']
    for colour in np.unique(indexed).tolist():
        red, green, blue = colour // 36, colour // 6 % 6, colour % 6
        out.append(f"#{colour};2;{red * 20};{green * 20};{blue * 20}")
    for top in range(0, height, 6):
        band = indexed[top : top + 6]
        bits = (1 << np.arange(len(band)))[:, None]
        for colour in np.unique(band).tolist():
            column = ((band == colour) * bits).sum(axis=0)
            out.append(f"#{colour}{_run_lengths(column)}$")
        out.append("-")
    return "".join(out) + "\x1b\\\n"


def to_blocks(pixels: Pixels) -> Text:
    """Write a picture with two pixels in each character cell; rich fits the colours in."""
    if pixels.shape[0] % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    text = Text(no_wrap=True, end="")
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist()):
        for above, below in zip(upper, lower):
            style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
            text.append("▀", style)
        text.append("\n")
    return text


def _run_lengths(values: npt.NDArray[np.int64]) -> str:
    edges = np.flatnonzero(np.diff(values)) + 1
    starts = np.concatenate([[0], edges])
    lengths = np.diff(np.concatenate([starts, [len(values)]]))
    return "".join(
        f"!{length}{chr(63 + value)}" if length > 3 else chr(63 + value) * length
        for value, length in zip(values[starts].tolist(), lengths.tolist())
    )
