"""The one wording of the error for bytes that contradict themselves."""

from __future__ import annotations

from ocrstore.errors import CorruptStoreError


def corrupt(where: str, why: str) -> CorruptStoreError:
    """Make the error: `where` names file and part, `why` says what was expected and found."""
    return CorruptStoreError(
        f"{where}: {why.rstrip('.')}. The file is damaged or cut off: restore it from a copy or "
        "build it again."
    )
