"""A filter's tree over fields: which samples it lets through. Works with pyarrow alone."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ocrstore.viewer.fields import FLAG, NUMBER, TEXT, TEXTS, Fields, any_of
from ocrstore.viewer.grammar import Both, Comparison, FilterError, Literal, Name, Node, Not, parse

_COMPARE = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_NAMES = {NUMBER: "a number", TEXT: "a text", FLAG: "true or false", TEXTS: "a list of texts"}


def select(text: str, fields: Fields) -> npt.NDArray[np.bool_]:
    """Return which samples a filter lets through; a value that is missing never does."""
    mask = _evaluate(parse(text), fields)
    return np.asarray(mask.to_numpy(zero_copy_only=False), bool)


def _evaluate(node: Node, fields: Fields) -> Any:
    if isinstance(node, Both):
        join = pc.or_ if node.either else pc.and_
        return join(_evaluate(node.left, fields), _evaluate(node.right, fields))
    if isinstance(node, Not):
        return pc.invert(_evaluate(node.inner, fields))
    if isinstance(node, Name):
        if _kind(node, fields) != FLAG:
            raise FilterError(
                f"{node.name} is {_NAMES[_kind(node, fields)]}; compare it with something",
                position=node.position,
            )
        return pc.fill_null(fields.array(node.name), False)
    try:
        return pc.fill_null(_compare(node, fields), False)
    except pa.ArrowException as exc:
        reason = str(exc).splitlines()[0]
        raise FilterError(f"cannot be compared: {reason}", position=node.position) from exc


def _compare(node: Comparison, fields: Fields) -> Any:
    kind = _kind(node.left, fields)
    values = fields.array(node.left.name)
    if isinstance(node.right, Name):
        other = _kind(node.right, fields)
        if kind != other or kind == TEXTS or node.sign in ("~", "!~"):
            raise FilterError(
                f"{node.left.name} is {_NAMES[kind]}, {node.right.name} {_NAMES[other]}; "
                f"they cannot be compared by {node.sign}",
                position=node.right.position,
            )
        return _COMPARE[node.sign](values, fields.array(node.right.name))
    _check(node, kind, node.right)
    if kind != TEXTS:
        return _test(node, values, node.right)
    # a list is as good as its best entry; and "not" means: no entry is
    negative = node.sign in ("!=", "!~")
    sign = {"!=": "=", "!~": "~"}.get(node.sign, node.sign)
    positive = Comparison(node.left, sign, node.right, node.position)
    found = any_of(values, _test(positive, pc.list_flatten(values), node.right))
    return pc.invert(found) if negative else found


def _test(node: Comparison, values: Any, literal: Literal) -> Any:
    if node.sign in ("~", "!~"):
        # RE2: linear in the text, whatever the pattern
        found = pc.match_substring_regex(values, str(literal.value), ignore_case=True)
        return pc.invert(found) if node.sign == "!~" else found
    return _COMPARE[node.sign](values, pa.scalar(literal.value))


def _check(node: Comparison, kind: str, literal: Literal) -> None:
    given = (
        FLAG
        if isinstance(literal.value, bool)
        else TEXT
        if isinstance(literal.value, str)
        else NUMBER
    )
    if given != (TEXT if kind == TEXTS else kind):
        hint = " (texts stand in quotes)" if kind in (TEXT, TEXTS) else ""
        raise FilterError(
            f"{node.left.name} is {_NAMES[kind]}, not {_NAMES[given]}{hint}",
            position=literal.position,
        )
    if node.sign in ("~", "!~") and kind not in (TEXT, TEXTS):
        raise FilterError(
            f"{node.sign} looks into texts; {node.left.name} is {_NAMES[kind]}",
            position=node.position,
        )
    if kind in (FLAG, TEXTS) and node.sign not in ("=", "!=", "~", "!~"):
        raise FilterError(
            f"{node.left.name} is {_NAMES[kind]}: only = and != make sense", position=node.position
        )


def _kind(name: Name, fields: Fields) -> str:
    if name.name in fields:
        return fields[name.name].kind
    near = difflib.get_close_matches(name.name, fields, n=3, cutoff=0.5)
    near += [f"{name.name}.{part}" for part in ("count", "true") if f"{name.name}.{part}" in fields]
    hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    raise FilterError(f"there is no field {name.name}{hint}", position=name.position)
