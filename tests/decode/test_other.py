"""PNG, WebP, BMP, TIFF, GIF, AVIF and HEIF: everything becomes upright RGB uint8."""

import io
import struct
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps, TiffImagePlugin

from ocrstore.decode import DECODER_FAMILIES, decode, open_picture, pillow
from ocrstore.errors import DecodeError

PICTURES = Path(__file__).parent / "pictures"

RNG = np.random.default_rng(11)
RGB = RNG.integers(0, 256, (23, 37, 3), dtype=np.uint8)
ALPHA = RNG.integers(0, 256, (23, 37), dtype=np.uint8)
ALPHA[:2] = (0,)
ALPHA[-2:] = 255


def encode(image, kind, **options):
    """Picture bytes by Pillow."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def over_white(rgb, alpha):
    """The compositing formula, in floating point."""
    share = alpha[..., None] / 255
    return np.floor(rgb * share + 255 * (1 - share) + 0.5).astype(np.uint8)


def reference(data):
    """The first frame as Pillow sees it, over white."""
    with Image.open(io.BytesIO(data)) as image:
        rgba = np.asarray(image.convert("RGBA"))
    return over_white(rgba[..., :3], rgba[..., 3])


def picture(mode):
    """The same scene in one of Pillow's modes."""
    image = Image.fromarray(RGB)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(ALPHA))
    return image.quantize(16) if mode == "P" else image.convert(mode)


def spin():
    """A second frame or page that must not be seen."""
    return Image.fromarray(RGB[::-1, ::-1].copy())


LOSSLESS = {"lossless": True, "exact": True}
CASES = {
    "png rgb": ("PNG", "RGB", {}),
    "png rgba": ("PNG", "RGBA", {}),
    "png gray": ("PNG", "L", {}),
    "png gray alpha": ("PNG", "LA", {}),
    "png palette": ("PNG", "P", {}),
    "png palette transparent": ("PNG", "P", {"transparency": 3}),
    "png palette alphas": ("PNG", "P", {"transparency": bytes(range(0, 256, 16))}),
    "png 1-bit": ("PNG", "1", {}),
    "png rgb transparent colour": ("PNG", "RGB", {"transparency": tuple(map(int, RGB[3, 4]))}),
    "png animated": ("PNG", "RGB", {"save_all": True, "append_images": [spin()]}),
    "webp": ("WEBP", "RGB", LOSSLESS),
    "webp alpha": ("WEBP", "RGBA", LOSSLESS),
    "webp animated": ("WEBP", "RGB", {**LOSSLESS, "save_all": True, "append_images": [spin()]}),
    "webp animated alpha": (
        "WEBP",
        "RGBA",
        {**LOSSLESS, "save_all": True, "append_images": [spin().convert("RGBA")]},
    ),
    "bmp": ("BMP", "RGB", {}),
    "bmp 32-bit": ("BMP", "RGBA", {}),
    "bmp gray": ("BMP", "L", {}),
    "bmp palette": ("BMP", "P", {}),
    "bmp 1-bit": ("BMP", "1", {}),
    "gif": ("GIF", "P", {}),
    "gif gray": ("GIF", "L", {}),
    "gif transparent": ("GIF", "P", {"transparency": 3}),
    "gif interlaced": ("GIF", "P", {"interlace": 1}),
    "gif animated": ("GIF", "P", {"save_all": True, "append_images": [spin()]}),
    "tiff": ("TIFF", "RGB", {}),
    "tiff alpha": ("TIFF", "RGBA", {}),
    "tiff gray": ("TIFF", "L", {}),
    "tiff gray alpha": ("TIFF", "LA", {}),
    "tiff gray alpha lzw": ("TIFF", "LA", {"compression": "tiff_lzw"}),
    "tiff gray alpha deflate": ("TIFF", "LA", {"compression": "tiff_adobe_deflate"}),
    "tiff palette": ("TIFF", "P", {}),
    "tiff 1-bit": ("TIFF", "1", {}),
    "tiff fax": ("TIFF", "1", {"compression": "group4"}),
    "tiff lzw": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "tiff deflate": ("TIFF", "RGBA", {"compression": "tiff_adobe_deflate"}),
    "tiff two pages": ("TIFF", "RGB", {"save_all": True, "append_images": [spin()]}),
}


@pytest.mark.parametrize("case", CASES)
def test_lossless_pictures_come_out_exactly(case):
    """Every mode of every format, bit by bit as Pillow has it, alpha over white."""
    kind, mode, options = CASES[case]
    data = encode(picture(mode), kind, **options)
    got = decode(data)
    assert got.pixels.dtype == np.uint8
    assert got.pixels.flags.c_contiguous
    assert (got.format, got.decoder) == (kind.lower(), DECODER_FAMILIES[kind.lower()])
    np.testing.assert_array_equal(got.pixels, reference(data))


def test_cmyk_tiff_is_close():
    """Ink becomes colour within one level of the rounded product."""
    got = decode(encode(Image.fromarray(RGB).convert("CMYK"), "TIFF")).pixels
    assert np.abs(got.astype(int) - RGB).max() <= 1


def test_lossy_webp_is_close():
    """Two builds of libwebp agree."""
    data = encode(picture("RGB"), "WEBP", quality=90)
    assert np.abs(decode(data).pixels.astype(int) - reference(data)).max() <= 2


def test_jpeg_tiffs_are_close():
    """YCbCr inside a TIFF comes out as OpenCV's libtiff has it, within rounding."""
    data = encode(picture("RGB"), "TIFF", compression="jpeg")
    bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert np.abs(decode(data).pixels.astype(int) - bgr[..., ::-1]).max() <= 3


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_are_undone(kind, orientation):
    """EXIF in a PNG, a WebP and a TIFF's own tag turn the picture exactly once."""
    exif = Image.Exif()
    exif[274] = orientation
    options = LOSSLESS if kind == "WEBP" else {}
    data = encode(picture("RGB"), kind, exif=exif, **options)
    image = Image.fromarray(RGB)
    image.getexif()[274] = orientation
    got = decode(data)
    np.testing.assert_array_equal(got.pixels, np.asarray(ImageOps.exif_transpose(image)))
    assert got.orientation == orientation
    assert got.stored_size == (37, 23)
    assert got.pixels.flags.c_contiguous


WIDE = RNG.integers(0, 65536, (5, 8, 4), dtype=np.uint16)
WIDE[0, :3] = [[0] * 4, [65535] * 4, [128, 129, 385, 386]]


def nearest(samples):
    """The documented rule for 16 bits, in floating point."""
    return np.floor(samples / 257 + 0.5).astype(np.uint8)


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bit_png(png, colour, channels):
    """16 bits become round(v / 257), then alpha goes over white."""
    samples = np.ascontiguousarray(WIDE[..., :channels])
    got = decode(png(8, 5, 16, colour, samples.astype(">u2").tobytes())).pixels
    small = nearest(samples)
    colours = np.broadcast_to(small[..., : 3 if channels > 2 else 1], (5, 8, 3))
    expected = over_white(colours, small[..., -1]) if channels in (2, 4) else colours
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("photometric", "depth", "extra"),
    [
        (1, np.uint8, 2),
        *((2, depth, extra) for depth in (np.uint8, np.uint16) for extra in (None, 0, 1, 2)),
    ],
)
def test_tiff_alpha_of_every_kind(tiff, photometric, extra, depth, order):
    """Straight, premultiplied, meaningless and unnamed fourth channels, in 8 and 16 bits."""
    channels = 4 if photometric == 2 else 2
    top = np.iinfo(depth).max
    samples = (WIDE[..., :channels].astype(np.uint32) % (top + 1)).astype(depth)
    if extra == 1:
        samples[..., :-1] = np.minimum(samples[..., :-1], samples[..., -1:])
    tags = [] if extra is None else [(338, [extra])]
    got = decode(tiff(samples, photometric, tags=tags, order=order)).pixels
    small = nearest(samples) if depth is np.uint16 else samples
    colours = np.broadcast_to(small[..., :-1], (5, 8, 3)).astype(int)
    alpha = small[..., -1].astype(int)
    if extra == 0:
        expected = colours
    elif extra == 1:
        expected = np.minimum(colours + 255 - alpha[..., None], 255)
    else:
        expected = over_white(colours, alpha)
    # Pillow divides premultiplied colours of 8 bits by alpha, and rounds
    assert np.abs(got - expected).max() <= (1 if extra == 1 and depth is np.uint8 else 0)


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
@pytest.mark.parametrize("photometric", [0, 1])
def test_tiff_where_white_is_zero(tiff, photometric, depth):
    """Fax machines' way round, also in 16 bits where OpenCV forgets it."""
    samples = (WIDE[..., :1].astype(np.uint32) % (np.iinfo(depth).max + 1)).astype(depth)
    small = (nearest(samples) if depth is np.uint16 else samples).repeat(3, axis=2)
    got = decode(tiff(samples, photometric)).pixels
    np.testing.assert_array_equal(got, 255 - small if photometric == 0 else small)


def test_gray_alpha_tiff_with_predictor(tiff):
    """Rows stored as differences of each channel are summed up again."""
    samples = (WIDE[..., :2] % 256).astype(np.uint8)
    rows = np.diff(samples, axis=1, prepend=np.zeros((5, 1, 2), np.uint8)).astype(np.uint8)
    strip = zlib.compress(rows.tobytes())
    coded = tiff(samples, 1, tags=[(338, [2]), (317, [2]), (259, [8])], strip=strip)
    plain = tiff(samples, 1, tags=[(338, [2])])
    np.testing.assert_array_equal(decode(coded).pixels, decode(plain).pixels)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_transparent_gray_of_a_png(png, bits):
    """The gray value a PNG declares transparent is white, at every depth."""
    values = np.arange(16, dtype=np.uint16).reshape(2, 8) % (1 << min(bits, 4))
    if bits == 16:
        rows = values.astype(">u2").tobytes()
    else:
        unpacked = np.unpackbits(values.astype(np.uint8)[..., None], axis=-1)[..., -bits:]
        rows = np.packbits(unpacked.reshape(2, -1), axis=1).tobytes()
    key = 1
    data = png(8, 2, bits, 0, rows, chunks=[(b"tRNS", struct.pack(">H", key))])
    top = (1 << bits) - 1
    expected = np.floor(values * 255 / top + 0.5).astype(np.uint8)
    expected[values == key] = 255
    np.testing.assert_array_equal(decode(data).pixels, expected[..., None].repeat(3, axis=2))


def test_a_gif_frame_smaller_than_the_screen_lies_on_white():
    """What the first frame leaves uncovered is transparent, so white."""
    data = bytearray(encode(picture("P"), "GIF"))
    data[6:10] = struct.pack("<HH", 50, 40)
    got = decode(bytes(data)).pixels
    assert got.shape == (40, 50, 3)
    np.testing.assert_array_equal(got[:23, :37], np.asarray(picture("P").convert("RGB")))
    assert (got[23:] == 255).all()
    assert (got[:, 37:] == 255).all()


def test_a_gif_with_a_background_outside_its_palette():
    """A background index that is not used does not matter."""
    data = bytearray(encode(picture("P"), "GIF"))
    data[11] = 255
    np.testing.assert_array_equal(decode(bytes(data)).pixels, reference(bytes(data)))


def test_a_bmp_that_runs_from_the_top():
    """A negative height means the first row comes first."""
    data = bytearray(encode(picture("RGB"), "BMP"))
    data[22:26] = struct.pack("<i", -23)
    np.testing.assert_array_equal(decode(bytes(data)).pixels, RGB[::-1])


def build_bmp(pixels, depth, *, header=40, masks=()):
    """A BMP of 4 x 2 pixels, with channel masks if there are any."""
    compression = 3 if masks else 0
    info = struct.pack("<IiiHHIIiiII", header, 4, 2, 1, depth, compression, len(pixels), 0, 0, 0, 0)
    info = (info + struct.pack(f"<{len(masks)}I", *masks)).ljust(header, b"\0")
    start = 14 + len(info)
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + info + pixels


BYTES = RNG.integers(0, 256, 32, dtype=np.uint8)
QUADS = BYTES.reshape(2, 4, 4)[::-1]
MASKS = (0xFF0000, 0x00FF00, 0x0000FF)


@pytest.mark.parametrize(
    ("header", "masks", "alpha"),
    [
        pytest.param(40, (), False, id="no masks"),
        pytest.param(40, MASKS, False, id="masks behind a short header"),
        pytest.param(108, (*MASKS, 0), False, id="no alpha mask"),
        pytest.param(108, (*MASKS, 0xFF000000), True, id="alpha mask"),
        pytest.param(124, (*MASKS, 0xFF000000), True, id="alpha mask, longest header"),
    ],
)
def test_bmp_alpha_counts_only_where_it_is_declared(header, masks, alpha):
    """The fourth byte is filling unless a mask says otherwise."""
    got = decode(build_bmp(BYTES.tobytes(), 32, header=header, masks=masks)).pixels
    rgb = QUADS[..., 2::-1]
    np.testing.assert_array_equal(got, over_white(rgb, QUADS[..., 3]) if alpha else rgb)


@pytest.mark.parametrize(
    ("masks", "bits"),
    [((), (5, 5, 5)), ((0x7C00, 0x3E0, 0x1F), (5, 5, 5)), ((0xF800, 0x7E0, 0x1F), (5, 6, 5))],
)
def test_bmp_of_sixteen_bits_per_pixel(masks, bits):
    """5 and 6 bits spread over 0 to 255, so white is white."""
    words = BYTES[:16].copy().view("<u2").reshape(2, 4)
    words[0, 0] = 0xFFFF
    got = decode(build_bmp(words.tobytes(), 16, masks=masks)).pixels
    _, green, blue = bits
    shifts = (green + blue, blue, 0)
    for channel, (shift, width) in enumerate(zip(shifts, bits, strict=True)):
        value = (words[::-1] >> shift) & ((1 << width) - 1)
        exact = value * 255 / ((1 << width) - 1)
        assert np.abs(got[..., channel] - exact).max() <= 1
    assert (got[1, 0] == 255).all()


def test_bmp_of_rare_layouts():
    """Masks in an unknown order are refused, and other codings."""
    with pytest.raises(DecodeError, match="bitfields layout"):
        decode(build_bmp(BYTES.tobytes(), 32, masks=(0xFF00, 0xFF, 0xFF0000)))
    data = bytearray(build_bmp(BYTES.tobytes(), 32))
    data[30] = 4
    with pytest.raises(DecodeError, match="compression"):
        decode(bytes(data))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_tiff_palettes_of_few_bits(tiff, bits):
    """Colours of the map, which 1-bit pictures have too."""
    count = 1 << bits
    colours = RNG.integers(0, 256, (3, count))
    packed = RNG.integers(0, 256, (6, 2 * bits), dtype=np.uint8)
    tags = [(258, [bits]), (320, [int(c) * 257 for c in colours.ravel()])]
    data = tiff(np.zeros((6, 16, 1), np.uint8), 3, tags=tags, strip=packed.tobytes())
    unpacked = np.unpackbits(packed, axis=1).reshape(6, 16, bits)
    index = unpacked @ (1 << np.arange(bits)[::-1])
    np.testing.assert_array_equal(decode(data).pixels, np.moveaxis(colours[:, index], 0, -1))


@pytest.mark.parametrize(
    ("samples", "photometric", "tags", "words"),
    [
        (WIDE[..., :3], 2, [(284, [2])], "one plane per channel"),
        (WIDE[..., :3], 8, [], "pixel mode"),
        (WIDE[..., :1].astype(np.uint32), 1, [], "many bits"),
        (WIDE[..., :1], 1, [(339, [2])], "signed"),
        (WIDE[..., :1].astype(np.uint8), 1, [(339, [2])], "signed"),
        (WIDE[..., :3], 1, [], "pixel mode"),
        (WIDE[..., :2], 2, [], "data organization|pixel mode"),
        (WIDE, 5, [], "4 channels of 16 bits"),
        (WIDE[..., :1], 3, [], "pixel mode"),
        (WIDE[..., :1], 1, [(258, [12])], "many bits"),
        (WIDE[..., :2], 3, [(258, [8, 8])], "pixel mode"),
        (WIDE[..., :2], 1, [(338, [2])], "pixel mode"),
        (WIDE[..., :2].astype(np.uint8), 1, [], "pixel mode"),
        (WIDE[..., :2].astype(np.uint8), 1, [(338, [0])], "not declared as alpha|pixel mode"),
        (WIDE[..., :2].astype(np.uint8), 1, [(338, [1])], "not declared as alpha|pixel mode"),
        (WIDE[..., :2].astype(np.uint8), 0, [(338, [2])], "pixel mode"),
        (WIDE[..., :3].astype(np.uint8), 6, [], "uncompressed YCbCr"),
        (WIDE[..., :3].astype(np.uint8), 8, [], "LAB"),
    ],
)
def test_tiffs_that_would_come_out_wrong_are_refused(tiff, samples, photometric, tags, words):
    """What would become a wrong picture is an error that names the remedy."""
    with pytest.raises(DecodeError, match=words):
        decode(tiff(np.ascontiguousarray(samples), photometric, tags=tags))


def test_avif_is_close():
    """Pillow's own AVIF, over white where it is transparent, turned by its orientation."""
    smooth = np.linspace(0, 255, 40 * 60 * 3).reshape(40, 60, 3).astype(np.uint8)
    exif = Image.Exif()
    exif[274] = 6
    got = decode(encode(Image.fromarray(smooth), "AVIF", quality=100, exif=exif))
    assert (got.format, got.decoder, got.orientation) == ("avif", "pillow", 6)
    assert got.stored_size == (60, 40)
    assert np.abs(got.pixels.astype(int) - np.rot90(smooth, -1)).max() <= 4
    clear = Image.fromarray(smooth)
    clear.putalpha(0)
    assert (decode(encode(clear, "AVIF")).pixels == 255).all()


def test_the_first_frame_of_an_avif_counts():
    """Of a sequence, the first picture."""
    black, white = (Image.new("RGB", (32, 16), colour) for colour in ("black", "white"))
    data = encode(black, "AVIF", save_all=True, append_images=[white])
    assert decode(data).pixels.max() < 9


def test_heif_is_close():
    """HEVC with alpha goes over white, as the PNG of the same picture does."""
    got = decode((PICTURES / "rgba.heif").read_bytes())
    assert (got.format, got.decoder, got.stored_size) == ("heif", "libheif", (29, 100))
    expected = decode((PICTURES / "rgba.png").read_bytes()).pixels.astype(int)
    assert np.abs(got.pixels - expected).mean() < 6


def test_gray_heif_of_ten_bits():
    """10 bits are scaled to 8, in three equal channels."""
    pixels = decode((PICTURES / "gray_10_bit.heif").read_bytes()).pixels
    assert (pixels == pixels[..., :1]).all()
    assert pixels.min() < 20 and pixels.max() > 235


def test_a_missing_heif_decoder_says_what_to_install(monkeypatch):
    """The remedy is the extra's name."""
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    pillow._plugin.cache_clear()
    with pytest.raises(DecodeError, match=r'pip install "ocrstore\[heif\]"'):
        decode((PICTURES / "rgba.heif").read_bytes())


def chunk(kind, body):
    """One chunk of a PNG."""
    checksum = struct.pack(">I", zlib.crc32(kind + body))
    return struct.pack(">I", len(body)) + kind + body + checksum


def test_png_chunks_that_do_not_matter_cost_no_picture(png):
    """Profiles and comments that unpack to megabytes are not unpacked."""
    packed = zlib.compress(bytes(70_000_000))
    extra = [(b"iCCP", b"x\0\0" + packed), (b"zTXt", b"x\0\0" + packed), (b"tEXt", b"broken")]
    rows = bytes(range(16))
    whole = decode(png(8, 2, 8, 0, rows, chunks=extra)).pixels
    np.testing.assert_array_equal(whole, decode(png(8, 2, 8, 0, rows)).pixels)


def test_png_exif_may_stand_behind_the_pixels(png):
    """As the specification allows."""
    exif = Image.Exif()
    exif[274] = 3
    data = png(8, 2, 8, 0, bytes(range(16)))
    end = chunk(b"IEND", b"")
    late = data.removesuffix(end) + chunk(b"eXIf", exif.tobytes()[6:]) + end
    assert open_picture(late).orientation == 3


def test_png_checksums_count(png):
    """A pixel changed behind the encoder's back is found, a broken EXIF block is passed over."""
    data = bytearray(png(8, 2, 8, 0, bytes(range(16)), chunks=[(b"eXIf", b"II*\0nothing")]))
    data[data.index(b"eXIf") + 5] ^= 1
    assert decode(bytes(data)).orientation == 1
    data[data.index(b"IDAT") + 6] ^= 1
    with pytest.raises(DecodeError, match="checksum"):
        decode(bytes(data))


def test_a_broken_second_page_costs_no_picture():
    """Only the first page of a TIFF is looked at."""
    data = encode(picture("RGB"), "TIFF", save_all=True, append_images=[spin()])
    with Image.open(io.BytesIO(data)) as image:
        image.seek(1)
        second = image.tag_v2.offset
    broken = data[:second] + b"\xff" * 40 + data[second + 40 :]
    np.testing.assert_array_equal(decode(broken).pixels, RGB)


def test_only_exif_turns_a_picture():
    """An orientation in XMP is not followed, in any format."""
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
    for kind in ("JPEG", "WEBP"):
        assert decode(encode(picture("RGB"), kind, xmp=xmp)).orientation == 1
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[700] = xmp
    got = decode(encode(picture("RGB"), "TIFF", tiffinfo=tags))
    np.testing.assert_array_equal(got.pixels, RGB)
