"""Read a store behind a URL with workers, and compare each sample; prints lines of JSON.

remote_epochs.py URL SOURCE METHOD RANK REPLICAS EPOCHS SAMPLER [COLUMNS]
The variable LIMIT is the limit of the cache.
"""

import json
import os
import sys
import time
import warnings

import torch
from torch.utils.data import DataLoader

from ocrstore.torch import OCRStoreDataset, ResumableSampler, WindowShuffleSampler


def main():
    """Draw epochs; print which rows came, how many were wrong and when the first batch was here."""
    url, source, method, rank, replicas, epochs, kind, *columns = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begin = time.perf_counter()
    limit = os.environ.get("LIMIT")
    dataset = OCRStoreDataset(url, columns=columns or None, cache_limit=limit)
    local = OCRStoreDataset(source, columns=columns or None)
    make = {"window": WindowShuffleSampler, "full": ResumableSampler}[kind]
    sampler = make(dataset, seed=3, num_replicas=int(replicas), rank=int(rank))
    workers = {"num_workers": 2, "multiprocessing_context": method} if method != "none" else {}
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, **workers)
    for epoch in range(int(epochs)):
        sampler.set_epoch(epoch)
        rows, wrong, first = [], 0, None
        start = time.perf_counter()
        for batch in loader:
            first = first or time.perf_counter() - begin
            rows += batch["rows"].tolist()
            expected = local[batch["rows"].tolist()]
            for name in expected:
                if isinstance(expected[name], torch.Tensor):
                    wrong += not torch.equal(batch[name], expected[name])
        seconds = time.perf_counter() - start
        print(json.dumps({"rows": rows, "wrong": wrong, "first": first, "seconds": seconds}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
