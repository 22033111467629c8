"""Write docs/figures/peers.md: the template's text, with tables and figures from the results."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.bench.accounting import DISTURBED
from tools.bench.peers import Peer
from tools.bench.plots import OURS, number, order_of, shown_workers, workers_of
from tools.bench.results import Spread, Table

TEMPLATE = Path(__file__).with_name("page.md")
ALT = {
    "rates": "Samples per second of ocrstore and its peers",
    "workers": "Samples per second against the number of workers",
    "memory": "Memory of ocrstore and its peers",
    "costs": "Processor time, first batch, cold epoch, build time and disk space",
}


def write(
    path: Path,
    table: Table,
    about: Mapping[str, str],
    peers: Sequence[Peer],
    images: Mapping[str, Path],
) -> None:
    """Write the text; what was not measured is left out or said to be so."""
    made = {
        **about,
        "about": f"{about['date']}, {about['machine']}, {about['system']}, torch {about['torch']};"
        f" `{about['command']}`.",
        "pictures": f"{about['count']} {about['pictures']}",
        "rounds": rounds(table),
        "left": left_in_cache(table),
        "disturbed": f"{100 * DISTURBED:.0f}",
        "baseline": baseline(table),
        "glance_title": glance_title(table),
        "glance": glance(table, peers),
        "matrix": matrix(table, peers),
        "resources": resources(table, peers),
        "losses": losses(table, peers),
        "peers": described(table, peers),
        "jpeg_mb": f"{float(about['jpeg_mb']):.0f}",
        "store_mb": figure(table.spread("disk_mb", "build", OURS)),
        "factor": factor(table, float(about["jpeg_mb"])),
    }
    text = TEMPLATE.read_text("utf-8")
    for name in ALT:
        image = images.get(name)
        link = f"![{ALT[name]}]({os.path.relpath(image, path.parent)})" if image else ""
        text = text.replace(f"{{plot:{name}}}", link)
    text = re.sub(r"\{(\w+)\}", lambda match: str(made[match[1]]), text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub(r"\n{3,}", "\n\n", text), "utf-8")


def figure(spread: Spread | None, *, spread_too: bool = False) -> str:
    """Write a figure, with a mark if it was disturbed, a dash if there is none."""
    if spread is None:
        return "–"
    mark = "~" if spread.disturbed else ""
    if spread_too and spread.least != spread.most:
        return f"{mark}{number(spread.median)} ({number(spread.least)}–{number(spread.most)})"
    return mark + number(spread.median)


def rows(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table, figures to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def name_of(peer: Peer) -> str:
    return f"**{peer.title}**" if peer.name == OURS else peer.title


def baseline(table: Table) -> str:
    """Return what a bare process takes: the least own memory of any peer without workers."""
    found = [
        r.figures["own_mb"] for r in table.results if r.cell.workers == 0 and "own_mb" in r.figures
    ]
    return f"about {min(found):.0f}" if found else "–"


def rounds(table: Table) -> str:
    """Return how often the cells were measured: a run may end in the middle of a round."""
    done = [r.cell for r in table.results if r.cell.kind == "rate" and r.status == "ok"]
    counts = Counter(replace(cell, round=0) for cell in done).values()
    least, most = min(counts, default=0), max(counts, default=0)
    return str(most) if least == most else f"{least} to {most}"


def left_in_cache(table: Table) -> str:
    """Return what share of any peer's pages could not be dropped from the page cache."""
    left = [r.figures["still_cached"] for r in table.results if "still_cached" in r.figures]
    return f"{100 * max(left, default=0.0):.1f}"


def chosen_cells(table: Table) -> dict[str, Any]:
    return {"workers": shown_workers(table), "shuffle": order_of(table)}


def glance_title(table: Table) -> str:
    chosen = chosen_cells(table)
    order = "shuffled" if chosen["shuffle"] else "sequential"
    return (
        f"{chosen['workers']} workers (limits: none), {order}. Rates in samples/s, with the ratio to ocrstore's in the"
        " same round; CPU in ms per sample and memory in MB with *copy*."
    )


def glance(table: Table, peers: Sequence[Peer]) -> str:
    """Return the table of everything for one number of workers and one order."""
    header = ["", "touch", "× ocrstore", "copy", "× ocrstore", "CPU ms", "own MB", "files MB"]
    header += ["build s", "disk MB", "cold epoch s", "first batch s"]
    chosen, body = chosen_cells(table), []
    for peer in peers:
        cells = chosen | ({"workers": 0} if peer.limit else {})
        line = [name_of(peer)]
        if not any(
            r.status == "ok" and r.cell.kind == "rate"
            for r in table.results
            if r.cell.peer == peer.name
        ):
            reason = table.why(peer.name) or "not measured"
            body.append([*line, f"no figures: {escape(reason)}", *[""] * (len(header) - 2)])
            continue
        for consumer in ("touch", "copy"):
            line.append(figure(table.spread("rate", "rate", peer.name, consumer=consumer, **cells)))
            line.append(ratio(table, peer, consumer, **cells))
        for name in ("cpu_ms", "own_mb", "files_mb"):
            line.append(figure(table.spread(name, "rate", peer.name, consumer="copy", **cells)))
        if peer.limit:
            line += ["–"] * 4
        else:
            line.append(figure(table.spread("build_s", "build", peer.name)))
            line.append(figure(table.spread("disk_mb", "build", peer.name)))
            line.append(figure(table.spread("cold_epoch_s", "cold", peer.name)))
            start = {"workers": chosen["workers"], "shuffle": True}
            line.append(figure(table.spread("first_batch_s", "start", peer.name, **start)))
        body.append(line)
    return rows(header, body)


def ratio(table: Table, peer: Peer, consumer: str, **cells: Any) -> str:
    """Return a peer's rate over ocrstore's; a limit is held against no workers, as it has none."""
    found = table.ratio("rate", "rate", peer.name, OURS, consumer=consumer, **cells)
    return "–" if found is None else f"{found:.2f}"


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def matrix(table: Table, peers: Sequence[Peer]) -> str:
    """Return a table of rates for each consumer and order, a column for each number of workers."""
    counts, parts = workers_of(table), []
    orders = sorted({r.cell.shuffle for r in table.results if r.cell.kind == "rate"})
    for consumer in ("touch", "copy"):
        for shuffle in orders:
            body = []
            for peer in peers:
                line = [name_of(peer)]
                for count in counts:
                    cells = {"workers": count, "shuffle": shuffle, "consumer": consumer}
                    spread = table.spread("rate", "rate", peer.name, **cells)
                    why = table.why(peer.name, kind="rate", **cells)
                    text = figure(spread, spread_too=True)
                    line.append(escape(why) if spread is None and why else text)
                if any(text != "–" for text in line[1:]):
                    body.append(line)
            title = f"**{consumer}, {'shuffled' if shuffle else 'sequential'}**"
            header = ["", *(f"{count} worker{'s' * (count != 1)}" for count in counts)]
            parts.append(f"{title}\n\n{rows(header, body)}")
    return "\n\n".join(parts)


def resources(table: Table, peers: Sequence[Peer]) -> str:
    """Return processor time and memory against the number of workers."""
    counts, shuffle, body = workers_of(table), order_of(table), []
    for peer in peers:
        line = [name_of(peer)]
        for name in ("cpu_ms", "own_mb"):
            for count in counts:
                cells = {"workers": count, "shuffle": shuffle, "consumer": "touch"}
                line.append(figure(table.spread(name, "rate", peer.name, **cells)))
        if any(text != "–" for text in line[1:]):
            body.append(line)
    header = ["", *(f"CPU, {count}" for count in counts), *(f"own, {count}" for count in counts)]
    return rows(header, body)


def losses(table: Table, peers: Sequence[Peer]) -> str:
    """List every cell in which a peer is better than ocrstore, by how much."""
    by_rate: dict[str, list[str]] = {}
    for peer in peers:
        if peer.name.startswith(OURS):
            continue
        for count in workers_of(table):
            for shuffle in (False, True):
                for consumer in ("touch", "copy"):
                    cells = {"workers": count, "shuffle": shuffle, "consumer": consumer}
                    found = table.ratio("rate", "rate", peer.name, OURS, **cells)
                    if found is not None and found > 1:
                        order = "shuffled" if shuffle else "sequential"
                        text = f"{count} workers, {order}, {consumer}: {found:.2f} times"
                        by_rate.setdefault(peer.title, []).append(text)
    lines = [f"* Faster: {title} ({'; '.join(cells)})." for title, cells in by_rate.items()]
    if not lines:
        lines.append("* Faster: none, in any cell.")
    chosen = chosen_cells(table)
    figures = {
        "Less disk space": ("disk_mb", "build", {}),
        "Built sooner": ("build_s", "build", {}),
        "Less processor time per sample, *copy*": ("cpu_ms", "rate", chosen | {"consumer": "copy"}),
        "Less own memory": ("own_mb", "rate", chosen | {"consumer": "copy"}),
        "A faster cold epoch": ("cold_epoch_s", "cold", {}),
        "A sooner first batch": ("first_batch_s", "start", {"workers": chosen["workers"]}),
    }
    for title, (name, kind, cells) in figures.items():
        mine = table.spread(name, kind, OURS, **cells)
        better = []
        for peer in peers:
            theirs = (
                None
                if peer.limit or peer.name.startswith(OURS)
                else table.spread(name, kind, peer.name, **cells)
            )
            if not mine or not theirs or theirs.median >= mine.median:
                continue
            if number(theirs.median) != number(mine.median):
                better.append(f"{peer.title} ({number(theirs.median)})")
        if better and mine:
            lines.append(f"* {title} than ocrstore's {number(mine.median)}: {', '.join(better)}.")
    return "\n".join(lines)


def described(table: Table, peers: Sequence[Peer]) -> str:
    """List the peers: version, how they are used, or why they are not."""
    body = []
    for peer in peers:
        found = [result for result in table.results if result.cell.peer == peer.name]
        version = next((r.versions for r in found if r.versions), "–")
        broken = [r.why for r in found if r.status in ("failed", "not installed")]
        note = f"Not measured: {broken[0]}" if broken else peer.note
        body.append([name_of(peer), version, escape(note)])
    lines = ["| | version | how |", "|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(line) + " |" for line in body)])


def factor(table: Table, jpeg_mb: float) -> str:
    spread = table.spread("disk_mb", "build", OURS)
    return number(spread.median / jpeg_mb) if spread and jpeg_mb else "–"
