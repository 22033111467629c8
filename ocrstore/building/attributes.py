"""The attributes that a build records of each sample, and how they are read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import xxhash

from ocrstore.annotation import Problem

ATTRIBUTES = pa.schema(
    [
        ("width", pa.int32()),  # of the upright picture
        ("height", pa.int32()),
        ("orientation", pa.int8()),  # the EXIF orientation that was undone
        ("annotated", pa.bool_()),  # False: no annotation speaks of the picture
        ("polygons", pa.list_(pa.list_(pa.float32()))),  # x, y, x, y, ... in the upright frame
        ("ignored", pa.list_(pa.bool_())),
        ("texts", pa.list_(pa.string())),
        ("languages", pa.list_(pa.string())),
        ("source_nbytes", pa.int64()),
        ("source_mtime_ns", pa.int64()),
        ("source_hash", pa.uint64()),  # xxh3_64 of the picture's file
        ("annotation_hash", pa.uint64()),  # xxh3_64 of what the source said about it
        ("problems", pa.list_(pa.string())),  # "kind: message", from deriving the sample
    ]
)


def build_fingerprint(
    recipes: Sequence[str], decoders: Mapping[str, str], sources: Mapping[str, tuple[int, int]]
) -> str:
    """Hash everything that a store's content comes from: recipes, decoders, and source bytes.

    `sources` has the picture's and the annotation's hash by key; `recipes` their fingerprints,
    which cover the map algorithm.
    """
    digest = xxhash.xxh3_128()
    digest.update(json.dumps([list(recipes), dict(decoders)], sort_keys=True).encode())
    for key in sorted(sources):
        digest.update(json.dumps([key, *sources[key]]).encode())
    return digest.hexdigest()


def stored_problems(key: str, attributes: Mapping[str, Any]) -> list[Problem]:
    """Read back what came up when a sample was derived."""
    problems = []
    for line in attributes.get("problems") or ():
        kind, _, message = line.partition(": ")
        problems.append(Problem(kind, message, key=key))
    return problems
