"""The suite's plots, from the results alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from tools.bench import style
from tools.bench.peers import Peer
from tools.bench.results import Table

WORKERS = 2
OURS = "ocrstore"


@style.applied
def draw_all(
    table: Table, about: Mapping[str, str], peers: Sequence[Peer], folder: Path
) -> dict[str, Path]:
    """Draw every plot for which there are figures; return them by name."""
    made = {
        "rates": rates(table, peers),
        "workers": against_workers(table, peers),
        "memory": memory(table, peers),
        "costs": costs(table, peers),
    }
    return {
        name: style.save(drawn, folder / f"benchmarks-{name}.svg", about)
        for name, drawn in made.items()
        if drawn is not None
    }


def workers_of(table: Table) -> list[int]:
    found = {r.cell.workers for r in table.results if r.cell.kind == "rate"}
    return sorted(workers for workers in found if workers is not None)


def order_of(table: Table) -> bool:
    """Return the order that plots show: shuffled, where that was measured."""
    return any(r.cell.shuffle for r in table.results if r.cell.kind == "rate")


def bars(axes: Any, values: Mapping[str, float], titles: Mapping[str, str], *, unit: str) -> None:
    """Draw horizontal bars in the order given, the first on top, with their figures."""
    names = list(values)
    places = range(len(names), 0, -1)
    axes.barh(places, values.values(), color=[style.colour(name) for name in names], height=0.72)
    axes.set_yticks(list(places), [titles[name] for name in names])
    emphasise(axes, names)
    most = max(values.values())
    for place, (name, value) in zip(places, values.items()):
        axes.annotate(
            number(value),
            (value, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=style.ACCENT if name.startswith(OURS) else style.FAINT,
            fontweight="bold" if name.startswith(OURS) else "normal",
        )
    axes.set_xlim(0, most * 1.16)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)


def emphasise(axes: Any, names: Sequence[str]) -> None:
    for label, name in zip(axes.get_yticklabels(), names):
        if name.startswith(OURS):
            label.set_color(style.ACCENT)
            label.set_fontweight("bold")
        elif name.startswith("limit"):
            label.set_color(style.LIMIT)
            label.set_fontstyle("italic")


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def medians(table: Table, figure: str, kind: str, peers: Sequence[Peer], **chosen: Any) -> dict:
    found = {p.name: table.spread(figure, kind, p.name, **chosen) for p in peers}
    return {name: spread.median for name, spread in found.items() if spread is not None}


def titles(peers: Sequence[Peer]) -> dict[str, str]:
    return {peer.name: peer.title for peer in peers}


def shown_workers(table: Table) -> int | None:
    counts = workers_of(table)
    return WORKERS if WORKERS in counts else max(counts, default=None)


def rates(table: Table, peers: Sequence[Peer]) -> Any:
    """Samples/s of all peers with two workers: touched and copied."""
    workers, shuffle = shown_workers(table), order_of(table)
    if workers is None:
        return None
    found = {}
    for consumer in ("touch", "copy"):
        chosen = {"shuffle": shuffle, "consumer": consumer}
        values = medians(table, "rate", "rate", peers, workers=workers, **chosen)
        limits = [peer for peer in peers if peer.limit]
        values |= medians(table, "rate", "rate", limits, workers=0, **chosen)
        found[consumer] = values
    if not any(found.values()):
        return None
    height = 1.5 + 0.27 * max(len(values) for values in found.values())
    drawn, both = style.figure(1, 2, figsize=(11.5, height), layout="constrained")
    for axes, (consumer, values) in zip(both, found.items()):
        # the bare view's touch is beyond all bounds: it would leave nothing of the other bars
        shown = {n: v for n, v in values.items() if n != "limit_view" or consumer == "copy"}
        if not shown:  # a run that was stopped early
            axes.axis("off")
            continue
        ordered = dict(sorted(shown.items(), key=lambda item: -item[1]))
        bars(axes, ordered, titles(peers), unit="samples/s")
        what = "one element of each page read" if consumer == "touch" else "every byte copied"
        axes.set_title(f"{consumer}: {what}")
    order = "shuffled" if shuffle else "sequential"
    style.headline(
        drawn, f"What a loop gets with {workers} workers, {order}, batches of 16, page cache warm"
    )
    return drawn


def against_workers(table: Table, peers: Sequence[Peer]) -> Any:
    """Samples/s against the number of workers."""
    counts, shuffle = workers_of(table), order_of(table)
    if len(counts) < 2:
        return None
    drawn, both = style.figure(1, 2, figsize=(11.5, 5.6), layout="constrained")
    for axes, consumer in zip(both, ("touch", "copy")):
        ends = []
        for peer in peers:
            if peer.limit:
                continue
            found = {
                count: table.spread(
                    "rate", "rate", peer.name, workers=count, shuffle=shuffle, consumer=consumer
                )
                for count in counts
            }
            line = {count: spread.median for count, spread in found.items() if spread}
            if not line:
                continue
            ours = peer.name.startswith(OURS)
            axes.plot(
                line.keys(),
                line.values(),
                color=style.colour(peer.name),
                linewidth=2.6 if ours else 1.3,
                marker="o",
                markersize=5 if ours else 3,
                zorder=3 if ours else 2,
            )
            ends.append((line[max(line)], max(line), peer.name))
        axes.set_yscale("log")
        axes.set_xticks(counts)
        axes.set_xlabel("workers")
        axes.set_ylabel("samples/s")
        axes.set_title(consumer)
        axes.grid(axis="y")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_minor_locator(NullLocator())
        label_ends(axes, ends, titles(peers), counts[-1])
    order = "shuffled" if shuffle else "sequential"
    style.headline(drawn, f"Samples/s against the number of workers, {order} (logarithmic)")
    return drawn


def label_ends(axes: Any, ends: list, named: Mapping[str, str], last: int) -> None:
    """Write the peers' names beside the ends of their lines, none over another."""
    low, high = axes.get_ylim()
    step = math.log(high / low) / 22  # so many lines of text fit the height
    ends = sorted(ends)
    places = spread_out([math.log(value) for value, _, _ in ends], step)
    for (value, end, name), place in zip(ends, places):
        ours = name.startswith(OURS)
        axes.annotate(
            named[name],
            (end, value),
            xytext=(last * 1.17, math.exp(place)),
            textcoords="data",
            va="center",
            fontsize=8.5,
            color=style.ACCENT if ours else style.INK,
            fontweight="bold" if ours else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": "#cbd5e1",
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkB": 4,
            },
        )
    axes.set_ylim(min(low, math.exp(places[0] - step)), max(high, math.exp(places[-1] + step)))
    axes.set_xlim(-0.15, last * 1.85)
    axes.spines["bottom"].set_bounds(0, last)


def spread_out(wanted: Sequence[float], step: float) -> list[float]:
    """Move rising values as little as possible until they are a step apart."""
    groups: list[
        list[float]
    ] = []  # each: the sum of the members' wishes for the first, their number
    for value in wanted:
        groups.append([value, 1])
        while len(groups) > 1:
            (above, more), (below, fewer) = groups[-1], groups[-2]
            if below / fewer + fewer * step <= above / more:
                break
            # members of the upper group stand `fewer` steps above the first of the joint one
            groups[-2:] = [[below + above - more * fewer * step, fewer + more]]
    return [total / count + n * step for total, count in groups for n in range(int(count))]


def memory(table: Table, peers: Sequence[Peer]) -> Any:
    """What the processes take: own memory, and pages of files, which all share."""
    counts, shuffle = workers_of(table), order_of(table)
    if not counts:
        return None
    workers = counts[-1]
    chosen = {"workers": workers, "shuffle": shuffle, "consumer": "touch"}
    own = medians(table, "own_mb", "rate", peers, **chosen)
    files = medians(table, "files_mb", "rate", peers, **chosen)
    if not own:
        return None
    ordered = dict(sorted(own.items(), key=lambda item: item[1]))
    drawn, axes = style.figure(figsize=(9, 1.5 + 0.3 * len(own)), layout="constrained")
    bars(axes, ordered, titles(peers), unit="MB of PSS, the loop's process and all its workers")
    places = range(len(ordered), 0, -1)
    second = [style.SECOND if name == OURS else style.SECOND_OTHER for name in ordered]
    lengths = [files[name] for name in ordered]
    for text in list(axes.texts):
        text.remove()
    axes.barh(places, lengths, left=list(ordered.values()), color=second, height=0.72)
    for place, (name, value) in zip(places, ordered.items()):
        axes.annotate(
            f"{value:,.0f} + {files[name]:,.0f}",
            (value + files[name], place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=style.ACCENT if name.startswith(OURS) else style.FAINT,
            fontweight="bold" if name.startswith(OURS) else "normal",
        )
    axes.set_xlim(0, 1.2 * max(a + b for a, b in zip(ordered.values(), lengths)))
    axes.set_title(
        f"Memory with {workers} workers: their own (dark), and pages of files (light),\n"
        "which are the page cache: one copy for all processes, given back when needed"
    )
    style.keep_room(drawn)
    return drawn


def costs(table: Table, peers: Sequence[Peer]) -> Any:
    """Processor time, build time, disk space, cold epoch and first batch, side by side."""
    workers, shuffle = shown_workers(table), order_of(table)
    compared = [peer for peer in peers if not peer.limit and "touch" in peer.measured]
    chosen = {"workers": workers, "shuffle": shuffle, "consumer": "copy"}
    starts = {"workers": workers, "shuffle": True}
    panels = {
        "CPU ms per sample": medians(table, "cpu_ms", "rate", compared, **chosen),
        "first batch, s": medians(table, "first_batch_s", "start", compared, **starts),
        "cold epoch, s": medians(table, "cold_epoch_s", "cold", compared),
        "build, s": medians(table, "build_s", "build", compared),
        "disk, MB": medians(table, "disk_mb", "build", compared),
    }
    panels = {title: values for title, values in panels.items() if values}
    names = [p.name for p in compared if any(p.name in values for values in panels.values())]
    if not panels:
        return None
    drawn, all_axes = style.figure(
        1, len(panels), figsize=(12.5, 1.5 + 0.28 * len(names)), layout="constrained", squeeze=False
    )
    for column, (axes, (title, values)) in enumerate(zip(all_axes[0], panels.items())):
        bars(axes, {name: values.get(name, 0.0) for name in names}, titles(peers), unit="")
        for text, name in zip(list(axes.texts), names):
            if name not in values:
                text.set_text("–")
        if column:
            axes.set_yticklabels([])
        axes.set_xlim(0, 1.45 * max(values.values()))
        axes.set_title(title)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
    style.headline(drawn, "What it costs besides (less is better)")
    return drawn
