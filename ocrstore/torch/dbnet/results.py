"""What was found, as files: ICDAR's text files and one JSON file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ocrstore.errors import WriteError
from ocrstore.torch.dbnet.postprocess import Detections


def result_names(keys: Iterable[str]) -> dict[str, PurePosixPath]:
    """Return for each picture the name of its results, without a suffix: `folder/res_<picture>`.

    The picture's own ending is left out, as ICDAR does it, unless another one has the same name
    without it.
    """
    names = {key: PurePosixPath(key) for key in keys}
    times = Counter(name.with_suffix("") for name in names.values())
    return {
        key: name.with_name(f"res_{name.stem if times[name.with_suffix('')] == 1 else name.name}")
        for key, name in names.items()
    }


def write_icdar(path: Path, found: Detections) -> None:
    """Write a text file: a line of whole numbers x1,y1,x2,y2,... for each box."""
    lines = [
        ",".join(str(int(v)) for v in np.rint(points).ravel()) + "\n" for points in found.polygons
    ]
    _write(path, "".join(lines))


def to_json(found: Mapping[str, Detections]) -> dict[str, Any]:
    """Return everything found, per picture the polygons with their scores."""
    return {
        key: [
            {"points": np.round(p.astype(float), 2).tolist(), "score": round(float(s), 4)}
            for p, s in zip(d.polygons, d.scores, strict=True)
        ]
        for key, d in found.items()
    }


def write_json(path: Path, record: Any) -> None:
    """Write a JSON file, readable and with a newline at its end."""
    _write(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise WriteError(f"{path}: {exc.strerror or exc}") from exc
