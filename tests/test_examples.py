"""The examples run, before and after their diff, and the switch changes nothing but the loading."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import ocrstore

EXAMPLES = Path(__file__).parents[1] / "examples"
OLD_PINS = (
    "numpy==1.26.4",
    "opencv-python-headless==4.8.1.78",
    "pyarrow==21.0.0",
    "pytorch-lightning==2.5.6",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pictures of the examples, and stores of them."""
    made = tmp_path_factory.mktemp("examples")
    subprocess.run([sys.executable, EXAMPLES / "pictures.py", made], check=True)
    for name in ("train", "val"):
        source = made / name
        report = ocrstore.build(
            source / "images", made / f"{name}.ocrs", annotations=source / "gt", size=256, workers=0
        )
        assert report.ok
    return made


def run(project, *arguments, python=sys.executable):
    """Run an example; return its lines and the record that it prints last."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(
        [python, "train.py", *map(str, arguments)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return lines, json.loads(lines[-1])


def switched(name, target):
    """Copy an example and apply its diff."""
    shutil.copytree(EXAMPLES / name, target)
    subprocess.run(["git", "apply", "ocrstore.diff"], cwd=target, check=True)
    return target


def test_a_plain_loop(folder, tmp_path):
    """The first loss is that of the same pictures, and the loop says what loading took."""
    pytest.importorskip("torch")
    _, before = run(EXAMPLES / "plain", folder)
    lines, after = run(switched("plain", tmp_path / "after"), folder)
    assert after["first_loss"] == pytest.approx(before["first_loss"], abs=1e-3)
    assert after["loss"] < 0.5 * after["first_loss"]
    assert any("page-cache hits" in line for line in lines)


@pytest.mark.slow
def test_a_lightning_project(folder, tmp_path):
    """The network before training sees the same data, and learns as much from it."""
    _, before = run(EXAMPLES / "lightning", f"folder={folder}")
    lines, after = run(switched("lightning", tmp_path / "after"), f"folder={folder}")
    assert after["untrained_loss"] == pytest.approx(before["untrained_loss"], abs=1e-3)
    assert min(before["hmean"], after["hmean"]) > 0.8
    assert any("page-cache hits" in line for line in lines)


@pytest.fixture(scope="module")
def old_python(tmp_path_factory):
    """An environment with the packages of an older project; torch and the rest are this one's."""
    root = tmp_path_factory.mktemp("old")
    venv.create(root, with_pip=True, symlinks=True)
    python = root / "bin" / "python"
    if not python.exists():
        pytest.skip("the folders of a virtual environment are others on this system")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", *OLD_PINS]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the old packages cannot be installed: {done.stderr.strip()[-200:]}")
    place = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # behind its own packages on the path, so that those win
    others = Path(place.stdout.strip(), "others.pth")
    others.write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.slow
def test_a_lightning_project_with_old_packages(folder, tmp_path, old_python):
    """numpy 1.26, opencv 4.8, pyarrow 21 and pytorch_lightning 2.5 are enough for the same diff."""
    versions = "import numpy as n, cv2 as c; print(n.__version__, c.__version__)"
    shown = subprocess.run([old_python, "-c", versions], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["1.26.4", "4.8.1"]
    options = [f"folder={folder}", "epochs=1"]
    _, before = run(EXAMPLES / "lightning", *options, python=old_python)
    _, after = run(switched("lightning", tmp_path / "after"), *options, python=old_python)
    assert after["untrained_loss"] == pytest.approx(before["untrained_loss"], abs=1e-3)
