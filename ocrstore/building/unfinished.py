"""Names for a build's work, and whether unfinished work that was found is the work to be done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ocrstore.building.views import View
from ocrstore.format.resume import Unfinished


def name_work(
    work: str,
    views: tuple[View, ...],
    *,
    images: Path | None,
    families: dict[str, str],
    maps_folder: Path | None,
) -> str:
    """Name a work by all that its result depends on, except the pictures' content.

    That is recorded with each sample, and compared sample by sample.
    """
    described = {
        "work": work,
        "images": None if images is None else os.path.abspath(images),  # noqa: PTH100 - links stay links
        "views": [[view.name, view.recipe.fingerprint] for view in views],
        "decoders": families,
        "maps": None if maps_folder is None else str(maps_folder.absolute()),
    }
    return json.dumps(described, sort_keys=True)


def why_not(found: Unfinished, token: str, *, in_place: bool) -> str:
    """Say why unfinished work is not gone on with by the work `token`; empty if it is."""
    if found.obstacle:
        return found.obstacle
    if found.token != token:
        return _difference(_described(found.token), _described(token))
    if found.in_place and not in_place:
        return "by now so much has changed that a new file is written"
    if in_place and not found.in_place:
        return "it was of a new file, and by now the store is changed in place"
    return ""


def _described(token: str) -> dict[str, Any]:
    try:
        record = json.loads(token)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    if then.get("work") != now["work"]:
        return f"it was of other work ({then.get('work', 'of another program')})"
    if then.get("images") != now["images"]:
        return f"it was of the pictures in {then.get('images') or 'the store'}"
    if then.get("views") != now["views"]:
        return "it was made by another recipe, or for other views"
    if then.get("maps") != now["maps"]:
        return f"it had its maps from {then.get('maps') or 'no folder'}"
    return "its pictures were decoded by other decoders"
