"""Check the manifest's metadata against a schema, read what a build recorded there, compare JSON.

Metadata may be anybody's and of any content; it is checked when it is used, not when a store is
opened, so that arrays can be read whatever it says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ocrstore.errors import SchemaError
from ocrstore.keys import shown

if TYPE_CHECKING:
    from ocrstore.store import Store

Check = Callable[[Any, str], None]
"""Called with a JSON value and its place; raises SchemaError if the value is not as expected."""
MAX_NUMBER = 2.0**63


def wrong(where: str, expected: str, found: Any) -> SchemaError:
    """Return the error for a field of the metadata that is not as expected."""
    return SchemaError(
        f"{shown(where)}: expected {expected}, found {found!r:.60}. The store was written by "
        "another program, or changed; build it again."
    )


def text(value: Any, where: str) -> None:
    """Expect a string."""
    if not isinstance(value, str):
        raise wrong(where, "a string", value)


def number(low: float = -MAX_NUMBER, high: float = MAX_NUMBER, *, whole: bool = False) -> Check:
    """Expect a number between two others; with `whole` an int."""

    def check(value: Any, where: str) -> None:
        kinds = int if whole else (int, float)
        # NaN fails the comparison
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            what = "an int" if whole else "a number"
            raise wrong(where, f"{what} from {low:g} to {high:g}", value)

    return check


count = number(0, whole=True)


def one_of(*values: str) -> Check:
    """Expect one of some strings."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in values:
            raise wrong(where, " or ".join(values), value)

    return check


def optional(inner: Check) -> Check:
    """Expect null, or what another check expects."""
    return lambda value, where: None if value is None else inner(value, where)


def listed(inner: Check, *, length: int | None = None) -> Check:
    """Expect a list, of a certain length if one is given."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or length not in (None, len(value)):
            raise wrong(where, "a list" + (f" of {length}" if length is not None else ""), value)
        for position, item in enumerate(value):
            inner(item, f"{where}[{position}]")

    return check


def anything(_value: Any, _where: str) -> None:
    """Expect any JSON value."""


def named(inner: Check) -> Check:
    """Expect an object with any names."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise wrong(where, "an object", value)
        for name, item in value.items():
            inner(item, f"{where}.{name}")

    return check


def record(
    required: Mapping[str, Check],
    others: Mapping[str, Check] | None = None,
    *,
    closed: bool = False,
) -> Check:
    """Expect an object with some fields; `others` may be missing.

    Fields that are not known are refused if `closed`, else not checked.
    """
    known = {**required, **(others or {})}

    def check(value: Any, where: str) -> None:
        named(anything)(value, where)
        unknown = [name for name in value if name not in known]
        if closed and unknown:
            raise wrong(where, " or ".join(known), unknown[0])
        for name, inner in known.items():
            if name in value:
                inner(value[name], f"{where}.{name}")
            elif name in required:
                raise wrong(where, f"an object with {name!r}", value)

    return check


_PROBLEM = record(
    {"kind": text, "message": text}, {"key": optional(text), "polygon": optional(count)}
)
_SOURCE = {
    "description": text,
    "images": optional(text),
    "pictures": count,
    "annotations": optional(text),
    "annotation_files": count,
    "annotations_mtime_ns": number(whole=True),
}
_BUILD = record(
    {},
    {
        "fingerprint": text,
        "decoders": named(text),
        "dialect": optional(text),
        "polygons_frame": record(
            {"asked": one_of("auto", "raw", "upright"), "ambiguous": one_of("raw", "upright")}
        ),
        "ocrstore": text,
        "shard_nbytes": count,  # of a data set of many stores
        "sample_nbytes": count,
        "source": record({}, _SOURCE),
        "problems": record({"counts": named(count), "first": listed(_PROBLEM)}),
    },
)


def build_record(store: Store) -> Mapping[str, Any]:
    """Return what `ocrstore build` recorded: decoders, source, problems; empty if it did not.

    Raises:
        SchemaError: The record is not as a build writes it. A store without views was not made by
            `ocrstore build`; what it may have under this name is passed over.
    """
    found = store.metadata.get("build", {})
    try:
        return checked_build(found, f"{store.path}: metadata.build")
    except SchemaError:
        if store.metadata.get("views"):
            raise
        return {}


def checked_build(found: Any, where: str) -> Mapping[str, Any]:
    """Return the record of a build; raise SchemaError if it is not as a build writes it."""
    _BUILD(found, where)
    checked: Mapping[str, Any] = found
    return checked


def readable_build(store: Store) -> tuple[Mapping[str, Any], str]:
    """Return a build's record, or an empty one and the reason, for tools that show any store."""
    try:
        return build_record(store), ""
    except SchemaError as exc:
        return {}, str(exc)


def diff_json(one: Any, other: Any, *, where: str = "") -> list[str]:
    """Return one line for each leaf that differs, like `maps.shrink_ratio: 0.4 -> 0.5`."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        lines: list[str] = []
        for key in [*one, *(key for key in other if key not in one)]:
            inner = f"{where}.{key}" if where else str(key)
            lines += diff_json(one.get(key), other.get(key), where=inner)
        return lines
    if _is_tree(one) and _is_tree(other) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for i, (a, b) in pairs for line in diff_json(a, b, where=f"{where}[{i}]")]
    return [] if one == other else [f"{where}: {json.dumps(one)} -> {json.dumps(other)}"]


def _is_tree(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value)
