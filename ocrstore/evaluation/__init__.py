"""Boxes from probability maps, and how good they are; numpy and cv2 only, no torch."""

from ocrstore.errors import needs

with needs("build"):
    import cv2  # noqa: F401  # all modules here need both
    import pyclipper  # noqa: F401
