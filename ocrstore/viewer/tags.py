"""Tags of samples: words that a user gives them in the viewer, in a file beside the store."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from ocrstore.errors import SourceError
from ocrstore.whole_file import write_whole

MOST = 20
LONGEST = 80


class Tags:
    """The tags of one store's samples, by key; `<store>.tags.json`. Threads may share it."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(f"{store.name}.tags.json")
        self._lock = threading.Lock()
        self._tags = _read(self.path)

    def get(self, key: str) -> list[str]:
        """Return the tags of a sample."""
        return self._tags.get(key, [])

    def set(self, key: str, tags: Sequence[str]) -> None:
        """Replace the tags of a sample; the file is written at once, and never half.

        Raises:
            SourceError: There are too many, or one is too long.
            WriteError: The file cannot be written.
        """
        words = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
        if len(words) > MOST or any(len(word) > LONGEST for word in words):
            raise SourceError(f"expected at most {MOST} tags of at most {LONGEST} characters.")
        with self._lock:
            changed = {**self._tags, key: words}
            if not words:
                del changed[key]
            text = json.dumps(dict(sorted(changed.items())), ensure_ascii=False, indent=1)
            write_whole(self.path, text.encode())
            self._tags = changed

    def array(self, keys: Sequence[str]) -> pa.Array:
        """Return the tags of samples as an Arrow array of lists."""
        return pa.array([self.get(key) for key in keys], pa.list_(pa.string()))


def _read(path: Path) -> dict[str, list[str]]:
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as exc:
        raise SourceError(f"{path}: cannot be read: {exc}. Repair or remove it.") from exc
    good = isinstance(record, dict) and all(
        isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
        for tags in record.values()
    )
    if not good:
        raise SourceError(
            f'{path}: expected JSON like {{"img_1.jpg": ["blurred"]}}. Repair or remove it.'
        )
    return dict(record)
