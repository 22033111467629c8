"""How fast are normalised float32 batches, against writing their bytes and against doing it by hand?

    python tools/bench_normalize.py val.ocrs                batches of 16, 7 rounds

    python tools/bench_normalize.py val.ocrs --threads 1    processor time, for a busy machine

The rounds are interleaved, and what counts are the ratios. All use the threads that torch has. With one
thread, processor time is measured: a busy machine does not change it much.

    write    fill the float32 tensors of a batch, which are in memory already, with a constant
    copy     copy a finished float32 batch into them: what a cache of tensors does
    store    `OCRStoreDataset(..., normalize=True)`, from the mapped file
    by hand  the same from uint8 and float16 tensors, as an adapter does it in torch
"""

from __future__ import annotations

import argparse
import time

import torch

from ocrstore.torch import OCRStoreDataset

TENSORS = ("images", "prob_maps", "thresh_maps", "prob_masks", "thresh_masks")
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    plain = OCRStoreDataset(options.store)
    floats = OCRStoreDataset(options.store, normalize=True)
    size = options.batch_size
    finished = {name: floats[:size][name].clone() for name in TENSORS if name in floats[:size]}
    buffers = {name: torch.zeros_like(tensor) for name, tensor in finished.items()}
    nbytes = sum(tensor.nbytes for tensor in finished.values())

    def write(_: int) -> None:
        for buffer in buffers.values():
            buffer.fill_(1.5)

    def copy(_: int) -> None:
        for name, buffer in buffers.items():
            buffer.copy_(finished[name])

    def store(first: int) -> None:
        batch = floats[first : first + size]
        for name in finished:
            batch[name]

    def by_hand(first: int) -> None:
        batch = plain[first : first + size]
        ((batch["images"].float() / 255) - MEAN) / STD
        for name in finished:
            if name != "images":
                batch[name].float()

    ways = (write, copy, store, by_hand)
    best = dict.fromkeys(ways, float("inf"))
    starts = range(0, max(1, len(plain) - size), size)
    for _ in range(options.rounds):
        for way in ways:
            for first in starts[:8]:
                began = clock()
                way(first)
                best[way] = min(best[way], clock() - began)
    print(
        f"{nbytes / 1e6:.0f} MB a batch, {torch.get_num_threads()} threads; the best of all batches"
    )
    for way in ways:
        print(
            f"{way.__name__:>8}: {1000 * best[way]:7.2f} ms {nbytes / 1e9 / best[way]:6.1f} GB/s"
            f" {best[write] / best[way]:5.2f} of writing, {best[copy] / best[way]:5.2f} of copying"
        )


if __name__ == "__main__":
    main()
