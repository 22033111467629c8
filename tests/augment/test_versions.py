"""Other versions of albumentations, each in a virtual environment of its own, and none at all."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = {
    "1.3.1": ["numpy==1.26.4", "opencv-python-headless==4.8.1.78"],
    "1.4.24": ["numpy==1.26.4", "opencv-python-headless==4.10.0.84"],
}


@pytest.fixture
def older_python(request, tmp_path):
    """Make an environment with one version of albumentations; torch and the rest are ours."""
    version = request.param
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    wanted = [f"albumentations=={version}", "pyarrow==21.0.0", *PINS[version]]
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("pip cannot install older versions of albumentations here")
    # after the installation, for which only the environment itself counts
    ours = sysconfig.get_paths()["purelib"]
    place = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    theirs = subprocess.run(place, capture_output=True, text=True, check=True).stdout.strip()
    (Path(theirs) / "zz_ours.pth").write_text(ours + "\n")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("older_python", PINS, indirect=True)
def test_polygons_and_recipes_of_an_older_version(older_python, request):
    """Polygons are right or an error, planned or not; recipes are baked, checked and recorded."""
    version = request.node.callspec.params["older_python"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_ALBUMENTATIONS_UPDATE": "1"}
    command = [older_python, ROOT / "tests" / "drivers" / "older_albumentations.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == version and found["numpy"] == "1.26.4"
    assert found["wrong"] == []
    usual = {"Affine", "HorizontalFlip", "PadIfNeeded", "RandomCrop", "Rotate", "ShiftScaleRotate"}
    assert usual <= set(found["right"])
    assert {"GridDistortion", "RandomGridShuffle", "MaskDropout"} <= set(found["refused"])
    assert found["vertices"] > 300 and found["different"] == 12
    assert found["made_with"] == f"albumentations {version}"
    assert "Rotate is random" in found["random"]
    # version 1.3 loses the position of the picture, which must not be guessed
    assert found["saved"] is True if version != "1.3.1" else "position: top_left" in found["saved"]
    assert found["samples"] == 3 and found["matches"] and found["prob_map"]


WITHOUT = """
import sys
sys.modules["albumentations"] = None  # an import of it fails
from ocrstore.cli import cli
from ocrstore.augment import BasicAugmentation
from ocrstore.torch import OCRStoreDataset

def run(*arguments):
    assert cli.main(arguments, standalone_mode=False) == 0


images, folder = sys.argv[1:]
store = folder + "/a.ocrs"
run("build", images, "--out", store, "--size", "64", "--workers", "0")
run("verify", store, "--source", images, "--workers", "0")
run("profile", store, "--samples", "4", "--repeats", "1")
sample = OCRStoreDataset(store, transform=BasicAugmentation(64, 64))[0]
assert sample["prob_map"].shape == (1, 64, 64)
options = "--epochs 1 --batch-size 2 --workers 0 --backbone resnet10 --width 16 --inner 16"
run("train", store, "--augment", "--out", folder + "/run", "--quiet", *options.split())
"""


def test_nothing_of_ours_needs_albumentations(drawn_folder, tmp_path):
    """Build, verify, profile, `transform=` and `train --augment` run where it is not installed."""
    pytest.importorskip("lightning")
    script = tmp_path / "without.py"
    script.write_text(WITHOUT)
    command = [sys.executable, str(script), str(drawn_folder / "images"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
