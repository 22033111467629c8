"""Check ocrstore on the GPUs of this machine, and end in a table of passed, failed and skipped.

    python tools/gpu_check.py                 everything; some ten minutes
    python tools/gpu_check.py --only equality waiting

Writes gpu-check.json, which can be attached to a report. Exit code 1 if a check failed, 2 if there
is no GPU (CUDA or MPS): then nothing was checked.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import gpu_checks as checks

Check = Callable[[Path, str], dict[str, Any]]


def all_checks(folder: Path) -> dict[str, tuple[tuple[str, ...], Check]]:
    """Return for each check the kinds of devices that it is made for, and the function."""
    cuda, any_gpu = ("cuda",), ("cuda", "mps")
    return {
        "equality": (any_gpu, checks.equality),
        "contexts": (cuda, checks.contexts),
        "memory": (cuda, checks.memory),
        "transfers": (cuda, partial(checks.transfers, folder=folder)),
        "synchronisations": (cuda, checks.synchronisations),
        "waiting": (any_gpu, checks.waiting),
        "precisions": (any_gpu, partial(checks.precisions, folder=folder)),
        "recompiles": (cuda, partial(checks.recompiles, folder=folder)),
        "start methods": (cuda, checks.start_methods),
        "two GPUs": (cuda, partial(checks.two_gpus, folder=folder)),
        "killed rank": (cuda, partial(checks.killed_rank, folder=folder)),
    }


def run_check(kinds: tuple[str, ...], check: Check, store: Path, device: str) -> dict[str, Any]:
    """Run one check and return its result: passed, failed or skipped, with figures or a reason."""
    kind = device.partition(":")[0]
    began = time.perf_counter()
    try:
        if kind not in kinds:
            raise checks.Skipped(f"made for {' and '.join(kinds)}, this is {kind}")
        result = {"result": "passed", "figures": check(store, device)}
    except checks.Skipped as exc:
        result = {"result": "skipped", "reason": str(exc)}
    except checks.Failed as exc:
        result = {"result": "failed", "reason": str(exc)}
    except Exception as exc:
        reason = f"{type(exc).__name__}: {exc}"
        result = {"result": "failed", "reason": reason, "traceback": traceback.format_exc()}
    return {**result, "seconds": round(time.perf_counter() - began, 2)}


def describe_machine() -> dict[str, Any]:
    """Return what a report has to say about machine and software."""
    import torch

    import ocrstore

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "ocrstore": ocrstore.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "gpus": gpus,
        "mps": torch.backends.mps.is_available(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def find_device() -> str | None:
    """Return the device to check; None without a GPU."""
    import torch

    if torch.cuda.is_available():
        return "cuda:0"
    return "mps" if torch.backends.mps.is_available() else None


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("check", "result", "s", "figures, or why")
    colours = {"passed": "green", "failed": "red", "skipped": "yellow"}
    for name, result in results.items():
        figures = result.get("figures", {})
        shown = ", ".join(
            f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()
        )
        colour = colours[result["result"]]
        table.add_row(
            name,
            f"[{colour}]{result['result']}[/]",
            f"{result['seconds']:.1f}",
            shown or result.get("reason", ""),
        )
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--only", nargs="*", help="names of checks")
    parser.add_argument("--count", type=int, default=64, help="pictures to draw")
    options = parser.parse_args(arguments)
    device, machine = find_device(), describe_machine()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="ocrstore-gpu-") as name:
        folder = Path(name)
        known = all_checks(folder)
        wanted = options.only or list(known)
        unknown = set(wanted) - set(known)
        if unknown:
            parser.error(f"unknown checks {sorted(unknown)}: expected some of {list(known)}")
        if device is None:
            reason = "there is no GPU: torch finds neither CUDA nor MPS"
            results = {n: {"result": "skipped", "reason": reason, "seconds": 0.0} for n in wanted}
        else:
            store = checks.prepare(folder, count=options.count, size=640)
            for check in wanted:
                print(f"{check} ...", flush=True)
                results[check] = run_check(*known[check], store, device)
    options.out.write_text(
        json.dumps({"machine": machine, "device": device, "checks": results}, indent=1) + "\n"
    )
    show(results)
    print(f"written: {options.out}")
    if device is None:
        print("There is no GPU here (torch finds neither CUDA nor MPS): nothing was checked.")
        return 2
    return 1 if any(r["result"] == "failed" for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
