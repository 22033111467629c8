"""JPEG: the same pixels from every backend, and no picture that is only half there."""

import io
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from ocrstore.decode import available_backends, decode
from ocrstore.errors import DecodeError

ALL_BACKENDS = ("turbojpeg", "simplejpeg")


@pytest.fixture(params=ALL_BACKENDS)
def backend(request):
    """Each backend in turn; one that is not installed is skipped by name."""
    if request.param not in available_backends():
        pytest.skip(f"{request.param} is not present")
    return request.param


def scene(width=251, height=187, *, seed=0):
    """Smooth colours with sharp text on them: chroma upsampling and DCT show in it."""
    ys, xs = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).integers(0, 24, (height, width, 3))
    ramp = np.stack([xs * 230 / width, ys * 230 / height, (xs + ys) % 230], axis=-1)
    pixels = np.ascontiguousarray((ramp + noise).astype(np.uint8))
    cv2.putText(pixels, "Total 12.50", (8, height // 2), 0, 1.0, (250, 30, 30), 2)
    return Image.fromarray(pixels)


def encode(image, **options):
    """JPEG bytes by Pillow."""
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


KINDS = {
    "4:4:4": lambda: encode(scene(), subsampling=0),
    "4:2:2": lambda: encode(scene(), subsampling=1),
    "4:2:0": lambda: encode(scene(), subsampling=2),
    "progressive": lambda: encode(scene(), progressive=True),
    "low quality": lambda: encode(scene(), quality=15),
    "restart markers": lambda: encode(scene(), restart_marker_blocks=3),
    "gray": lambda: encode(scene().convert("L")),
    "RGB without transform": lambda: encode(scene(), keep_rgb=True),
    "one pixel": lambda: encode(scene(1, 1)),
    "narrow": lambda: encode(scene(3, 200)),
    "EXIF": lambda: encode(scene(), exif=exif(6)),
}


def exif(orientation):
    """An EXIF block that names an orientation."""
    block = Image.Exif()
    block[274] = orientation
    return block


@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_gives_the_pixels_of_libjpeg_turbo(backend, kind):
    """Identical to the last bit, whatever the subsampling and coding."""
    data = KINDS[kind]()
    with Image.open(io.BytesIO(data)) as reference:
        orientation = reference.getexif().get(274, 1)
        expected = np.asarray(reference.convert("RGB"))
    if orientation == 6:
        expected = np.rot90(expected, -1)
    got = decode(data, backend=backend)
    assert got.pixels.dtype == np.uint8
    assert got.pixels.flags.c_contiguous
    np.testing.assert_array_equal(got.pixels, expected)
    assert got.format == "jpeg"


def test_the_family_is_named_not_the_backend(backend):
    """Backends with identical pixels share a family, so a store outlives a change of backend."""
    assert decode(KINDS["4:2:0"](), backend=backend).decoder == "libjpeg-turbo"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_are_undone(backend, orientation):
    """All eight, as an independent implementation does it; the stored size is kept."""
    data = encode(scene(64, 40), exif=exif(orientation))
    with Image.open(io.BytesIO(data)) as reference:
        expected = np.asarray(ImageOps.exif_transpose(reference))
    got = decode(data, backend=backend)
    np.testing.assert_array_equal(got.pixels, expected)
    assert got.orientation == orientation
    assert got.stored_size == (64, 40)


def cmyk_scene():
    """Ink values that use all four channels."""
    return np.random.default_rng(5).integers(0, 256, (9, 12, 4), dtype=np.uint8)


def cmyk_jpeg():
    """Adobe CMYK, stored inverted, as Pillow and Photoshop write it."""
    ink = cmyk_scene().repeat(8, axis=0).repeat(8, axis=1)
    return encode(Image.frombytes("CMYK", ink.shape[1::-1], ink.tobytes()), quality=98)


def ycck_jpeg():
    """The same ink coded as YCCK."""
    stored = 255 - cmyk_scene().repeat(8, axis=0).repeat(8, axis=1)
    return simplejpeg.encode_jpeg(stored, quality=98, colorspace="CMYK", colorsubsampling="444")


@pytest.mark.parametrize("make", [cmyk_jpeg, ycck_jpeg])
def test_cmyk_comes_out_right(backend, make):
    """Inverted CMYK and YCCK become the colours of the ink, the same from every backend."""
    data = make()
    got = decode(data, backend=backend).pixels
    opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    np.testing.assert_array_equal(got, opencv)
    with Image.open(io.BytesIO(data)) as reference:
        expected = np.asarray(reference.convert("RGB")).astype(int)
    assert np.abs(got - expected).max() <= 2  # OpenCV's arithmetic rounds down, Pillow's to nearest
    ink = cmyk_scene().astype(int)
    true = (255 - ink[..., :3]) * (255 - ink[..., 3:]) / 255
    assert np.abs(got[4::8, 4::8] - true).max() < 12  # and both are close to the ink itself


def test_a_truncated_picture_is_an_error(backend):
    """Cut anywhere, even of its last two bytes: never a picture with a gray rest."""
    for data in (KINDS["4:2:0"](), KINDS["progressive"](), KINDS["restart markers"]()):
        for end in (3, 20, 300, len(data) // 2, len(data) * 9 // 10, len(data) - 2, len(data) - 1):
            with pytest.raises(DecodeError):
                decode(data[:end], backend=backend)


def test_bytes_after_the_end_do_not_matter(backend):
    """Padding and appended previews are not the picture."""
    data = KINDS["4:2:0"]()
    whole = decode(data, backend=backend).pixels
    for tail in (b"\0" * 64, b"\xff", KINDS["gray"]()):
        np.testing.assert_array_equal(decode(data + tail, backend=backend).pixels, whole)


def test_filling_before_the_end_is_forgiven(backend):
    """Phones leave bytes between the last scan and the end marker; every pixel is there."""
    data = KINDS["4:2:0"]()
    padded = data[:-2] + b"\0" * 40 + data[-2:]
    np.testing.assert_array_equal(
        decode(padded, backend=backend).pixels, decode(data, backend=backend).pixels
    )


def test_a_hole_in_the_scan_is_an_error(backend):
    """A scan that ends early with an end marker is found."""
    data = KINDS["4:2:0"]()
    with pytest.raises(DecodeError, match="damaged"):
        decode(data[: len(data) // 2] + b"\xff\xd9", backend=backend)


def test_twelve_bits_are_refused(backend):
    """A depth that only some builds decode is refused by all."""
    data = bytearray(KINDS["4:4:4"]())
    frame = data.index(b"\xff\xc0")
    data[frame + 4] = 12
    with pytest.raises(DecodeError, match="12-bit"):
        decode(bytes(data), backend=backend)


def test_an_absent_backend_is_an_error():
    """Asking by name for what is not there says what is."""
    with pytest.raises(DecodeError, match=r"here are .*simplejpeg"):
        decode(KINDS["gray"](), backend="quantum")


def test_the_preferred_backend_is_the_default():
    """TurboJPEG before simplejpeg, which brings its library along."""
    present = available_backends()
    assert present[-1] == "simplejpeg"
    assert list(present) == [name for name in ALL_BACKENDS if name in present]


@pytest.mark.pictures
@pytest.mark.skipif("OCRSTORE_PICTURES" not in os.environ, reason="OCRSTORE_PICTURES is not set")
def test_real_pictures_are_the_same_from_every_backend():
    """A sample of photographs and scans, bit by bit."""
    root = Path(os.environ["OCRSTORE_PICTURES"])
    paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    assert paths
    for path in paths[:: max(1, len(paths) // 12)]:
        data = path.read_bytes()
        first, *rest = (decode(data, backend=name).pixels for name in available_backends())
        for other in rest:
            np.testing.assert_array_equal(first, other)
