"""The table of bench_loader.py for a fresh process: how long to its first batch."""

from __future__ import annotations

import compileall
import inspect
import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from loader_contenders import SIZE, Mapped, make_plain_files

FIRST_BATCH = """
import os, sys, time
import torch
from torch.utils.data import DataLoader

def processor(workers):
    ticks = 0
    for worker in workers:
        with open(f"/proc/{{worker.pid}}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

sys.path[:0] = {paths!r}
from bench_loader_consumers import {consumer} as consume
stored = torch.zeros(16, {size}, {size}, 3, dtype=torch.uint8)
buffers = {{"images": stored.permute(0, 3, 1, 2) if {ours} else stored}}
for name in ("prob_maps", "thresh_maps"):
    buffers[name] = torch.zeros(16, 1, {size}, {size}, dtype=torch.float16)
started, spent = time.perf_counter(), processor(())
if {ours}:
    from ocrstore.torch import OCRStoreDataset
    dataset = OCRStoreDataset({path!r})
else:
    from pathlib import Path
    from bench_loader_mapped import Mapped
    dataset = Mapped(Path({folder!r}), {samples})
iterator = iter(DataLoader(dataset, 16, num_workers={workers}, shuffle=True))
batch = next(iterator)
consume(batch, buffers)
used = time.perf_counter()
print(used - started, processor(getattr(iterator, "_workers", ())) - spent)
"""


def install(folder: Path) -> Path:
    """Put the package and the contender where they are compiled, as an installer leaves them."""
    target = folder / "installed"
    shutil.rmtree(target, ignore_errors=True)
    root = Path(__file__).resolve().parents[1]
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "ocrstore", target / "ocrstore", ignore=without)
    shutil.copy(root / "tools/bench/consumers.py", target / "bench_loader_consumers.py")
    mapped = (
        "import numpy as np\nimport torch\nfrom pathlib import Path\n"
        f"from torch.utils.data import Dataset\nSIZE = {SIZE}\n{inspect.getsource(Mapped)}"
    )
    (target / "bench_loader_mapped.py").write_text(mapped)
    compileall.compile_dir(target, quiet=1)
    return target


def startup(path: Path, folder: Path, rounds: int) -> None:
    """Print the table; it takes a second for each process, so there are three in each round."""
    samples = make_plain_files(path, folder)
    installed = install(folder)
    print(
        "\nfresh process, after `import torch`, until its first batch of 16 (shuffled) is touched or"
        f" copied, median of\n{3 * rounds}: seconds by the clock (of processor time, workers"
        " included). Both deliver three tensors; ocrstore checks the\nfile and its index before, and"
        " its batch also has polygons, texts and names, read when asked for"
    )
    for workers, consumer in itertools.product((0, 2), ("touch", "copy")):
        given = {
            "paths": [str(installed)],
            "size": SIZE,
            "path": str(path),
            "folder": str(folder),
            "samples": samples,
            "workers": workers,
            "consumer": consumer,
        }
        times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for _ in range(3 * rounds):
            for ours in (True, False):
                times[ours].append(_first_batch(FIRST_BATCH.format(ours=ours, **given)))
        shown = []
        for name, ours in (("ocrstore", True), ("numpy.memmap", False)):
            clock, processor = (median([each[i] for each in times[ours]]) for i in (0, 1))
            shown.append(f"{name} {clock:.3f} ({processor:.3f})")
        ratios = [
            median([mine[i] / theirs[i] for mine, theirs in zip(times[True], times[False])])
            for i in (0, 1)
        ]
        print(
            f"{workers} workers {consumer:>5} | {' | '.join(shown)} |"
            f" {ratios[0]:.2f} ({ratios[1]:.2f})",
            flush=True,
        )


def _first_batch(code: str) -> tuple[float, float]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    clock, processor = done.stdout.split()
    return float(clock), float(processor)
