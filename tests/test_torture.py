"""The quick form of the campaign in tools/torture: two cases of every attack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, mounts, preloads a library")
@pytest.mark.skipif(shutil.which("cc") is None, reason="compiles the library of failing calls")
@pytest.mark.parametrize(
    "scenarios",
    [
        "kill,fault,full,beside,damage,source",
        "manifest,attributes,names,recipe,checkpoint",
    ],
)
def test_nothing_is_found(tmp_path, scenarios):
    """Kills, faults, full disks, damage, hostile content: no traceback, no half file, no lie."""
    pytest.importorskip("ocrstore.torch.lightning_bases", reason="attacks train and predict, too")
    pytest.importorskip("uvicorn", reason="attacks the viewer, too")
    command = [sys.executable, "-m", "tools.torture", "--cases", "2", "--only", scenarios]
    done = subprocess.run(
        [*command, "--state", str(tmp_path / "state.json")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    for name in scenarios.split(","):
        assert f"| {name} | 2 |" in done.stdout
