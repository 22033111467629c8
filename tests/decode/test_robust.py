"""Files that are not what they should be: always a DecodeError, never a wrong picture."""

import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from ocrstore.decode import TooManyPixelsError, available_backends, decode, open_picture
from ocrstore.errors import DecodeError

SCENE = np.random.default_rng(3).integers(0, 256, (19, 31, 3), dtype=np.uint8)


def encode(kind, **options):
    """The scene in one format, with an orientation where the format knows it."""
    out = io.BytesIO()
    image = Image.fromarray(SCENE)
    exif = Image.Exif()
    exif[274] = 6
    if kind not in ("BMP", "GIF"):
        options["exif"] = exif
    (image.quantize(8) if kind == "GIF" else image).save(out, kind, **options)
    return out.getvalue()


FILES = {
    kind.lower(): encode(kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF")
}
FILES["webp lossless"] = encode("WEBP", lossless=True)
FILES["jpeg progressive"] = encode("JPEG", progressive=True)
HEIF = (Path(__file__).parent / "pictures" / "gray_10_bit.heif").read_bytes()


@pytest.mark.parametrize("kind", FILES)
def test_headers_say_what_the_picture_is(kind):
    """Format, stored size, depth and orientation without decoding a pixel."""
    header = open_picture(FILES[kind])
    assert header.format == kind.split()[0]
    assert header.size == (31, 19)
    assert header.orientation == (1 if kind in ("bmp", "gif") else 6)


def test_plain_webps_have_a_size_too():
    """Files without the extended header, lossy and lossless."""
    for lossless in (True, False):
        out = io.BytesIO()
        Image.fromarray(SCENE).save(out, "WEBP", lossless=lossless)
        assert out.getvalue()[12:16] == (b"VP8L" if lossless else b"VP8 ")
        assert open_picture(out.getvalue()).size == (31, 19)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "empty", id="zero bytes"),
        pytest.param(b"Dear reader, this is a letter.", "not a picture", id="text"),
        pytest.param(b"%PDF-1.7\n", "not a picture", id="pdf"),
        pytest.param(b"PK\x03\x04" + b"\0" * 99, "not a picture", id="archive"),
        pytest.param(b"\0" * 4096, "not a picture", id="zeros"),
        pytest.param(b"\xff\xd8\xff", "truncated", id="start of a jpeg"),
        pytest.param(b"\xff\xd8\xff\xd9", "damaged", id="jpeg of nothing"),
        pytest.param(b"\x89PNG\r\n\x1a\n", "truncated", id="start of a png"),
        pytest.param(b"BM", "truncated", id="start of a bmp"),
        pytest.param(b"GIF89a", "truncated", id="start of a gif"),
        pytest.param(b"II*\0", "truncated", id="start of a tiff"),
        pytest.param(b"RIFF\x04\0\0\0WEBP", "truncated", id="webp of nothing"),
    ],
)
def test_what_is_no_picture_is_refused(data, words):
    """Each with its own words, and with the file's name."""
    with pytest.raises(DecodeError, match=rf"^a/b\.jpg: .*{words}"):
        decode(data, name="a/b.jpg")


@pytest.mark.parametrize("kind", [*FILES, "heif"])
def test_truncated_files_are_errors(kind, monkeypatch):
    """Cut at every byte before its pixels end, whatever the program allows Pillow elsewhere."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = HEIF if kind == "heif" else FILES[kind]
    # a TIFF may end with bytes nobody needs
    for end in range(len(data) - (16 if kind == "tiff" else 0)):
        with pytest.raises(DecodeError):
            decode(data[:end])


@pytest.mark.parametrize("kind", FILES)
def test_a_wrong_name_does_not_matter(kind):
    """Content decides, and what was found can be reported."""
    assert decode(FILES[kind], name="scan.jpg").format == kind.split()[0]


@pytest.mark.parametrize("kind", FILES)
def test_the_limit_holds_before_any_decoder_runs(kind, monkeypatch):
    """A picture over max_pixels is refused by its header; no decoder is called."""

    def forbidden(*args, **kwargs):
        raise AssertionError("a decoder ran")

    module = import_module("ocrstore.decode.decode")
    monkeypatch.setattr(module, "decode_jpeg", forbidden)
    monkeypatch.setattr(module, "decode_other", forbidden)
    with pytest.raises(TooManyPixelsError, match=r"31 x 19 is 589 .* limit of 588"):
        decode(FILES[kind], max_pixels=588)


def test_a_bomb_is_refused_by_its_header(png):
    """A few hundred bytes that would become 10 GB."""
    data = bytearray(png(8, 2, 8, 0, b"\0" * 16))
    data[16:24] = struct.pack(">II", 60000, 60000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with pytest.raises(TooManyPixelsError, match="60000 x 60000"):
        decode(bytes(data))


def test_canvases_are_refused_by_their_headers():
    """Pillow makes room for a WebP's canvas and a GIF's frame when it opens them: not before us."""
    webp = bytearray(FILES["webp"])
    assert webp[12:16] == b"VP8X"
    webp[24:30] = b"\xff" * 6
    with pytest.raises(TooManyPixelsError, match="16777216 x 16777216"):
        open_picture(bytes(webp))
    out = io.BytesIO()
    frames = [Image.fromarray(SCENE).quantize(8), Image.new("P", (31, 19))]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], disposal=2)
    gif = bytearray(out.getvalue())
    screen = gif[:6] + b"\xff" * 4 + gif[10:]
    with pytest.raises(TooManyPixelsError, match="65535 x 65535"):
        open_picture(bytes(screen))
    frame = gif.index(b"," + struct.pack("<HHHH", 0, 0, 31, 19))
    gif[frame + 5 : frame + 9] = b"\xff" * 4
    with pytest.raises(TooManyPixelsError, match="4294836225 pixels"):
        open_picture(bytes(gif))


def test_the_limit_is_ours_and_not_pillows(monkeypatch):
    """Pillow's own limit neither refuses nor warns, and is as it was afterwards."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for data in (*FILES.values(), HEIF):
        assert decode(data).pixels.size > 20
    assert Image.MAX_IMAGE_PIXELS == 10


def test_threads_do_not_disturb_each_other():
    """Many pictures at once come out the same, and the filters of warnings stay as they were."""
    before = list(warnings.filters)
    jobs = [*FILES.values(), HEIF] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda data: decode(data).pixels, jobs))
    for data, pixels in zip(jobs, found, strict=True):
        np.testing.assert_array_equal(pixels, decode(data).pixels)
    assert warnings.filters == before


def test_a_broken_exif_block_costs_no_picture():
    """Orientation counts as 1 where the block cannot be read."""
    data = FILES["jpeg"]
    at = data.index(b"Exif\0\0") + 6
    for broken in (b"XX", b"II\0\0", b"II*\0\xff\xff\xff\xff"):
        changed = data[:at] + broken + data[at + len(broken) :]
        assert decode(changed).orientation == 1


def test_a_broken_tag_costs_no_orientation():
    """A camera's name that lies outside the block comes before the orientation."""
    exif = Image.Exif()
    exif[271] = "a name that is too long for its entry"
    exif[274] = 6
    out = io.BytesIO()
    Image.fromarray(SCENE).save(out, "JPEG", exif=exif)
    data = bytearray(out.getvalue())
    entry = data.index(b"\x01\x0f\x00\x02")
    data[entry + 8 : entry + 12] = b"\x7f" * 4
    assert open_picture(bytes(data)).orientation == 6


@pytest.mark.parametrize("value", [0, 9, 255, 65535])
def test_orientations_that_do_not_exist_count_as_one(value):
    """As every viewer does it."""
    exif = Image.Exif()
    exif[274] = value
    out = io.BytesIO()
    Image.fromarray(SCENE).save(out, "JPEG", exif=exif)
    assert open_picture(out.getvalue()).orientation == 1


def only_decode_errors(call, *args, **kwargs):
    """Run, and let nothing but DecodeError be the reason to fail."""
    try:
        call(*args, **kwargs)
    except DecodeError:
        return


@given(st.binary(max_size=300), st.sampled_from(sorted(FILES)))
def test_arbitrary_bytes_after_a_signature(tail, kind):
    """Reading a header raises DecodeError or succeeds, whatever follows the signature."""
    only_decode_errors(open_picture, tail)
    only_decode_errors(
        open_picture, FILES[kind][: 12 if kind[:4] in ("webp", "avif") else 8] + tail
    )


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(
    kind=st.sampled_from(sorted(FILES)),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    end=st.integers(0, 4000),
)
def test_damaged_files_decode_or_are_refused(kind, changes, end):
    """Flipped and missing bytes anywhere: a whole picture of the promised size, or DecodeError."""
    data = bytearray(FILES[kind])
    for at, value in changes:
        data[at % len(data)] = value
    damaged = bytes(data[: max(1, end)])
    for backend in available_backends() if kind.startswith("jpeg") else (None,):
        try:
            got = decode(damaged, backend=backend, max_pixels=1_000_000)
        except DecodeError:
            continue
        width, height = got.stored_size
        assert got.pixels.shape in ((height, width, 3), (width, height, 3))
        assert got.pixels.flags.c_contiguous
