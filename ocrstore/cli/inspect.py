"""`ocrstore inspect`: facts, one sample, or the difference of two stores, as text or JSON."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Column, Table

from ocrstore.cli.console import (
    DATASET,
    console,
    counted,
    explain_missing,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)
from ocrstore.errors import DecodeError, SchemaError

if TYPE_CHECKING:
    from ocrstore.format.resume import Unfinished
    from ocrstore.inspection.difference import Difference
    from ocrstore.inspection.facts import ColumnSummary, Facts, Summary
    from ocrstore.inspection.sample_facts import SampleFacts
    from ocrstore.store import Store
    from ocrstore.verification import Verification

_FINDINGS_SHOWN, _KEYS_SHOWN, _POLYGONS_SHOWN, _BUILDS_SHOWN = 5, 3, 12, 3
_LINES_LEFT = 4
"""Lines of the terminal that a picture leaves free."""
# shown in words above, or too long for one line
_NOT_REPEATED = (
    "width",
    "height",
    "source_orientation",
    "polygons",
    "ignored",
    "texts",
    "languages",
)
_MARKS = {
    "same": "[green]=[/]",
    "changed": "[yellow]≠[/]",
    "respecified": "[yellow]≠[/]",
    "added": "[green]+[/]",
    "removed": "[red]-[/]",
}


def print_facts(facts: Facts, verification: Verification | None) -> None:
    """Print content, origin, integrity and size of a store."""
    out = console()
    summary = facts.summary
    out.print(f"[bold]{shown(summary.path)}[/]  [dim]{_what(summary)}[/]")
    out.print()
    out.print(_named(_facts(facts, verification)))
    out.print()
    out.print(_column_table(summary))
    if summary.attributes:
        out.print(_named([("attributes", f"[dim]{shown(', '.join(summary.attributes))}[/]")]))


def _named(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and what they stand for."""
    table = Table.grid(Column(style="dim", no_wrap=True), Column(), padding=(0, 2))
    for name, text in rows:
        table.add_row(name, text)
    return table


def _facts(facts: Facts, verification: Verification | None) -> Iterator[tuple[str, str]]:
    from ocrstore.inspection.source_status import NEWER, UP_TO_DATE
    from ocrstore.views import recipe_in_words

    summary = facts.summary
    yield "samples", f"[bold]{summary.samples:,}[/]"
    if facts.polygons is not None:
        yield "polygons", _polygons(facts)
    if facts.turned:
        yield "turned", _turned(facts)
    if len(summary.history) > _BUILDS_SHOWN:
        yield (
            "",
            f"[dim]{len(summary.history) - _BUILDS_SHOWN} earlier entries (--json lists all)[/]",
        )
    for entry in summary.history[-_BUILDS_SHOWN:]:
        at = str(entry.get("at")).replace("T", " ").replace("Z", " UTC")
        words = f"{at} by {entry.get('by')}, {entry.get('samples')} samples"
        yield shown(entry.get("action")), shown(words)
    if facts.source:
        yield "built from", shown(facts.source.get("images") or "samples from Python")
        if facts.source.get("annotations"):
            yield "", shown(f"annotations in {facts.source['annotations']}")
    if facts.views and facts.source_status is not None:
        mark = {UP_TO_DATE: "[green]✓[/] ", NEWER: "[yellow]![/] newer: "}
        words = shown(facts.source_status.in_words())
        yield "source", mark.get(facts.source_status.state, "[yellow]?[/] ") + words
    if facts.problems:
        counted = ", ".join(f"{count} {kind}" for kind, count in facts.problems.items())
        yield "problems", shown(counted)
    for view in facts.views:
        words = shown(" ".join(recipe_in_words(view.recipe_json)))
        yield f"view {shown(view.name)}", words
        yield "recipe", f"fingerprint {shown(view.fingerprint)}"
        bound = facts.bounds.get(view.name)
        if bound is not None:
            yield "upper bound", bound.in_words()
        if bound is not None and bound.warning():
            yield "", f"[yellow]![/] {bound.warning()}"
    for reason in facts.unreadable:
        yield "not read", f"[yellow]![/] {shown(reason)}"
    yield "content", f"fingerprint {summary.fingerprint[:32]}…"
    if summary.shards:
        yield "shards", _shards(summary)
    else:
        yield "generation", _generation(summary)
    yield from _soundness(facts, verification)
    if facts.unfinished is not None:
        yield "unfinished", _unfinished(facts.unfinished)
    yield "page cache", _cached(summary)
    yield "cost", _cost(summary)


def _what(summary: Summary) -> str:
    if summary.shards:
        count = counted(len(summary.shards), "shard")
        return f"a data set of {count}, {human_bytes(summary.nbytes)}"
    return f"an ocrstore file, format {summary.format_version}, {human_bytes(summary.nbytes)}"


def _shards(summary: Summary) -> str:
    samples = [shard.samples for shard in summary.shards]
    sizes = [shard.nbytes for shard in summary.shards]
    return (
        f"{len(sizes):,} of {human_bytes(min(sizes))} to {human_bytes(max(sizes))} with"
        f" {min(samples):,} to {max(samples):,} samples"
    )


def _polygons(facts: Facts) -> str:
    found = facts.polygons
    assert found is not None
    text = f"[bold]{found.total:,}[/]"
    if found.total:
        each = found.total / facts.summary.samples
        text += (
            f", {each:.1f} a sample, {found.ignored:,} ignored ({found.ignored / found.total:.0%})"
        )
    limits = {view.name: view.maps["min_size"] for view in facts.views}
    for name, count in found.too_small.items():
        if count:
            text += f", {count:,} more under {limits[name]:g} px in view {shown(name)}"
    if found.samples_without:
        plural = "" if found.samples_without == 1 else "s"
        text += f"; {found.samples_without:,} sample{plural} without any"
    return text


def _turned(facts: Facts) -> str:
    """Return how many pictures had an EXIF rotation, in which frame their polygons were, which."""
    frames = [turned.frame for turned in facts.turned.values()]
    words = [
        f"{frames.count(frame):,} {done}"
        for frame, done in (
            ("raw", "with polygons rotated along"),
            ("upright", "with polygons that were upright already"),
            (None, "without polygons"),
        )
        if frame in frames
    ]
    keys = [shown(key) for key in facts.turned]
    listed = ", ".join(keys[:_KEYS_SHOWN])
    more = " … (--json lists all)" if len(keys) > _KEYS_SHOWN else ""
    pictures = counted(len(keys), "picture")
    return f"{pictures} with an EXIF rotation: {', '.join(words)}; {listed}{more}"


def _generation(summary: Summary) -> str:
    older = [str(g) for g in summary.generations if g != summary.generation]
    return f"{summary.generation}" + (f" (also readable: {', '.join(older)})" if older else "")


def _soundness(facts: Facts, verification: Verification | None) -> Iterator[tuple[str, str]]:
    if verification is not None:
        findings = [
            "".join(f"{part}: " for part in (found.sample, found.column) if part) + found.message
            for found in verification.findings
        ]
        sound = (
            f"every byte is as it was written: {counted(verification.rows, 'row')}, "
            f"{human_bytes(verification.checked_nbytes)}"
        )
    else:
        findings = list(facts.integrity.findings)
        sound = (
            f"headers of {facts.integrity.extents:,} extents agree with the index "
            "[dim](--full: all)[/]"
            if facts.integrity.extents
            else "rows are compared with the index when they are fetched [dim](--full: all)[/]"
        )
    if not findings:
        yield "integrity", f"[green]✓[/] {sound}"
        return
    yield (
        "integrity",
        f"[red]✗ damaged: {counted(len(findings), 'finding')}[/]; restore or rebuild it (--force)",
    )
    for finding in findings[:_FINDINGS_SHOWN]:
        yield "", f"[red]✗[/] {shown(finding)}"
    if len(findings) > _FINDINGS_SHOWN:
        yield "", f"… and {len(findings) - _FINDINGS_SHOWN} more (--json lists all)"


def _unfinished(found: Unfinished) -> str:
    work = f"{counted(found.samples, 'sample')}, {human_bytes(found.nbytes)}"
    what = f"[yellow]![/] {work}, not published; "
    if found.obstacle:
        return what + f"cannot be resumed: {shown(found.obstacle)}"
    return what + "run the interrupted command again to finish it, or `ocrstore compact` to drop it"


def _cached(summary: Summary) -> str:
    if summary.resident_nbytes is None:
        return "unknown (no system call for it)"
    share = summary.resident_nbytes / summary.nbytes
    return f"{human_bytes(summary.resident_nbytes)} of {human_bytes(summary.nbytes)} ({share:.0%})"


def _cost(summary: Summary) -> str:
    dead = summary.nbytes - summary.live_nbytes
    rows = f"rows {human_bytes(summary.live_nbytes)}, all else {human_bytes(dead)}"
    if not summary.samples:
        return rows
    return f"[bold]{human_bytes(summary.live_nbytes / summary.samples)}[/] per sample; {rows}"


def _column_table(summary: Summary) -> Table:
    table = Table("column", "arrays", "codec", box=None)
    for name in ("stored", "decoded", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("zero-copy")
    for column in summary.columns:
        table.add_row(
            shown(column.name),
            f"{column.spec.dtype} {_shape(column)}",
            column.spec.codec,
            human_bytes(column.stored_nbytes),
            human_bytes(column.decoded_nbytes),
            "-" if column.ratio is None else f"{column.ratio:.1f}x",
            "[green]yes[/]" if column.is_view else "no",
        )
    return table


def _shape(column: ColumnSummary) -> str:
    if not column.max_shape:
        return "x".join("?" if size is None else str(size) for size in column.spec.shape) or "()"
    sizes = zip(column.min_shape, column.max_shape)
    return "x".join(str(low) if low == high else f"{low}..{high}" for low, high in sizes)


def print_sample(store: Store, facts: SampleFacts, *, picture: bool) -> None:
    """Print one sample; with `picture` also its picture, where the output is a terminal."""
    out = console()
    out.print(f"[bold]{shown(facts.key)}[/]  [dim]row {facts.row} of {shown(facts.path)}[/]")
    if picture:
        try:
            _print_picture(store, facts, out)
        except (DecodeError, SchemaError) as exc:
            out.print(f"[yellow]no picture:[/] {shown(exc)}")
    out.print(_named(_sample_lines(facts)))
    out.print()
    columns = Table("column", "dtype", "shape", "codec", box=None, padding=(0, 2, 0, 0))
    columns.add_column("bytes", justify="right")
    columns.add_column("offset", justify="right")
    columns.add_column("xxh3")
    for row in facts.rows:
        columns.add_row(
            shown(row.column),
            row.dtype,
            "x".join(map(str, row.shape)) or "()",
            row.codec,
            human_bytes(row.nbytes),
            str(row.offset),
            row.hash[:8] + "…",
        )
    out.print(columns)


def _sample_lines(facts: SampleFacts) -> Iterator[tuple[str, str]]:
    attributes = facts.attributes
    if attributes.get("width") and attributes.get("height"):
        text = f"{attributes['width']} x {attributes['height']} (width x height)"
        if attributes.get("source_orientation") not in (None, 1):
            text += f", EXIF orientation {attributes['source_orientation']} undone"
        yield "picture", text
    if facts.annotation is not None:
        polygons, ignored, texts, _, unusable = facts.annotation
        yield (
            "polygons",
            f"{len(polygons)}, {sum(ignored)} ignored"
            + (f", [red]{unusable} unusable[/]" if unusable else ""),
        )
        for points, skip, word in list(zip(polygons, ignored, texts))[:_POLYGONS_SHOWN]:
            yield "", _polygon(points, skip, word)
        if len(polygons) > _POLYGONS_SHOWN:
            yield "", f"[dim]… and {len(polygons) - _POLYGONS_SHOWN} more (--json lists all)[/]"
    for name, value in attributes.items():
        if name in _NOT_REPEATED and "polygons" in attributes:
            continue
        if value is None or value == []:
            continue
        yield shown(name), shown(_short(name, value))


def _polygon(points: Any, ignored: bool, text: str | None) -> str:
    if not len(points):
        return "[red]without points[/]"
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    place = f"{right - left:.0f} x {bottom - top:.0f} px at {left:.0f}, {top:.0f}"
    words = "[red]ignored[/] " if ignored else "[green]counted[/] "
    return words + shown(f"{place}" + (f"  {text!r}" if text else ""))


def _short(name: str, value: Any) -> str:
    text = str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("_hash"):
            text = f"{value:016x}"
        elif name.endswith("_mtime_ns"):
            text = f"{datetime.fromtimestamp(value / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
        elif name.endswith("_nbytes"):
            text = human_bytes(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _print_picture(store: Store, facts: SampleFacts, out: Console) -> None:
    """Print the picture in half blocks, if the output is a terminal with colours."""
    if out.color_system is None or out.no_color:
        return
    import numpy as np

    from ocrstore.inspection.sample_facts import picture_of
    from ocrstore.inspection.thumbnail import draw_outlines, fit, shrink, to_blocks

    found = picture_of(store, facts.row)
    if found is None:
        return
    columns, lines = shutil.get_terminal_size((80, 24))
    size = found.pixels.shape[0], found.pixels.shape[1]
    height, width = fit(size, (2 * max(8, lines - _LINES_LEFT), min(columns, 160)))
    small = shrink(found.pixels, height, width)
    matrix = np.diag((width / size[1], height / size[0], 1.0)) @ found.to_pixels
    if facts.annotation is not None:
        polygons, ignored = facts.annotation[:2]
        small = draw_outlines(small, polygons, ignored, matrix=matrix)
    out.print(to_blocks(small), soft_wrap=True)


def print_difference(difference: Difference) -> None:
    """Print what differs in recipe, samples and content."""
    out = console()
    out.print(f"[bold]{shown(difference.one)}[/] → [bold]{shown(difference.other)}[/]")
    if not difference.any:
        out.print("[green]✓[/] the same recipes, samples and content")
        return
    out.print()
    samples = [
        _with_keys(mark, word, keys)
        for mark, word, keys in (
            ("[green]+[/]", "added", difference.added),
            ("[red]-[/]", "removed", difference.removed),
            ("[yellow]≠[/]", "changed", difference.changed),
        )
        if keys
    ]
    if difference.reordered:
        samples.append("[yellow]≠[/] in another order")
    if difference.renamed:
        pairs = [" = ".join(pair) for pair in difference.renamed]
        samples.append(_with_keys("[yellow]![/]", "in both under different keys", pairs))
    parts = {
        "recipe": [shown(line) for line in difference.recipes],
        "samples": samples,
        "build": [shown(line) for line in difference.build],
    }
    out.print(
        _named(
            (name if number == 0 else "", line)
            for name, lines in parts.items()
            for number, line in enumerate(lines or ["the same"])
        )
    )
    out.print()
    columns = Table("", "content", "kind", "samples that differ", "", box=None)
    same = {"column": 0, "attribute": 0}
    for column in difference.columns:
        if column.state == "same":
            same[column.kind] += 1
            continue
        count = f"{column.changed:,}" if column.state in ("changed", "respecified") else "-"
        columns.add_row(
            _MARKS[column.state],
            shown(column.name),
            f"{column.kind} {column.state}",
            count,
            shown(column.detail),
        )
    if columns.row_count:
        out.print(columns)
    if not difference.shared:
        out.print("no sample in common", style="dim")
    elif any(same.values()):
        words = (
            f"{counted(same['column'], 'column')} and {counted(same['attribute'], 'attribute')} "
            f"are the same over the {counted(difference.shared, 'sample')} in both"
        )
        out.print(f"{_MARKS['same']} {words}", style="dim")


def _with_keys(mark: str, word: str, keys: Sequence[str]) -> str:
    first = ", ".join(shown(key) for key in keys[:_KEYS_SHOWN])
    more = f", … (--json lists all {len(keys):,})" if len(keys) > _KEYS_SHOWN else ""
    return f"{mark} {len(keys):,} {word}: {first}{more}"


FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("inspect")
@click.argument("store", type=DATASET)
@click.argument("key", required=False)
@click.option("--full", is_flag=True, help="Check every byte, as `ocrstore verify` does.")
@click.option("--diff", "other", type=DATASET, help="Compare with another store.")
@click.option(
    "--source", type=FOLDER, help="Folder of the pictures, to look for new and changed ones."
)
@click.option("--no-picture", is_flag=True, help="Do not print the picture of a sample.")
@click.option("--generation", type=int, help="Show an older generation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect_command(
    store: Path,
    key: str | None,
    full: bool,
    other: Path | None,
    source: Path | None,
    no_picture: bool,
    generation: int | None,
    as_json: bool,
) -> int:
    """Show what a store, or a data set of many stores, contains, its origin, integrity and size.

    With KEY: one sample, with its picture in a terminal that has colours. Payload is read for that
    picture and with --full only.

    \b
    Examples:
      ocrstore inspect val.ocrs
      ocrstore inspect val.ocrs img_12.jpg
      ocrstore inspect train/
      ocrstore inspect val.ocrs --full
      ocrstore inspect val.ocrs --diff new.ocrs
      ocrstore inspect val.ocrs --json | jq .samples

    Exit code 1 if the store is damaged, or with --diff if the stores differ.
    """
    if other is not None and (key is not None or full):
        raise click.UsageError("--diff compares whole stores: leave out KEY and --full.")
    if key is not None and full:
        raise click.UsageError("--full checks the whole store: leave out KEY.")
    with explain_missing("inspect"):
        from ocrstore.inspection.difference import compare_stores
        from ocrstore.inspection.facts import gather_facts
        from ocrstore.inspection.sample_facts import sample_facts
        from ocrstore.store import Store
        from ocrstore.verification import verify
    with Store(store, generation=generation) as opened:
        if other is not None:
            with Store(other) as second:
                difference = compare_stores(opened, second)
            if as_json:
                print_json(difference.to_json())
            else:
                print_difference(difference)
            return 1 if difference.any else 0
        if key is not None:
            facts = sample_facts(opened, key)
            if as_json:
                print_json(facts.to_json())
            else:
                print_sample(opened, facts, picture=not no_picture)
            return 0
        found = gather_facts(opened, source=source)
    result = None
    if full:
        with progress_bar("verifying", in_bytes=True, quiet=as_json) as advance:
            result = verify(store, progress=advance)
    if as_json:
        record = found.to_json()
        if result is not None:
            record["verification"] = {"ok": result.ok, **dataclasses.asdict(result)}
        print_json(record)
    else:
        print_facts(found, result)
    return 0 if found.integrity.ok and (result is None or result.ok) else 1
