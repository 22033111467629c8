"""Decode pictures of any supported format to upright RGB uint8."""

from ocrstore.errors import needs

with needs("build"):
    from ocrstore.decode.decode import (
        DECODER_FAMILIES,
        DEFAULT_MAX_PIXELS,
        SUFFIXES,
        Decoded,
        decode,
        format_by_name,
        open_picture,
        read_picture,
        sniff,
    )
    from ocrstore.decode.jpeg import available_backends
    from ocrstore.decode.pillow import EncodedPicture, TooManyPixelsError

__all__ = [
    "DECODER_FAMILIES",
    "DEFAULT_MAX_PIXELS",
    "SUFFIXES",
    "Decoded",
    "EncodedPicture",
    "TooManyPixelsError",
    "available_backends",
    "decode",
    "format_by_name",
    "open_picture",
    "read_picture",
    "sniff",
]
