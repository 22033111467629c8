"""The version of the package; the version of the format is `ocrstore.format.layout`'s."""

__version__ = "0.1.0"
