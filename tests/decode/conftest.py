"""Pictures that no library writes, byte by byte."""

import struct
import zlib

import pytest


def build_png(width, height, bits, colour, rows, *, chunks=()):
    """A PNG of any depth and colour type, from its packed rows."""

    def chunk(kind, body):
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    stride = len(rows) // height
    lines = b"".join(b"\0" + rows[y * stride : (y + 1) * stride] for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    middle = b"".join(chunk(*given) for given in chunks)
    tail = chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + middle + tail


def build_tiff(samples, photometric, *, tags=(), order="<", strip=None):
    """A one-strip TIFF of an (h, w, n) array, with further (tag, values) as shorts."""
    height, width, channels = samples.shape
    bits = samples.dtype.itemsize * 8
    if strip is None:
        strip = samples.astype(samples.dtype.newbyteorder(order)).tobytes()
    entries = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", [bits] * channels),
        259: ("H", [1]),
        262: ("H", [photometric]),
        273: ("I", [0]),
        277: ("H", [channels]),
        278: ("I", [height]),
        279: ("I", [len(strip)]),
        **{tag: ("H", values) for tag, values in tags},
    }
    start = 8 + 2 + 12 * len(entries) + 4
    outside = {
        tag: struct.pack(f"{order}{len(values)}{code}", *values)
        for tag, (code, values) in entries.items()
    }
    nbytes = sum(len(v) for v in outside.values() if len(v) > 4)
    entries[273] = ("I", [start + nbytes])
    directory, far = b"", b""
    for tag in sorted(entries):
        code, values = entries[tag]
        packed = struct.pack(f"{order}{len(values)}{code}", *values)
        if len(packed) > 4:
            far += packed
            packed = struct.pack(order + "I", start + len(far) - len(packed))
        kind = 3 if code == "H" else 4
        directory += struct.pack(order + "HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    magic = b"II*\0" if order == "<" else b"MM\0*"
    count = struct.pack(order + "H", len(entries))
    return magic + struct.pack(order + "I", 8) + count + directory + b"\0\0\0\0" + far + strip


@pytest.fixture(scope="session")
def png():
    """The PNG builder."""
    return build_png


@pytest.fixture(scope="session")
def tiff():
    """The TIFF builder."""
    return build_tiff
