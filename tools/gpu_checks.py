"""The checks of `gpu_check.py`: each returns figures, or raises `Failed` or `Skipped`.

They take a device, so that their pieces run on the CPU too, where they show little.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

TENSORS = ("images", "prob_maps", "thresh_maps", "prob_masks", "thresh_masks")
NETWORK = {"backbone": "resnet18"}
"""The network whose steps are measured."""
ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """What was found is not what it should be."""


class Skipped(Exception):
    """The check makes no sense here; the message says why."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise Failed(message)


def prepare(folder: Path, *, count: int, size: int) -> Path:
    """Draw pictures and build a store of them."""
    sys.path.insert(0, str(ROOT / "tools"))
    from scenes import write_scenes

    from ocrstore.building.build import build

    write_scenes(folder, count)
    store = folder / "store.ocrs"
    build(folder / "images", store, annotations=folder / "gt", size=size, workers=0)
    return store


def make_loader(store: Path, device: str, *, batch_size: int = 4, **options: Any):
    from ocrstore.torch import OCRStoreDataset, PrefetchLoader, ResumableSampler

    dataset = OCRStoreDataset(store)
    sampler = ResumableSampler(dataset, seed=1)
    return PrefetchLoader(dataset, batch_size=batch_size, sampler=sampler, device=device, **options)


def sleep_on(device: str) -> None:
    """Keep the current stream busy, so that all that follows runs late."""
    import torch

    if device.startswith("cuda"):
        torch.cuda._sleep(20_000_000)


def equality(store: Path, device: str) -> dict[str, Any]:
    """Kernels that run late read the right tensors, however many batches are ahead."""
    import torch

    tensors = 0
    for ahead in (1, 2, 4):
        loader = make_loader(store, device, ahead=ahead)
        kept = []
        for _ in range(2):
            for batch in loader:
                sleep_on(device)
                kept.append((batch["rows"].tolist(), [batch[n].clone() for n in TENSORS]))
                del batch
        for rows, copies in kept:
            expected = loader.dataset[rows]
            for name, copied in zip(TENSORS, copies, strict=True):
                tensors += 1
                equal = torch.equal(copied.cpu(), expected[name])
                require(equal, f"{name} of rows {rows} differ with ahead={ahead}")
        loader.close()
    return {"tensors": tensors}


def contexts(store: Path, device: str) -> dict[str, Any]:
    """A process on the last GPU makes no context on the others."""
    import torch

    last = torch.cuda.device_count() - 1
    if last < 1:
        raise Skipped("one GPU: there is no other one")
    code = (
        "import sys, torch\n"
        "from tools.gpu_checks import make_loader\n"
        f"torch.cuda.set_device({last})\n"
        f"loader = make_loader({str(store)!r}, 'cuda:{last}')\n"
        "for batch in loader: batch['images'].sum()\n"
        f"print([i for i in range({last}) if torch._C._cuda_hasPrimaryContext(i)])\n"
    )
    printed = run_python("-c", code).strip()
    require(printed == "[]", f"contexts on GPUs {printed}")
    return {"gpu": last}


def memory(store: Path, device: str, *, passes: int = 40) -> dict[str, Any]:
    """Passes that are left early use the same memory again."""
    import torch

    loader = make_loader(store, device)
    used = []
    for number in range(passes):
        for position, batch in enumerate(loader):
            batch["images"].float().sum()
            del batch
            if position == number % 3:
                break
        if device.startswith("cuda"):
            torch.cuda.synchronize()
            stats = (
                torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
            )
            used.append(
                (torch.cuda.memory_reserved(device), stats.get("allocated_bytes.current", 0))
            )
        else:
            used.append((0, len(loader._unused_stages)))
    loader.close()
    settled = used[min(5, passes - 1)]
    require(used[-1] <= settled, f"after 6 passes {settled} bytes (device, host), then {used[-1]}")
    return {"device_mb": used[-1][0] / 1e6, "page_locked_mb": used[-1][1] / 1e6}


def read_trace(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return from a profiler's trace how copies to the device were made, and beside what."""
    copies = [e for e in events if e.get("cat") == "gpu_memcpy" and "HtoD" in e["name"]]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    overlap = sum(
        max(0.0, min(c["ts"] + c["dur"], k["ts"] + k["dur"]) - max(c["ts"], k["ts"]))
        for c in copies
        for k in kernels
    )
    return {
        "copies": len(copies),
        "pageable": sum("Pageable" in c["name"] for c in copies),
        "shared_streams": len(
            {c["args"]["stream"] for c in copies} & {k["args"]["stream"] for k in kernels}
        ),
        "overlapping": overlap / max(sum(c["dur"] for c in copies), 1e-9),
    }


def transfers(store: Path, device: str, *, folder: Path) -> dict[str, Any]:
    """All copies to the device come from page-locked memory, beside the kernels of the step."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = make_step(device)
    loader = make_loader(store, device)
    for batch in loader:
        step(batch)
    kinds = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as profiler:
        for batch in loader:
            step(batch)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    loader.close()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = read_trace(json.loads(path.read_text("utf-8"))["traceEvents"])
    if not device.startswith("cuda"):
        return found
    require(found["copies"] > 0, "the profiler saw no copy to the device")
    require(found["pageable"] == 0, f"{found['pageable']} copies from pageable memory")
    require(found["shared_streams"] == 0, "copies and kernels share a stream")
    require(found["overlapping"] > 0.2, f"{found['overlapping']:.0%} of the copies beside kernels")
    return found


def make_step(device: str):
    """Return a function that trains one step of a network, in float16 on a GPU."""
    import torch

    from ocrstore.dbnet.loss import dbnet_loss
    from ocrstore.dbnet.network import DBNet, ModelConfig

    kind = torch.device(device).type
    net = DBNet(ModelConfig(**NETWORK)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    dtype = torch.float16 if kind == "cuda" else torch.float32

    def step(batch: Any) -> Any:
        with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
            output = net(batch["images"], thresholds=True)
        maps = {name: batch[name] for name in TENSORS[1:]}
        loss = dbnet_loss(output, **maps).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def by_line(caught: list[Any], steps: int) -> dict[str, float]:
    """Return synchronisations per step for each line of code that made some."""
    lines = Counter(
        f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)
    )
    return {line: count / max(steps, 1) for line, count in lines.most_common()}


def synchronisations(store: Path, device: str) -> dict[str, Any]:
    """A step of the network and its loss waits for nothing."""
    import torch

    step, loader, steps = make_step(device), make_loader(store, device), 0
    for batch in loader:
        step(batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.startswith("cuda"):
            torch.cuda.set_sync_debug_mode("warn")
        try:
            for batch in loader:
                step(batch)
                steps += 1
        finally:
            if device.startswith("cuda"):
                torch.cuda.set_sync_debug_mode("default")
    loader.close()
    found = by_line(caught, steps)
    # the loader's thread waits for buffers; that is not the loop
    counted = {line: n for line, n in found.items() if not line.startswith("device.py")}
    require(sum(counted.values()) < 1, f"synchronisations per step: {counted}")
    return {"steps": steps, **found}


def waiting(store: Path, device: str, *, batch_size: int = 16, passes: int = 4) -> dict[str, Any]:
    """The loop hardly waits for its batches."""
    import torch

    step = make_step(device)
    loader = make_loader(store, device, batch_size=batch_size, drop_last=True)
    for batch in loader:
        step(batch)
    waited, count = 0.0, 0
    loss = torch.zeros(())
    began = time.perf_counter()
    for _ in range(passes):
        passing = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(passing, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            loss = step(batch)
            count += 1
    loss.item()
    whole = time.perf_counter() - began
    loader.close()
    if device.startswith("cuda"):
        require(waited / whole < 0.05, f"{waited / whole:.1%} of the time waiting for batches")
    return {"ms_per_step": 1000 * whole / max(count, 1), "waiting_percent": 100 * waited / whole}


def train(store: Path, folder: Path, **options: Any):
    """Train and return the result, with a record of each step's loss and scale."""
    import lightning as L

    from ocrstore.dbnet.network import ModelConfig
    from ocrstore.dbnet.train import TrainParams, fit

    losses: list[Any] = []
    scales: list[float] = []
    graphs: list[int] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            losses.append(outputs["loss"].detach())

        def on_train_epoch_end(self, trainer, module):
            import torch._dynamo

            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scales.append(1.0 if scaler is None else scaler.get_scale())
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    width, inner = options.pop("width", 64), options.pop("inner", 256)
    model = ModelConfig(backbone=options.pop("backbone", "resnet18"), width=width, inner=inner)
    params = TrainParams(**{"workers": 0, "lr": 3e-3, "check_every": 10, **options})
    done = fit(
        store, out=folder, model=model, params=params, quiet=True, force=True, callbacks=[Watch()]
    )
    finite = all(math.isfinite(float(loss)) for loss in losses)
    return done, {"steps": len(losses), "finite": finite, "scales": scales, "graphs": graphs}


def precisions(
    store: Path, device: str, *, folder: Path, epochs: int = 75, **options: Any
) -> dict[str, Any]:
    """300 steps in each precision: finite losses, a scale above 1, the same H-mean within noise."""
    accelerator = device.partition(":")[0]
    found = {}
    names = ("32", "bf16-mixed", "16-mixed") if accelerator != "cpu" else ("32", "bf16-mixed")
    for name in names:
        done, seen = train(
            store,
            folder / name,
            epochs=epochs,
            check_every=epochs,
            precision=name,
            accelerator=accelerator,
            devices=1,
            **options,
        )
        require(seen["finite"], f"{name}: a loss is not finite")
        if name == "16-mixed":
            require(min(seen["scales"]) > 1, f"{name}: the scale fell to {min(seen['scales'])}")
        found[name] = done.hmean
    spread = max(found.values()) - min(found.values())
    require(spread <= 0.1, f"H-means differ by {spread:.3f}: {found}")
    return found


def recompiles(store: Path, device: str, *, folder: Path, **options: Any) -> dict[str, Any]:
    """A compiled network is not compiled again after the first epoch and its validation."""
    _, seen = train(
        store,
        folder / "compiled",
        epochs=3,
        check_every=1,
        compiled=True,
        accelerator=device.partition(":")[0],
        devices=1,
        **{k: v for k, v in options.items() if k != "check_every"},
    )
    graphs = seen["graphs"]
    require(graphs[-1] == graphs[0], f"graphs after each epoch: {graphs}")
    return {"graphs": graphs[-1]}


def start_methods(store: Path, device: str) -> dict[str, Any]:
    """Workers that are forked, forkserved or spawned beside a GPU give the right batches."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.init()
        torch.ones(1, device=device)
    found = {}
    for method in torch.multiprocessing.get_all_start_methods():
        loader = make_loader(store, device, num_workers=2, multiprocessing_context=method)
        count = 0
        for batch in loader:
            expected = loader.dataset[batch["rows"].tolist()]["images"]
            require(torch.equal(batch["images"].cpu(), expected), f"{method}: batches differ")
            count += 1
        loader.close()
        found[method] = count
    return found


def run_python(*arguments: str, timeout: float = 900) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
    )
    require(done.returncode == 0, done.stderr.strip()[-400:])
    return done.stdout


def train_command(store: Path, out: Path, devices: int, epochs: int, *more: str) -> list[str]:
    return [
        *("-m", "ocrstore", "train", str(store), "--out", str(out), "--quiet", "--workers", "0"),
        *("--epochs", str(epochs), "--devices", str(devices), "--lr", "0.003", *more),
        *("--batch-size", str(8 // devices)),
    ]


def two_gpus(store: Path, device: str, *, folder: Path, epochs: int = 30) -> dict[str, Any]:
    """Two GPUs reach the H-mean of one; their checkpoint is resumed on one."""
    require_two()
    found = {}
    for devices in (1, 2):
        out = folder / f"on-{devices}"
        run_python(*train_command(store, out, devices, epochs))
        checkpoint = str(out / "last.ckpt")
        printed = run_python(
            *("-m", "ocrstore", "eval", str(store), "--checkpoint", checkpoint, "--json")
        )
        found[f"hmean_{devices}"] = json.loads(printed)["hmean"]
    require(abs(found["hmean_1"] - found["hmean_2"]) <= 0.1, f"H-means differ: {found}")
    more = ("--resume", str(folder / "on-2" / "last.ckpt"))
    run_python(*train_command(store, folder / "on-2", 1, epochs + 2, *more))
    return found


def killed_rank(store: Path, device: str, *, folder: Path) -> dict[str, Any]:
    """A training ends when one of its processes is killed."""
    import psutil

    require_two()
    out = folder / "killed"
    command = [sys.executable, *train_command(store, out, 2, 10_000)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while not (out / "last.ckpt").exists() and time.monotonic() < deadline:
            require(process.poll() is None, "the training ended before its first epoch")
            time.sleep(0.5)
        ranks = [c for c in psutil.Process(process.pid).children() if "train" in c.cmdline()]
        require(bool(ranks), "no second process was found")
        ranks[0].send_signal(signal.SIGKILL)
        began = time.monotonic()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            raise Failed("the other rank still runs 120 s after one was killed") from None
        return {"seconds": time.monotonic() - began}
    finally:
        if process.poll() is None:
            process.kill()


def require_two() -> None:
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        raise Skipped(f"needs two GPUs, found {count}")
