"""Which versions of other packages ocrstore works with, for the message of an import that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

# by the name that is imported; the bounds are those of pyproject.toml
FITTING = {
    "numpy": "numpy>=1.26",
    "pyarrow": "pyarrow>=21; with numpy 1.26 pyarrow>=21,<26",
    "lmdb": "lmdb>=2.1.1",
    "xxhash": "xxhash>=3.4.1",
    "cv2": "opencv-python-headless>=4.8.0.76; with numpy 2 opencv-python-headless>=4.10",
    "PIL": "pillow>=11.3",
    "pyclipper": "pyclipper>=1.3.0.post5",
    "simplejpeg": "simplejpeg>=1.7.4",
    "torch": "torch>=2.13",
    "torchmetrics": "torchmetrics>=1.4",
    "lightning": "lightning>=2.5.3",
    "pytorch_lightning": "pytorch-lightning>=2.5.3",
    "duckdb": "duckdb>=1.4",
}


@contextmanager
def explain_imports() -> Iterator[None]:
    """Add the versions that fit to the message of an ImportError; wrap only imports in it."""
    try:
        yield
    except ImportError as exc:
        fitting = _fitting(exc)
        if fitting is None:
            raise
        missing = isinstance(exc, ModuleNotFoundError)
        found = "" if missing else f" (found: {_installed(fitting)})"
        raise type(exc)(
            f"{exc}{found}; ocrstore works with {fitting}", name=exc.name, path=exc.path
        ) from exc


def _fitting(exc: ImportError) -> str | None:
    """Return the entry of the package that is missing, or whose own import failed."""
    missing = isinstance(exc, ModuleNotFoundError)
    names = [exc.name or ""] if missing else [*_modules(exc.__traceback__), exc.name or ""]
    known = (FITTING.get(name.partition(".")[0]) for name in names)
    return next((fitting for fitting in known if fitting is not None), None)


def _modules(trace: TracebackType | None) -> Iterator[str]:
    """Yield the names of the modules that an error passed, outermost first."""
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next


def _installed(fitting: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    names = dict.fromkeys([fitting.partition(">=")[0], "numpy"])
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)
