"""What a DataLoader delivers from a store, against the limit and against what people do by hand.

    python tools/bench_loader.py                   all tables
    python tools/bench_loader.py --only stored     only stored columns (also: augmented, startup)
    python tools/bench_loader.py --presets STORE   compressed columns of a real store against raw

Everything is measured in turns inside one run, and what counts are the ratios: a machine that is
busy is busy for all. Two consumers: *touch* reads one element of each page, *copy* copies every
byte into a reused buffer, as staging for a GPU does. The limit is the faster of memmove and
Tensor.copy_ from resident memory. Stored columns are measured twice: with one thread of torch in
the consumer, so that the limit is one core's memcpy, and with as many as torch takes by itself.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from loader_augmented import augmented
from loader_contenders import make_store
from loader_presets import compare_presets
from loader_startup import startup
from loader_stored import compare_stored


def main() -> None:
    by_itself = torch.get_num_threads()
    torch.set_num_threads(1)  # the workers need the other cores
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=404)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=sorted({1, by_itself}),
        help="of torch in the consumer of stored columns",
    )
    parser.add_argument("--only", choices=["stored", "augmented", "startup"])
    parser.add_argument("--presets", type=Path, help="only compare codecs, on the columns of this")
    parser.add_argument("--folder", type=Path, help="where to put the files (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.presets:
            torch.set_num_threads(max(options.threads))
            compare_presets(options.presets, folder, options.rounds, options.workers)
            return
        path = folder / "bench.ocrs"
        if not path.exists():
            make_store(path, options.samples)
        if options.only in (None, "stored"):
            compare_stored(path, folder, options.rounds, options.workers, options.threads)
        if options.only in (None, "augmented"):
            augmented(folder, options.rounds, min(options.samples, 160))
        if options.only in (None, "startup"):
            startup(path, folder, options.rounds)


if __name__ == "__main__":
    main()
