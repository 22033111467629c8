"""Installed from the wheel into environments of their own, without what ocrstore can do without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ocrstore
from tools.bench.peers import ffcv
from tools.lowest import lowest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PINNED = ROOT / "constraints.txt"


class Environment:
    """A virtual environment; commands run outside of the checkout, as a user's would."""

    def __init__(self, folder):
        self.folder = folder
        venv.create(folder / "venv", with_pip=True)
        self.python = folder / "venv" / "bin" / "python"

    def run(self, *arguments, cwd=None, **variables):
        """Run Python; returns the finished process."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=cwd or self.folder,
            env={**kept, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, *arguments):
        """Install packages."""
        done = self.run("-m", "pip", "install", "--quiet", *arguments)
        assert done.returncode == 0, done.stderr

    def share_ours(self):
        """Let it import what it lacks from this environment; after installing all it needs."""
        place = self.run("-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])")
        ours = sysconfig.get_paths()["purelib"]
        (Path(place.stdout.strip()) / "zz_ours.pth").write_text(ours + "\n")

    def has(self, package):
        """Tell whether a distribution is installed."""
        return self.run("-m", "pip", "show", package).returncode == 0


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build wheel and sdist from a checkout with a virtual environment inside."""
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "checkout"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "site", "data")
    shutil.copytree(ROOT, tree, ignore=left_out)
    for name in ("ocrstore", "tests", "docs", "tools"):
        inside = tree / "env" / "lib" / "site-packages" / name
        inside.mkdir(parents=True)
        (inside / "leaked.py").touch()
    builder = Environment(folder)
    builder.install("--constraint", PINNED, "hatchling")
    done = builder.run("-m", "hatchling", "build", cwd=tree)
    assert done.returncode == 0, done.stderr
    return tree / "dist"


@pytest.fixture
def drawn_store(drawn_folder, tmp_path):
    """Build a store of six drawn pictures, here, where everything is installed."""
    ocrstore.build(drawn_folder / "images", tmp_path / "drawn.ocrs", size=96, workers=0)
    return tmp_path / "drawn.ocrs"


def test_the_sdist_has_what_is_ours_only(dist):
    """Nothing of an environment inside the checkout, and nothing beside the listed folders."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [Path(*Path(name).parts[1:]) for name in archive.getnames()]
    assert not [name for name in names if name.name == "leaked.py"]
    folders = {name.parts[0] for name in names if len(name.parts) > 1}
    assert folders == {"ocrstore", "tests", "docs", "tools"}


READ = """
import sys
from importlib.util import find_spec
for name in ("cv2", "albumentations", "PIL", "lightning", "pytorch_lightning"):
    assert find_spec(name) is None, name
import numpy, pyarrow
assert numpy.__version__.startswith("1.26") and pyarrow.__version__.startswith("21.")
import ocrstore
from ocrstore.torch import OCRStoreDataset
from torch.utils.data import DataLoader
if __name__ == "__main__":
    store = ocrstore.open(sys.argv[1])
    assert ocrstore.verify(sys.argv[1]).ok
    dataset = OCRStoreDataset(sys.argv[1])
    for workers in (0, 2):
        seen = 0
        for batch in DataLoader(dataset, 4, shuffle=True, num_workers=workers):
            seen += len(batch["images"])
            assert batch["images"].shape[1:] == (3, 96, 96) and len(batch["polygons"][0])
        assert seen == len(dataset)
    print(store.fingerprint, [len(polygons) for polygons in dataset[0:6]["polygons"]])
"""


def test_reading_at_the_lower_bounds(dist, drawn_store, tmp_path):
    """numpy 1.26, pyarrow 21, torch; neither OpenCV nor albumentations nor Lightning."""
    environment = Environment(tmp_path)
    bounds = tmp_path / "bounds.txt"
    bounds.write_text("".join(f"{name}=={version}\n" for name, version in lowest().items()))
    (wheel,) = dist.glob("*.whl")
    environment.install("--constraint", bounds, f"{wheel}[torch]")
    (tmp_path / "read.py").write_text(READ)
    done = environment.run("read.py", drawn_store)
    with ocrstore.open(drawn_store) as store:
        expected = f"{store.fingerprint} {[6] * 6}\n"
    assert (done.stdout, done.stderr) == (expected, "")
    for command in (["verify"], ["inspect"], ["inspect", "--full"], ["warm"], ["doctor"]):
        done = environment.run("-m", "ocrstore", *command, drawn_store)
        assert done.returncode == 0, done.stderr
    done = environment.run("-m", "ocrstore", "build", tmp_path, "--out", "new.ocrs")
    assert 'needs cv2, which is missing: pip install "ocrstore[build]"' in done.stderr
    # pip lets this pass: pyarrow 26 does not say that it needs numpy 2
    newer = tmp_path / "newer"
    environment.install("--no-deps", "--target", newer, "pyarrow==26.0.1")
    done = environment.run("-c", "import ocrstore; ocrstore.open", PYTHONPATH=str(newer))
    assert "with numpy 1.26 pyarrow>=21,<26" in done.stderr


def test_pytorch_lightning_alone(dist, drawn_store, tmp_path):
    """Without the package `lightning`: modules, data modules, callbacks and `ocrstore train`."""
    environment = Environment(tmp_path)
    (wheel,) = dist.glob("*.whl")
    tools = ["hydra-core", "hypothesis", "psutil", "pytest", "pytest-timeout"]
    extras = "build,torch,pytorch-lightning"
    environment.install("--constraint", PINNED, f"{wheel}[{extras}]", *tools)
    assert environment.has("pytorch-lightning") and not environment.has("lightning")
    options = ["--epochs", "1", "--backbone", "resnet10", "--batch-size", "3", "--workers", "0"]
    done = environment.run(
        *("-m", "ocrstore", "train", drawn_store, "--out", tmp_path / "run", *options)
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "best.ckpt").exists()
    files = [
        "dbnet/test_lightning_packages.py",
        "dbnet/test_module.py",
        "torch_/test_datamodule.py",
    ]
    tests = [ROOT / "tests" / name for name in files]
    done = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:]


def test_dali(tmp_path):
    """`test_dali.py`, with DALI in an environment of its own, and everything else from here."""
    environment = Environment(tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (wanted,) = (line for line in project["optional-dependencies"]["dali"] if "nvidia" in line)
    done = environment.run("-m", "pip", "install", "-q", "--constraint", PINNED, wanted)
    if done.returncode:
        pytest.skip("pip cannot install DALI here")
    environment.share_ours()
    tests = ROOT / "tests" / "test_dali.py"
    options = ["-q", "-p", "no:cacheprovider", "-m", "not gpu"]
    done = environment.run("-m", "pytest", *options, tests, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout


BETON = """
import numpy as np
from ffcv.fields import JSONField, RGBImageField
from ffcv.writer import DatasetWriter
class Old:
    def __len__(self):
        return 3
    def __getitem__(self, row):
        pixels = np.full((48, 64, 3), (row, 9, 80), np.uint8)
        box = [1, 1, 40, 1, 40, 20, 1, 20]
        return pixels, {"name": f"sub/{row}.png", "polygons": [box], "texts": ["ö"]}
fields = {"image": RGBImageField(write_mode="raw"), "annotation": JSONField()}
DatasetWriter("old.beton", fields, num_workers=1).from_indexed_dataset(Old())
"""


def test_ffcv(tmp_path):
    """The lines of the migration guide, with FFCV compiled in an environment of its own."""
    needed = ["pkg-config", "--exists", *ffcv.LIBRARIES]
    if shutil.which("pkg-config") is None or subprocess.run(needed, check=False).returncode:
        pytest.skip(f"FFCV has to be compiled, which needs {', '.join(ffcv.LIBRARIES.values())}")
    environment = Environment(tmp_path)
    source, *others = ffcv.REQUIREMENTS
    environment.install("--constraint", PINNED, "numpy", *others)
    environment.install("--no-deps", "--no-build-isolation", source)
    environment.share_ours()
    guide = (ROOT / "docs" / "migration.md").read_text("utf-8").partition("## From FFCV")[2]
    lines = re.search(r"```python\n(.*?)```", guide, re.S)[1]
    for script in (BETON, lines):
        done = environment.run("-c", script, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr[-3000:]
    with ocrstore.open(tmp_path / "from_ffcv.ocrs") as store:
        assert store.keys == ("sub/0.png", "sub/1.png", "sub/2.png")
        for row in range(3):
            assert store["image"][row][5, 5].tolist() == [row, 9, 80]
            assert store.attributes(row)["polygons"] == [[1, 1, 40, 1, 40, 20, 1, 20]]
            assert store.attributes(row)["texts"] == ["ö"]
