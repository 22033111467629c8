"""Compare two JSON values. Not part of `recipe`, whose imports need OpenCV: inspecting does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


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
