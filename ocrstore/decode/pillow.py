"""Read headers and EXIF with Pillow, and decode every picture that is no JPEG.

Samples of 16 bits are the exception: Pillow cuts them to 8, so OpenCV decodes those.
"""

from __future__ import annotations

import functools
import io
import os
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, TiffImagePlugin

from ocrstore.errors import DecodeError
from ocrstore.geometry import turn_upright

Pixels = npt.NDArray[np.uint8]

_ORIENTATION = 274
_INTEGERS = {1: "B", 3: "H", 4: "I"}  # types of tags, as `struct` calls them
_BITS, _PHOTOMETRIC, _SAMPLES, _PLANAR = 258, 262, 277, 284
_EXTRA_SAMPLES, _SAMPLE_FORMAT = 338, 339
_STRIPS, _TILES = (273, 279), (324, 325)  # tags of offsets and of numbers of bytes
_UNSPECIFIED, _PREMULTIPLIED, _STRAIGHT = 0, 1, 2  # extra samples
_YCBCR = 6

_PLUGINS = {
    "jpeg": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "png": ("PIL.PngImagePlugin", "PngImageFile"),
    "webp": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "bmp": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "tiff": ("ocrstore.decode.pillow", "_FirstPage"),
    "gif": ("PIL.GifImagePlugin", "GifImageFile"),
    "avif": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "heif": ("pi_heif", "HeifImageFile"),
}
# Chunks of a PNG that its pixels depend on, and EXIF. Pillow refuses pictures for others, such as
# colour profiles and comments that are large when unpacked.
_PNG_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf"})

_STRIP_PIXELS = 1 << 18
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK"})
_ALPHA_MODES = frozenset({"LA", "PA", "RGBA"})


class TooManyPixelsError(DecodeError):
    """A picture's header promises more pixels than the limit."""


@dataclass(frozen=True, slots=True)
class EncodedPicture:
    """A picture with its header read, but not its pixels; it can be decoded once."""

    format: str
    """`jpeg`, `png`, `webp`, `bmp`, `tiff`, `gif`, `avif` or `heif`, by content."""
    size: tuple[int, int]
    """(width, height) as stored, before any rotation."""
    orientation: int
    """EXIF orientation, 1 to 8; 1 where the file says nothing valid."""
    data: bytes
    image: Any
    """Pillow's image, not yet loaded; what else it has depends on the format."""
    max_pixels: int
    """The limit that the size was compared with."""


class _FirstPage(TiffImagePlugin.TiffImageFile):
    """A TIFF of which only the first page is read, and which Pillow does not turn upright."""

    def load_end(self) -> None:
        self._size = self.im.size


def read_header(data: bytes, kind: str, max_pixels: int) -> EncodedPicture:
    """Read size and orientation, and hold the size against the limit."""
    with _pillow(kind, max_pixels):
        if kind == "png":
            data = _needed_chunks(data)
        elif kind == "webp":
            _check_webp(data, max_pixels)
        elif kind == "gif":  # Pillow may make room for a frame when it opens the file
            _check_size(struct.unpack_from("<HH", data, 6), max_pixels)
        image = _plugin(kind)(io.BytesIO(data))
        # a TIFF's size is that of the upright picture; it says itself how it is stored
        size = (image.tag_v2[256], image.tag_v2[257]) if kind == "tiff" else image.size
        _check_size(size, max_pixels)
        return EncodedPicture(kind, size, _orientation(image), data, image, max_pixels)


def decode_other(picture: EncodedPicture) -> Pixels:
    """Return the stored (not yet upright) pixels of the first frame or page as RGB."""
    image, kind = picture.image, picture.format
    with _pillow(kind, picture.max_pixels):
        if kind == "png" and ";16" in str(image.tile[0].args):
            return _decode_16_bit_png(picture)
        if kind == "tiff":
            _check_tiff(image, picture.data)
            if 16 in image.tag_v2.get(_BITS, ()):
                return _decode_16_bit_tiff(picture)
        if kind == "heif" and image.mode == "I;16":  # gray of 10 or 12 bits, scaled to 16
            return _from_gray(np.array(image))
        if image.mode not in _MODES:
            raise DecodeError(
                f"{kind.upper()} samples of mode {image.mode}: signed, float, of many bits or in a "
                "rare colour space; save it as RGB or gray with 8 or 16 bits"
            )
        frame = _gif_frame(picture) if kind == "gif" else None
        if kind == "bmp":
            _check_bmp(image, picture.data)
        key = image.info.get("transparency")
        raw_mode = image.tile[0].args if image.tile else None
        if key is not None and raw_mode in ("L;2", "L;4"):  # Pillow scales samples, not the key
            image.info["transparency"] = key * (85 if raw_mode == "L;2" else 17)
        image.load()
        if image.mode in _ALPHA_MODES or key is not None:
            samples = np.array(image.convert("RGBA"))
            return _over_white(np.ascontiguousarray(samples[..., :3]), samples[..., 3])
        pixels = _rgb(image)
        if frame is not None:  # what a GIF's first frame leaves bare is white
            left, top, right, bottom = frame
            pixels[:top] = pixels[bottom:] = pixels[:, :left] = pixels[:, right:] = 255
        return pixels


def _rgb(image: Any) -> Pixels:
    """Return a loaded image as RGB; in strips, because the whole would be copied three times."""
    width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // max(1, width))
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        pixels[top : top + rows] = strip.convert("RGB")
    return pixels


@functools.cache
def _plugin(kind: str) -> Any:
    """Return the class that opens files of a format.

    Not `Image.open`: it also takes the stereo pictures and previews behind a JPEG for frames.
    """
    module, name = _PLUGINS[kind]
    try:
        return getattr(import_module(module), name)
    except ImportError as exc:
        raise DecodeError(
            f"this picture is {kind.upper()} and {module} is not installed; "
            'pip install "ocrstore[heif]"'
        ) from exc


_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child must not inherit it locked by a thread it lacks
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


@contextmanager
def warnings_as(action: Literal["error", "ignore"]) -> Iterator[None]:
    """Treat all warnings one way. The filters are global: one thread at a time."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter(action)
        yield


@contextmanager
def _pillow(kind: str, max_pixels: int) -> Iterator[None]:
    """Use Pillow without its warnings, with our settings in place of global ones, and our errors.

    Pillow warns above its limit of pixels, and refuses at twice that. Damaged files make it raise
    nearly anything.
    """
    try:
        with warnings_as("ignore"):
            before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
            Image.MAX_IMAGE_PIXELS = (max_pixels + 1) // 2
            ImageFile.LOAD_TRUNCATED_IMAGES = False
            try:
                yield
            finally:
                Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before
    except DecodeError:
        raise
    except Image.DecompressionBombError as exc:
        raise TooManyPixelsError(f"{exc} Raise --max-pixels if it can be trusted.") from exc
    except Exception as exc:
        raise DecodeError(
            f"truncated, damaged or of a rare kind, this {kind.upper()} cannot be decoded: "
            f"{str(exc) or type(exc).__name__}; restore it from its origin, or save it as PNG"
        ) from exc


def _check_size(size: tuple[Any, ...], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise TooManyPixelsError(
            f"{width} x {height} is {width * height} pixels, more than the limit of {max_pixels}; "
            "raise --max-pixels (max_pixels) if the picture can be trusted"
        )


def _orientation(image: Any) -> int:
    """Return the EXIF orientation; only EXIF counts, not XMP or what is hidden in a PNG's text."""
    if image.format == "TIFF":
        tag = image.tag_v2.get(_ORIENTATION)
        return int(tag) if tag in range(1, 9) else 1
    if image.format != "JPEG":
        return _exif_orientation(image.info.get("exif") or b"")
    blocks = (body for name, body in image.applist if name == "APP1" and body[:6] == b"Exif\0\0")
    return next((found for found in map(_exif_orientation, blocks) if found != 1), 1)


def _exif_orientation(block: bytes) -> int:
    """Return the orientation in an EXIF block; a broken block says nothing, so 1.

    Not by Pillow: it gives up at the first broken tag, and cameras write such before this one.
    """
    block = block.removeprefix(b"Exif\0\0")
    if not block.startswith((b"II*\0", b"MM\0*")):
        return 1
    order = "<" if block[:1] == b"I" else ">"
    try:
        (start,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, start)
        places = range(start + 2, start + 2 + 12 * count, 12)
        entries = [struct.unpack_from(order + "HHI4s", block, place) for place in places]
    except struct.error:
        return 1
    for tag, kind, number, value in entries:
        if tag == _ORIENTATION and kind in _INTEGERS and number in (1, 2):
            (orientation,) = struct.unpack_from(order + _INTEGERS[kind], value)
            return int(orientation) if 1 <= orientation <= 8 else 1
    return 1


def _needed_chunks(data: bytes) -> bytes:
    """Return a PNG without the chunks that its pixels do not depend on; raise if it is damaged.

    Pillow checks neither the checksums of pixel data nor whether the file reaches its end.
    """
    whole = memoryview(data)
    parts = [whole[:8]]
    position, kind, moved = 8, b"", False
    while kind != b"IEND":
        nbytes, kind = struct.unpack_from(">I4s", data, position)
        start, position = position, position + 12 + nbytes
        if position > len(data):
            raise _truncated("PNG", position, data)
        if kind not in _PNG_CHUNKS:
            continue
        checksum = zlib.crc32(whole[start + 4 : position - 4])
        if checksum.to_bytes(4, "big") != data[position - 4 : position]:
            if kind.isupper():  # what pixels depend on; a broken EXIF block costs no picture
                raise DecodeError(f"damaged: the checksum of PNG chunk {kind!r} is wrong")
        elif kind == b"eXIf":
            parts.insert(2, whole[start:position])  # it may stand behind the pixels
            moved = True
        else:
            parts.append(whole[start:position])
    if sum(map(len, parts)) == len(data) and not moved:
        return data
    return b"".join(parts)


def _check_webp(data: bytes, max_pixels: int) -> None:
    """Check length and size before Pillow does: it makes room for the canvas when it opens it."""
    (nbytes,) = struct.unpack_from("<I", data, 4)
    if nbytes + 8 > len(data):
        raise _truncated("WebP", nbytes + 8, data)
    if data[12:16] == b"VP8X":
        sides = data[24:27], data[27:30]
        size = tuple(1 + int.from_bytes(side, "little") for side in sides)
    elif data[12:16] == b"VP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        size = (1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF))
    else:
        size = tuple(side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    _check_size(size, max_pixels)


def _check_bmp(image: Any, data: bytes) -> None:
    codec, _, offset, args = image.tile[0]
    end = offset + args[1] * image.height if codec == "raw" else 0
    if end > len(data):
        raise _truncated("BMP", end, data)


def _gif_frame(picture: EncodedPicture) -> Any:
    """Return (left, top, right, bottom) of the first frame, after checking that it is all there."""
    data, (_, frame, position, _) = picture.data, picture.image.tile[0]
    screen = struct.unpack_from("<HH", data, 6)
    if picture.size != screen:  # Pillow enlarges the screen
        raise DecodeError(f"the GIF's first frame {frame} leaves its screen {screen}; save as PNG")
    while data[position]:  # blocks of up to 255 bytes, then an empty one, then something else
        position += 1 + data[position]
    if position + 1 >= len(data):
        raise _truncated("GIF", position + 2, data)
    return frame


def _check_tiff(image: Any, data: bytes) -> None:
    """Raise unless every strip or tile of the page lies in the file, and samples are unsigned."""
    tags = image.tag_v2
    if set(tags.get(_SAMPLE_FORMAT, (1,))) != {1}:
        raise DecodeError("signed or float TIFF samples; save it with 8 or 16 bits unsigned")
    # versions of Pillow disagree about these
    if tags.get(_PHOTOMETRIC) == _YCBCR and image.info["compression"] == "raw":
        raise DecodeError("an uncompressed YCbCr TIFF; save it as RGB")
    if tags.get(_SAMPLES) == 2 and tags.get(_EXTRA_SAMPLES) != (_STRAIGHT,):
        raise DecodeError("a TIFF of 2 channels, the second not declared as alpha; save it as PNG")
    for offsets, nbytes in (_STRIPS, _TILES):
        end = max(map(sum, zip(tags.get(offsets, ()), tags.get(nbytes, ()))), default=0)
        if end > len(data):
            raise _truncated("TIFF", end, data)


def _truncated(kind: str, end: int, data: bytes) -> DecodeError:
    return DecodeError(
        f"truncated: the {kind} reaches to byte {end}, the file has {len(data)}; "
        "restore it from its origin"
    )


def _decode_16_bit_png(picture: EncodedPicture) -> Pixels:
    samples = _imdecode(picture.data, "PNG")
    if samples.ndim == 3:
        return _from_bgr(samples)
    pixels = _from_gray(samples)
    key = picture.image.info.get("transparency")  # which OpenCV ignores in a gray PNG
    if key is not None:
        pixels[samples == key] = 255
    return pixels


def _decode_16_bit_tiff(picture: EncodedPicture) -> Pixels:
    tags = picture.image.tag_v2
    photometric, channels = tags.get(_PHOTOMETRIC), tags.get(_SAMPLES, 1)
    if (photometric, channels) not in ((0, 1), (1, 1), (2, 3), (2, 4)) or tags.get(_PLANAR, 1) != 1:
        raise DecodeError(
            f"a TIFF of colour space {photometric} with {channels} channels of 16 bits, "
            "or with one plane per channel; save it as PNG"
        )
    samples = _imdecode(picture.data, "TIFF")
    if channels == 1:
        pixels = _from_gray(samples)
        pixels = 255 - pixels if photometric == 0 else pixels  # 0 is white, which OpenCV ignores
    else:
        pixels = _from_bgr(samples, alpha=tags.get(_EXTRA_SAMPLES, (None,))[0])
    # OpenCV turns TIFFs upright whatever the flags: turn it back
    return turn_upright(pixels, {6: 8, 8: 6}.get(picture.orientation, picture.orientation))


def _from_gray(samples: npt.NDArray[np.uint16]) -> Pixels:
    return np.asarray(cv2.cvtColor(_eight_bits(samples), cv2.COLOR_GRAY2RGB), np.uint8)


def _from_bgr(samples: npt.NDArray[np.uint16], *, alpha: int | None = None) -> Pixels:
    """Make RGB of BGR or BGRA samples; `alpha` is TIFF's word for what the fourth channel means."""
    small = _eight_bits(samples)
    if small.shape[2] == 3:
        return np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2RGB), np.uint8)
    rgb = np.asarray(cv2.cvtColor(small, cv2.COLOR_BGRA2RGB), np.uint8)
    if alpha == _UNSPECIFIED:
        return rgb
    return _over_white(rgb, small[..., 3], premultiplied=alpha == _PREMULTIPLIED)


@functools.cache
def _eight_bit_table() -> Pixels:
    return ((np.arange(65536, dtype=np.uint32) + 128) // 257).astype(np.uint8)


def _eight_bits(samples: npt.NDArray[np.uint16]) -> Pixels:
    """Scale 16 bits to 8: round(v / 257), so that 0 and 65535 become 0 and 255."""
    return _eight_bit_table()[samples]


def _over_white(rgb: Pixels, alpha: Pixels, *, premultiplied: bool = False) -> Pixels:
    """Composite over white, rounded to the nearest level."""
    if int(alpha.min()) == 255:
        return rgb
    white = (255 - alpha)[..., None].astype(np.uint16)
    total = rgb.astype(np.uint16)
    if premultiplied:
        total += white
        np.minimum(total, 255, out=total)
    else:
        total *= alpha[..., None]
        total += white * 255 + 127
        total //= 255
    return total.astype(np.uint8)


def _imdecode(data: bytes, kind: str) -> npt.NDArray[np.uint16]:
    """Decode samples of 16 bits with OpenCV, which is kept from printing what is raised here."""
    logging: Any = getattr(cv2.utils, "logging", cv2)  # it has moved between versions
    level = logging.getLogLevel()
    logging.setLogLevel(0)
    try:
        samples = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    finally:
        logging.setLogLevel(level)
    if samples is None or samples.dtype != np.uint16:
        raise DecodeError(
            f"OpenCV cannot decode this {kind} of 16 bits: it is truncated, damaged or of a rare "
            "kind; restore it from its origin, or save it as PNG"
        )
    return np.asarray(samples, np.uint16)
