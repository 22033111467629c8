"""Attack every command for an hour: kills, failing and full disks, damage, hostile content.

    python -m tools.torture [--minutes 60] [--seed 0] [--state .torture/state.json]
    python -m tools.torture --seed 0 --case manifest:17         one case again, with its output

Each case has a random generator of its own (from seed, scenario and number), so it can be run
alone. After every command: exit code 0, 1 or 2 (130 and 143 for signals sent from here), no
traceback, no death by a signal that was not sent, no control characters in the output, no process
and no temporary file left. After every attack on a writer each file is as before or as after it,
and the same command run again ends as if nothing had happened. What `verify` accepts reads as
before the damage. Counts and findings are kept in the state file, and a further run goes on with
the next numbers; exit code 1 if it has findings.

Linux only. Full disks need the right to mount, else a limit on file sizes stands in.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tools.torture.bench import Bench
from tools.torture.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]


def campaign(bench: Bench, state: dict[str, Any], options: argparse.Namespace) -> None:
    """Run cases, of the scenario that had the least of its share, until time or cases are over."""
    end = time.monotonic() + options.minutes * 60
    names = options.only.split(",") if options.only else list(SCENARIOS)
    file: Path = options.state
    while options.cases or time.monotonic() < end:
        open_ = [n for n in names if not options.cases or state["cases"].get(n, 0) < options.cases]
        if not open_:
            break
        name = min(open_, key=lambda n: state["seconds"].get(n, 0) / SCENARIOS[n][1])
        number, begin = state["cases"].get(name, 0), time.monotonic()
        one_case(bench, state, name, number)
        state["cases"][name] = number + 1
        state["seconds"][name] = state["seconds"].get(name, 0) + time.monotonic() - begin
        file.with_suffix(".new").write_text(json.dumps(state, indent=1))
        file.with_suffix(".new").replace(file)


def one_case(bench: Bench, state: dict[str, Any], name: str, number: int) -> None:
    """Run one case and enter what it found."""
    SCENARIOS[name][0](bench, Random(f"{state['seed']}-{name}-{number}"))
    counts = Counter(state["codes"].get(name, {})) + bench.counts
    state["codes"][name] = dict(counts)
    for finding, command, text in bench.findings:
        command = command.replace(str(bench.folder), "")
        entry = state["findings"].setdefault(
            f"{name}: {command.split()[0]}: {finding}", {"count": 0}
        )
        if not entry["count"]:
            case = f"--seed {state['seed']} --case {name}:{number}"
            entry.update(case=case, command=command, output=text[-4000:])
            print(f"{name}:{number}: {command}: {finding}", flush=True)
        entry["count"] += 1
    bench.counts.clear()
    bench.findings.clear()


def summary(state: dict[str, Any]) -> str:
    """Return the counts as a table of Markdown."""
    codes = ("0", "1", "2", "130", "143", "killed")
    lines = [
        "| scenario | cases | commands | exit 0 | 1 | 2 | 130 | 143 | killed | findings |",
        "|---" * 10 + "|",
    ]
    for name in SCENARIOS:
        counts = state["codes"].get(name, {})
        found = sum(
            e["count"] for key, e in state["findings"].items() if key.startswith(f"{name}:")
        )
        cells = [
            name,
            state["cases"].get(name, 0),
            sum(counts.values()),
            *(counts.get(c, 0) for c in codes),
            found,
        ]
        lines.append("| " + " | ".join(f"{c:,}" if isinstance(c, int) else c for c in cells) + " |")
    return "\n".join(lines)


def with_faults() -> None:
    """Start this program again below the library that lets system calls fail."""
    library = Path(tempfile.gettempdir()) / f"ocrstore-faults-{os.getpid()}.so"
    code = ROOT / "tests" / "drivers" / "faults.c"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(code), "-ldl"], check=True
    )
    variables = {
        "LD_PRELOAD": str(library),
        "NO_ALBUMENTATIONS_UPDATE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tools.torture", *sys.argv[1:]],
        {**os.environ, **variables},
    )


def preload() -> None:
    """Import what commands import, once for all children, and keep to one thread."""
    import albumentations  # noqa: F401  # for the children
    import cv2
    import pyarrow as pa
    import torch
    import uvicorn  # noqa: F401  # for the children

    import ocrstore.cli
    import ocrstore.dbnet.train

    for command in ocrstore.cli.COMMANDS:
        ocrstore.cli.cli.get_command(None, command)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--cases", type=int, help="run so many cases of each scenario instead")
    parser.add_argument("--only", help=f"some of {','.join(SCENARIOS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path(".torture/state.json"))
    parser.add_argument("--case", help="scenario:number; run this case alone and show its output")
    options = parser.parse_args()
    if "ocrstore-faults" not in os.environ.get("LD_PRELOAD", ""):
        with_faults()
    preload()
    options.state.parent.mkdir(parents=True, exist_ok=True)
    state = {"seed": options.seed, "cases": {}, "seconds": {}, "codes": {}, "findings": {}}
    if options.state.exists() and not options.case:
        state = json.loads(options.state.read_text())
    print(f"seed {state['seed']}, cases so far: {sum(state['cases'].values())}", flush=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    # no TemporaryDirectory: children run what is registered for the end of a process
    folder = Path(tempfile.mkdtemp(prefix="ocrstore-torture-", dir=memory))
    bench = Bench(folder, loud=bool(options.case))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        bench.prepare()
        if options.case:
            name, _, number = options.case.partition(":")
            one_case(bench, state, name, int(number))
        else:
            campaign(bench, state, options)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the next case")
    finally:
        bench.close()
        shutil.rmtree(folder)
        Path(os.environ["LD_PRELOAD"]).unlink(missing_ok=True)
    print(f"\n{summary(state)}\n")
    for finding, entry in state["findings"].items():
        print(f"{entry['count']} x {finding}\n    {entry['case']}: {entry['command']}")
    sys.exit(bool(state["findings"]))


if __name__ == "__main__":
    main()
