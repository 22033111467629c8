"""Encoded bytes become upright RGB uint8; which library does it is hidden behind `decode`."""

from ocrstore.decode.files import format_by_name, read_picture
from ocrstore.decode.header import Header, read_header
from ocrstore.decode.jpeg import available_backends
from ocrstore.decode.picture import DEFAULT_MAX_PIXELS, Decoded, decode

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "Decoded",
    "Header",
    "available_backends",
    "decode",
    "format_by_name",
    "read_header",
    "read_picture",
]
