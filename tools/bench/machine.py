"""What the page says about a run: the machine, the date, the versions, the command."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path


def about(command: str, source: str) -> dict[str, str]:
    """Describe this machine and this run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores of {_processor()}, {memory / 2**30:.0f} GB",
        "system": f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "torch": version("torch").partition("+")[0],
        "command": command,
        "pictures": source,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
