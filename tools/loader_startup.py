"""The table of bench_loader.py for a fresh process: how long to its first batch."""

from __future__ import annotations

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
for name in ("images", "prob_maps", "thresh_maps"):
    batch[name].sum(dtype=torch.float32)
used = time.perf_counter()
print(used - started, processor(getattr(iterator, "_workers", ())) - spent)
"""


def install(folder: Path, mapped: str) -> Path:
    """Put the package and the contender where they are compiled, as an installer leaves them."""
    import compileall
    import shutil

    target = folder / "installed"
    shutil.rmtree(target, ignore_errors=True)
    sources = Path(__file__).resolve().parents[1] / "ocrstore"
    shutil.copytree(sources, target / "ocrstore", ignore=shutil.ignore_patterns("__pycache__"))
    (target / "bench_loader_mapped.py").write_text(mapped)
    compileall.compile_dir(target, quiet=1)
    return target


def startup(path: Path, folder: Path, rounds: int) -> None:
    import inspect

    samples = make_plain_files(path, folder)
    module = "import numpy as np\nimport torch\nfrom pathlib import Path\n"
    module += "from torch.utils.data import Dataset\n" + f"SIZE = {SIZE}\n"
    installed = install(folder, module + inspect.getsource(Mapped))
    print(
        "\nfresh process, after `import torch`, to the sums of the first batch of 16 (shuffled), median"
        f" of {rounds}:\nseconds by the clock (of processor time, workers included). Both deliver three"
        " tensors; ocrstore checks\nthe file and its index before, and its batch also has polygons, texts"
        " and names, read when asked for"
    )
    for workers in (0, 2):
        results: dict[bool, list[list[float]]] = {True: [], False: []}
        for _ in range(rounds):
            for ours in (True, False):
                code = FIRST_BATCH.format(
                    paths=[str(installed)],
                    ours=ours,
                    path=str(path),
                    folder=str(folder),
                    samples=samples,
                    workers=workers,
                )
                done = subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, check=True
                )
                results[ours].append([float(word) for word in done.stdout.split()])
        shown = []
        for name, ours in (("ocrstore", True), ("numpy.memmap", False)):
            clock, processor = (median([times[i] for times in results[ours]]) for i in (0, 1))
            shown.append(f"{name} {clock:.3f} ({processor:.3f})")
        ratios = [
            median([mine[i] / theirs[i] for mine, theirs in zip(results[True], results[False])])
            for i in (0, 1)
        ]
        print(f"{workers} workers | {' | '.join(shown)} | {ratios[0]:.2f} ({ratios[1]:.2f})")
