"""The table of bench_loader.py for stored columns, against the limit and two ways by hand."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loader_contenders import (
    BATCH,
    Contender,
    Mapped,
    Rate,
    Ready,
    copy,
    copy_into,
    limits,
    make_plain_files,
    touch,
)

from ocrstore.torch import OCRStoreDataset

Results = dict[tuple[str, str], list[Rate]]
"""(who, consumer) -> a rate for each round."""


def compare_stored(path: Path, folder: Path, rounds: int, workers: list[int], threads: list[int]):
    """Print one table for each number of torch's threads in the consuming process."""
    samples = make_plain_files(path, folder)
    ours = OCRStoreDataset(path)
    ours.warm()
    by_hand = {"dict": Ready(path), "memmap": Mapped(folder, samples)}
    before = torch.get_num_threads()
    for count in threads:
        torch.set_num_threads(count)
        _print_head(samples, rounds, count)
        for number in workers:
            for shuffle in (False, True):
                results = _measure(ours, by_hand, number, shuffle, rounds)
                _print_rows(results, number, "shuffled" if shuffle else "sequential")
    torch.set_num_threads(before)


def _measure(ours, by_hand, workers: int, shuffle: bool, rounds: int) -> Results:
    mine = Contender(ours, workers, shuffle)
    others = {name: Contender(data, workers, shuffle) for name, data in by_hand.items()}
    for contender in (mine, *others.values()):  # start the workers, fill the page tables
        contender.run(touch, seconds=0)
    mine.run(copy, seconds=0)
    results: Results = {}

    def note(who: str, consumer: str, rate: Rate) -> None:
        results.setdefault((who, consumer), []).append(rate)

    for _ in range(rounds):
        for name, rate in limits().items():
            note("limit", name, rate)
        for name, consume in (("touch", touch), ("copy", copy)):
            note("ocrstore", name, mine.run(consume))
            for who, contender in others.items():
                note(who, name, contender.run(consume))
        note("ocrstore", "copy_into", mine.run(copy_into))
    return results


def _print_head(samples: int, rounds: int, threads: int) -> None:
    print(
        f"\nstored columns: {samples} samples, batch {BATCH}, median of {rounds} rounds, consumer"
        f" with {threads} torch thread{'s' * (threads > 1)}\n"
        "samples/s by the clock; of the limit by clock and by this process's processor time (the"
        " limit: the faster of memmove and of copy_ with these threads); times the same tensors"
        " through default collation, from a dict of ready tensors and from numpy.memmap"
    )
    print(
        "workers      order  consumer | ocrstore     dict   memmap    limit  memmove"
        " | of limit (cpu) |   x dict x memmap",
        flush=True,
    )


def _print_rows(results: Results, workers: int, order: str) -> None:
    for name in ("touch", "copy", "copy_into"):
        base = "copy" if name == "copy_into" else name
        mine = results["ocrstore", name]
        limit = results["limit", base]
        by_clock = _ratio(mine, limit, "clock")
        by_cpu = _ratio(mine, limit, "processor")
        shown = [mine, results["dict", base], results["memmap", base], limit]
        rates = [_median([rate.clock for rate in part]) for part in shown]
        alone = _median([rate.clock for rate in results["limit", "memmove"]])
        times = [_ratio(mine, results[who, base], "clock") for who in ("dict", "memmap")]
        print(
            f"{workers:>7} {order:>10} {name:>9} | {rates[0]:>8.0f} {rates[1]:>8.0f}"
            f" {rates[2]:>8.0f} {rates[3]:>8.0f} {alone if base == 'copy' else 0:>8.0f}"
            f" | {by_clock:>7.2f} ({by_cpu:.2f}) | {times[0]:>7.1f}x {times[1]:>7.1f}x",
            flush=True,
        )


def _ratio(mine: list[Rate], other: list[Rate], time: str) -> float:
    """Return the median over rounds of the ratio inside a round."""
    pairs = zip(mine, other, strict=True)
    return _median([getattr(m, time) / getattr(n, time) for m, n in pairs])


def _median(values: list[float]) -> float:
    return statistics.median(values)
