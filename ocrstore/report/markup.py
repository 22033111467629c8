"""HTML put together from Python values; whatever is not markup already is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

# what XML and HTML have no place for, and what would reorder the text around it
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
_VOID = {"br", "hr", "img", "input", "link", "meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Return text as HTML that shows exactly it; markup stays as it is."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_UNPRINTABLE.sub("�", str(value)), quote=True))


def tag(name: str, /, *children: Any, **attributes: object) -> Markup:
    """Return an element; attributes that are None are left out, `class_` stands for `class`."""
    written = "".join(
        f' {attribute.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for attribute, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Any], *, between: str = "") -> Markup:
    """Return several children as one piece; None is left out."""
    return Markup(between.join(escape(child) for child in children if child is not None))
