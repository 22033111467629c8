"""Write a report on a store: one HTML file with pictures, distributions and problems."""

from __future__ import annotations

from pathlib import Path

from ocrstore.errors import needs
from ocrstore.inspection.facts import gather_facts
from ocrstore.inspection.polygon_stats import measure_polygons, view_boxes
from ocrstore.inspection.source_status import build_problems
from ocrstore.store import Store
from ocrstore.whole_file import write_whole

__all__ = ["make_report", "write_report"]

SAMPLES = 48
SUSPECTS = 40


def make_report(
    store: Store,
    *,
    samples: int = SAMPLES,
    suspects: int = SUSPECTS,
    predictions: Path | None = None,
) -> str:
    """Return the report as HTML; payload is read only for the pictures shown.

    Args:
        store: The store.
        samples: Pictures on the contact sheet.
        suspects: Suspicious samples that are listed.
        predictions: Boxes of a detector, as `evaluation.predictions.read_predictions` takes them:
            the sheet shows them, and begins with the pictures of the lowest H-mean.
    """
    with needs("build"):
        import cv2  # noqa: F401  # to say what to install
    from ocrstore.report import page as pages
    from ocrstore.report.contact_sheet import choose_varied, contact_sheet
    from ocrstore.report.distributions import Limit, distributions
    from ocrstore.report.suspects import find_suspects

    facts = gather_facts(store, check_source=False)
    stats = measure_polygons(store)
    view = facts.views[0] if facts.views else None
    limit = None
    if view is not None:
        limit = Limit(view.name, view.maps["min_size"], view_boxes(stats, view, store))
    found = find_suspects(store, stats, limit)
    counts, first = build_problems(store)
    rows = choose_varied(stats, samples)
    scores = None
    if predictions is not None:
        from ocrstore.evaluation.predictions import Scores, read_predictions

        scores = Scores(store, read_predictions(predictions, store.keys))
        rows = scores.worst_first()[:samples]
    sheet = contact_sheet(store, rows, view, {suspect.row: suspect for suspect in found}, scores)
    shown = "" if len(rows) == len(store) else f" ({len(rows)} of {len(store):,})"
    sections = [
        ("sheet", f"Pictures{shown}", sheet),
        (
            "distributions",
            "Distributions",
            pages.distributions_section(list(distributions(stats, limit))),
        ),
        (
            "suspects",
            f"Worth a look ({len(found):,})",
            pages.suspects_section(store, found, shown=suspects),
        ),
        (
            "problems",
            f"Problems ({sum(counts.values()):,})",
            pages.problems_section(counts, first, recorded="build" in store.metadata),
        ),
        ("columns", "Columns", pages.columns_section(facts)),
    ]
    if facts.turned:
        turned = list(facts.turned.values())
        content = pages.turned_section(store, turned, shown=suspects)
        sections.insert(3, ("turned", f"EXIF rotations ({len(turned):,})", content))
    name = Path(facts.summary.path).name
    return pages.page(f"{name}: a report", sections, pages.lead_in(facts))


def write_report(
    store: Store, out: Path, *, samples: int = SAMPLES, predictions: Path | None = None
) -> int:
    """Write the report to a file atomically; return its size in bytes."""
    data = make_report(store, samples=samples, predictions=predictions).encode()
    write_whole(out, data)
    return len(data)
