"""The local web viewer: shows the samples of a store in the browser."""

from ocrstore.errors import needs

with needs("view"):
    import starlette  # noqa: F401  # all modules here are of use with both only
    import uvicorn  # noqa: F401
