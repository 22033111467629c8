"""What a picture's first bytes say, without decoding a pixel."""

from __future__ import annotations

from dataclasses import dataclass

from ocrstore.decode.bitmaps import BmpHead, read_bmp, read_gif
from ocrstore.decode.chunks import read_png, read_webp
from ocrstore.decode.jpeg_markers import read_jpeg
from ocrstore.decode.tiff_page import Patches, TiffPage, read_tiff
from ocrstore.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Header:
    """Format, size and orientation of an encoded picture."""

    format: str
    """`jpeg`, `png`, `webp`, `bmp`, `tiff` or `gif`, by content; a file's name does not count."""
    size: tuple[int, int]
    """(width, height) as stored, before any rotation."""
    bit_depth: int
    """Bits per sample."""
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 where the file says nothing valid."""
    components: int | None = None
    """Channels of a JPEG (4: CMYK or YCCK)."""
    scan_offset: int = 0
    """Where a JPEG's first scan begins."""
    transparent_gray: int | None = None
    """The gray sample that a PNG declares transparent, at the file's bit depth."""
    frame: tuple[int, int, int, int] | None = None
    """(left, top, width, height) of a GIF's first frame on its screen."""
    bmp: BmpHead | None = None
    tiff: TiffPage | None = None
    patches: Patches = ()
    """(offset, bytes) to change in a copy before OpenCV sees it."""


def sniff(data: bytes) -> str:
    """Return the format that the first bytes announce."""
    if not data:
        raise DecodeError("the file is empty (0 bytes); restore it from its origin")
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "tiff"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith(b"BM"):
        return "bmp"
    raise DecodeError(
        f"not a picture that can be read: it starts with {data[:8]!r}; "
        "JPEG, PNG, WebP, BMP, TIFF and GIF are"
    )


def read_header(data: bytes) -> Header:
    """Read format, stored size, depth and orientation; raise DecodeError for anything else."""
    kind = sniff(data)
    if kind == "jpeg":
        jpeg = read_jpeg(data)
        return Header(
            kind,
            (jpeg.width, jpeg.height),
            jpeg.bits,
            jpeg.orientation,
            components=jpeg.components,
            scan_offset=jpeg.scan_offset,
        )
    if kind in ("png", "webp"):
        head = read_png(data) if kind == "png" else read_webp(data)
        return Header(
            kind,
            (head.width, head.height),
            head.bits,
            head.orientation,
            transparent_gray=head.transparent_gray,
        )
    if kind == "tiff":
        page = read_tiff(data)
        return Header(
            kind,
            (page.width, page.height),
            page.bits,
            page.orientation,
            tiff=page,
            patches=page.patches,
        )
    if kind == "bmp":
        bmp = read_bmp(data)
        return Header(kind, (bmp.width, bmp.height), max(bmp.channel_bits), bmp=bmp)
    gif = read_gif(data)
    return Header(kind, (gif.width, gif.height), 8, frame=gif.frame, patches=gif.patches)
