"""What a loader and its workers take, added up as PSS, for 0, 1, 2, 4 and 8 workers.

    python tools/bench_memory.py                     two stores of different sizes, made for it
    python tools/bench_memory.py val.ocrs            a store of yours

*own* is anonymous and shared memory; pages of files are the page cache, one copy for all. *torch
alone* is the same loader on a data set of nothing: what interpreter and torch take by themselves.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from loader_contenders import make_store

from ocrstore.torch.doctor import measure

MB = 1e6


def table(path: Path, counts: list[int], context: str) -> None:
    nbytes = path.stat().st_size
    print(f"\n{path.name}: {nbytes / MB:.0f} MB, workers by {context}; MB of PSS, all processes")
    print(
        f"{'workers':>7} | {'own':>7} {'files':>7} {'RSS':>7} | {'torch alone':>11} |"
        f" {'store adds':>10} {'per worker':>10} | {'/dev/shm':>8}"
    )
    for count in counts:
        found = measure(str(path), workers=count, context=context)
        store, bare = found["store"], found["bare"]
        added = (store.own - bare.own) / MB
        each = added / max(count, 1)
        print(
            f"{count:>7} | {store.own / MB:>7.0f} {store.pss_file / MB:>7.0f} {store.rss / MB:>7.0f} |"
            f" {bare.own / MB:>11.0f} | {added:>10.1f} {each:>10.1f} | {found['shm'] / MB:>8.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", nargs="?", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--context", default="fork", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()
    if options.store:
        table(options.store, options.workers, options.context)
        return
    with tempfile.TemporaryDirectory() as folder:
        for samples in (100, 404):
            path = Path(folder) / f"{samples}.ocrs"
            make_store(path, samples)
            table(path, options.workers, options.context)


if __name__ == "__main__":
    main()
