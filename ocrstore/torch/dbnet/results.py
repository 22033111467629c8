"""What was found, as files: ICDAR's text files and one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ocrstore.errors import WriteError
from ocrstore.torch.dbnet.postprocess import Detections


def result_path(folder: Path, key: str, *, suffix: str, prefix: str = "") -> Path:
    """Return where a picture's result goes: its folders are kept, its name gets the suffix."""
    name = PurePosixPath(key)
    return folder.joinpath(*name.parent.parts) / f"{prefix}{name.stem}{suffix}"


def write_icdar(folder: Path, key: str, found: Detections) -> Path:
    """Write `res_<picture>.txt`: a line of whole numbers x1,y1,x2,y2,... for each box."""
    path = result_path(folder, key, suffix=".txt", prefix="res_")
    lines = [
        ",".join(str(int(v)) for v in np.rint(points).ravel()) + "\n" for points in found.polygons
    ]
    _write(path, "".join(lines))
    return path


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
