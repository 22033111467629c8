"""Typed access to parsed JSON: the value if it has the expected type, else the flaw to report."""

from __future__ import annotations

from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.validate import brief


def member(container: Any, key: str, kind: type | tuple[type, ...], *, where: str) -> Any:
    """Return `container[key]` if it is of this type, else a Flaw in place of a region."""
    if not isinstance(container, dict):
        return Flaw("bad-structure", f"{where}: expected an object, found {brief(container)}")
    if key not in container:
        return Flaw("missing-key", f"{where}: no {key!r}")
    value = container[key]
    if not isinstance(value, kind):
        wanted = " or ".join(_WORDS[k] for k in (kind if isinstance(kind, tuple) else (kind,)))
        return Flaw("bad-structure", f"{where}: {key!r} expected {wanted}, found {brief(value)}")
    return value


_WORDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}


def need(container: Any, key: str, kind: type | tuple[type, ...], *, where: str) -> Any:
    """Return `container[key]` if it is of this type, else raise UnusableAnnotationError."""
    value = member(container, key, kind, where=where)
    if isinstance(value, Flaw):
        raise UnusableAnnotationError(value.kind, value.message)
    return value


def whole_document(file: AnnotationFile) -> tuple[dict[str, Any], list[Flaw]]:
    """Return a file's JSON object and its flaws; raise UnusableAnnotationError otherwise."""
    value, flaws = file.json()
    if not isinstance(value, dict):
        message = f"{file.shown}: expected a JSON object, found {brief(value)}"
        raise UnusableAnnotationError("bad-structure", message)
    return value, flaws


def for_file(flaw: Flaw) -> Flaw:
    """Turn a region's flaw into one about the file as a whole."""
    return Flaw(flaw.kind, flaw.message, region=False)
