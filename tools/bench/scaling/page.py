"""Writes the results of the scale study: slopes, tables, CSV and the figure."""

from __future__ import annotations

import csv
import os
import platform
from pathlib import Path

from scaling.figure import draw
from scaling.fits import Figure, Line, Results

MB = 1e6
GB = 1e9
COLUMNS = (
    *("series", "store", "x", "samples", "workers", "order", "window", "limit", "kind", "round"),
    *("open_ms", "open_cpu_ms", "first_batch_ms", "rate", "cpu_ms", "own_nbytes", "added_nbytes"),
    *("opened_nbytes", "live_nbytes", "file_nbytes", "buffer_nbytes", "load", "error"),
)
BUSY = 1.5
"""A load above this many per processor when a cell begins means that others were at work."""


def machine() -> str:
    """Name this machine."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    system = f"Linux {platform.release().split('-')[0]}"
    return f"{cores} cores of {model}, {memory_gb():.0f} GB, {system}"


def memory_gb() -> float:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB


def write_page(kept: dict, docs: Path, folder: Path) -> None:
    """Write everything below `docs`; prints the slopes."""
    records = kept["records"]
    results = Results(records)
    caption = f"{kept['date']}, {machine()}; {kept['command']}"
    (docs / "images").mkdir(parents=True, exist_ok=True)
    with (docs / "benchmarks-scale.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(records)
    slopes = list(describe(results))
    for line in slopes:
        print(line)
    draw(results, docs / "images" / "scale.svg", caption=caption)
    draw(results, folder / "scale.png", caption=caption)
    failed = [record for record in records if "error" in record]
    lines = [
        "<!-- Written by tools/bench/scale.py, included by docs/benchmarks.md. -->",
        "",
        "![Opening, memory and speed against samples, workers, bytes and a memory limit]"
        "(../images/scale.svg)",
        "",
        f"{caption} ({kept['minutes']:.0f} minutes). Every cell ran in a process of its own, rounds"
        " interleaved; medians, with the least and the most in brackets. Every byte of each batch"
        " (16 samples) is copied into a buffer, page cache warm unless said otherwise. *Own memory* is"
        " anonymous and shared memory (PSS) of the loader and its workers without that buffer. All figures:"
        " `docs/benchmarks-scale.csv`.",
        "",
    ]
    busy = [r for r in records if r["load"] > BUSY * (os.cpu_count() or 1)]
    if busy:
        lines += [
            f"**{len(busy)} of {len(records)} cells were disturbed by other work** (a load above"
            f" {BUSY} per processor when they began): processor time is the truer figure there.",
            "",
        ]
    lines += ["### Slopes", "", *(f"- {line}" for line in slopes), ""]
    for title, table in tables(results):
        lines += [f"### {title}", "", *table, ""]
    if failed:
        lines += ["### Failed cells", ""]
        lines += [f"- {r['series']} {r['store']} {r['order']}: {r['error']}" for r in failed] + [""]
    (docs / "figures").mkdir(exist_ok=True)
    (docs / "figures" / "scale.md").write_text("\n".join(lines), "utf-8")


def describe(results: Results) -> list[str]:
    """Say each slope in a sentence."""
    said = []

    def line(name: str, column: str, **wanted: object) -> Line | None:
        return results.line(name, column, **wanted)

    opening, cpu = line("samples", "open_ms"), line("samples", "open_cpu_ms")
    if opening and cpu:
        said.append(
            f"**Opening: {1000 * opening.slope:.2f} µs per sample** ({1000 * cpu.slope:.2f} of the"
            f" processor) on top of {cpu.start:.1f} ms; it grows as N^{opening.exponent:.2f} at the"
            " end (1 is linear)."
        )
    memory = line("samples", "added_nbytes")
    opened, live = line("samples", "opened_nbytes"), line("samples", "live_nbytes")
    if memory and opened and live:
        said.append(
            f"**Memory: an open store holds {live.slope:.1f} bytes per sample** (the checks at"
            f" opening need {opened.slope:.0f}, which the C library keeps for the next who asks);"
            f" {memory.slope:.0f} after a shuffled epoch without workers, torch's list of all rows"
            " among them."
        )
    size = line("bytes", "open_ms")
    own = line("bytes", "own_nbytes")
    if size and own:
        said.append(
            f"Bytes: opening takes {size.slope:+.2f} ms per GB, and memory grows by"
            f" {own.slope / MB:+.1f} MB per GB, all processes together."
        )
    store, bare = (
        line("workers", "own_nbytes", order="shuffled"),
        line("workers", "own_nbytes", order="bare"),
    )
    if store and bare:
        said.append(
            f"**Workers: {store.slope / MB:.1f} MB per worker**; the same loader on a tensor of zeros"
            f" takes {bare.slope / MB:.1f} MB."
        )
    first = line("workers", "first_batch_ms", order="shuffled")
    if first:
        said.append(f"First batch: {first.slope:+.0f} ms per worker, from {first.start:.0f} ms.")
    spent = results.points("size", "rate")
    if len(spent) > 1:
        from scaling.fits import fit

        per_mb = fit(list(spent), [1000 / figure.median for figure in spent.values()])
        if per_mb and per_mb.slope > 0:
            said.append(
                f"**Pictures: {1000 * per_mb.slope:.0f} µs per MB**, that is"
                f" {1 / per_mb.slope:.1f} GB/s, and {1000 * max(per_mb.start, 0):.0f} µs per sample"
                " whatever its size."
            )
    said += _limits(results)
    return said


def _limits(results: Results) -> list[str]:
    said = []
    rates = {o: results.points("limit", "rate", order=o) for o in ("window", "shuffled")}
    for x in sorted(rates["window"], reverse=True):
        mine, full = rates["window"].get(x), rates["shuffled"].get(x)
        if x < 1 and mine and full:
            kinds = {r["kind"] for r in results.series("limit", x=x)}
            said.append(
                f"**Store {1 / x:.0f} times the page cache it may have** ({', '.join(kinds)}): the"
                f" window shuffle reads {mine.median / full.median:.1f} times as fast as a full"
                f" shuffle ({mine.median:.0f} against {full.median:.0f} samples/s)."
            )
    return said


def tables(results: Results) -> list[tuple[str, list[str]]]:
    """Return a table for each series that was measured."""
    made = []
    headed = {
        "samples": ("Samples (32 x 32 pixels, no workers, shuffled)", "samples", "{:,.0f}"),
        "bytes": ("Bytes (640 x 640 pixels, 2 workers, shuffled)", "GB", "{:.2f}"),
        "size": ("Picture size (no workers, shuffled)", "MB per sample", "{:.2f}"),
    }
    for name, (title, head, form) in headed.items():
        if results.series(name):
            table = _table(results, name, head, form)
            if name == "bytes" and max(results.points(name, "rate")) > 0.85 * memory_gb():
                table += [
                    "",
                    f"What is larger than this machine's memory ({memory_gb():.0f} GB) comes from the disk.",
                ]
            made.append((title, table))
    if results.series("workers"):
        made.append(("Workers (640 x 640 pixels, shuffled)", _workers(results)))
    if results.series("limit"):
        made.append(("A store larger than its memory (2 workers)", _limit_table(results)))
    if results.series("presets"):
        title = "Presets, where the raw store is larger than its page cache (2 workers, shuffled)"
        made.append((title, _preset_table(results)))
    return made


def _preset_table(results: Results) -> list[str]:
    presets = list(dict.fromkeys(record["store"] for record in results.series("presets")))
    rows = [
        "| raw store / page cache | limit | " + " | ".join(presets) + " |",
        "|---|---|" + "---|" * len(presets),
    ]
    for x in sorted({record["x"] for record in results.series("presets")}, reverse=True):
        record = results.series("presets", x=x)[0]
        limit = "none" if record["limit"] is None else f"{record['limit'] / GB:.2f} GB"
        rates = [results.points("presets", "rate", store=preset).get(x) for preset in presets]
        cells = " | ".join(_show(rate, "{:,.0f}") for rate in rates)
        rows.append(f"| {1 / x:.0f} | {limit} ({record['kind']}) | {cells} |")
    return [*rows, "", "Samples/s of the second epoch, from a cold page cache."]


def _table(results: Results, name: str, head: str, form: str) -> list[str]:
    rows = [
        f"| {head} | open ms | first batch ms | own memory MB | samples/s | cpu ms per sample |",
        "|---|---|---|---|---|---|",
    ]
    columns = [
        results.points(name, column)
        for column in ("open_ms", "first_batch_ms", "own_nbytes", "rate", "cpu_ms")
    ]
    for x in columns[0]:
        cells = [
            _show(columns[0].get(x), "{:.1f}"),
            _show(columns[1].get(x), "{:.0f}"),
            _show(columns[2].get(x), "{:.1f}", MB),
            _show(columns[3].get(x), "{:,.0f}"),
            _show(columns[4].get(x), "{:.3f}"),
        ]
        rows.append(f"| {form.format(x)} | " + " | ".join(cells) + " |")
    return rows


def _workers(results: Results) -> list[str]:
    rows = [
        "| workers | open ms | first batch ms | own memory MB | loader of zeros MB | samples/s |"
        " cpu ms per sample |",
        "|---|---|---|---|---|---|---|",
    ]
    points = {
        column: results.points("workers", column, order="shuffled")
        for column in ("open_ms", "first_batch_ms", "own_nbytes", "rate", "cpu_ms")
    }
    bare = results.points("workers", "own_nbytes", order="bare")
    for x in points["rate"]:
        cells = [
            _show(points["open_ms"].get(x), "{:.1f}"),
            _show(points["first_batch_ms"].get(x), "{:.0f}"),
            _show(points["own_nbytes"].get(x), "{:.1f}", MB),
            _show(bare.get(x), "{:.1f}", MB),
            _show(points["rate"].get(x), "{:,.0f}"),
            _show(points["cpu_ms"].get(x), "{:.3f}"),
        ]
        rows.append(f"| {x:.0f} | " + " | ".join(cells) + " |")
    return rows


def _limit_table(results: Results) -> list[str]:
    rows = [
        "| store / page cache | limit | order | samples/s | cpu ms per sample |",
        "|---|---|---|---|---|",
    ]
    order = {"sequential": 0, "window": 1, "shuffled": 2}
    seen = {}
    for record in results.series("limit"):
        seen[-record["x"], order[record["order"]]] = record
    for (x, _), record in sorted(seen.items()):
        wanted = {"order": record["order"]}
        rate = results.points("limit", "rate", **wanted).get(-x)
        cpu = results.points("limit", "cpu_ms", **wanted).get(-x)
        limit = "none" if record["limit"] is None else f"{record['limit'] / 1e9:.2f} GB"
        kind = "" if record["limit"] is None else f" ({record['kind']})"
        name = record["order"]
        if name == "window":
            name = f"window shuffle, {record['window']} row groups"
        elif name == "shuffled":
            name = "full shuffle"
        rows.append(
            f"| {-1 / x:.0f} | {limit}{kind} | {name} | {_show(rate, '{:,.0f}')} |"
            f" {_show(cpu, '{:.2f}')} |"
        )
    rows += [
        "",
        "Second epoch, from a cold page cache. The limit counts everything: 0.35 GB of it are left"
        " for interpreter, torch and workers, the rest is page cache. A window is chosen so that"
        " two of them fit it, the one in use and the one that is read ahead; larger ones evict"
        " what they have read ahead. `ulimit` would not do: neither RLIMIT_AS nor RLIMIT_RSS"
        " limits the page cache.",
    ]
    return rows


def _show(figure: Figure | None, form: str, unit: float = 1.0) -> str:
    if figure is None:
        return "-"
    low, high = (form.format(value / unit) for value in (figure.low, figure.high))
    middle = form.format(figure.median / unit)
    return middle if low == high else f"{middle} ({low}–{high})"
