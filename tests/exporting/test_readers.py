"""Exports read by the tools they are for, in an environment of their own; real pictures."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import ocrstore
from tests.exporting.test_export import PICTURES, ROOT, content, samples, source_of

REAL = os.environ.get("OCRSTORE_PICTURES")
READERS = ["webdataset", "datasets", "pycocotools", "pillow", "numpy"]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the other tools."""
    place = tmp_path_factory.mktemp("readers") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*install, *READERS], capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"pip cannot install {', '.join(READERS)}: {done.stderr[-200:]}")
    return python


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Ten samples, among them turned, not annotated and oddly named ones."""
    path = tmp_path_factory.mktemp("store") / "val.ocrs"
    ocrstore.build(samples(), path, size=64, workers=0)
    return path


def run(python, code, *arguments, **variables):
    """Run a script that prints one line of JSON; return it."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", **variables}
    command = [str(python), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


PYCOCOTOOLS = """
import json, sys
from pycocotools.coco import COCO
coco = COCO(sys.argv[1] + "/annotations.json")
found = {}
for image in coco.loadImgs(coco.getImgIds()):
    annotations = coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]]))
    found[image["file_name"]] = [
        [a["utf8_string"], a["iscrowd"], a["area"], int(coco.annToMask(a).sum()), a["bbox"]]
        for a in annotations
    ]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_pycocotools(python, store, tmp_path):
    """It loads the file; masks that it draws have the area that we wrote."""
    ocrstore.export(store, to="coco", out=tmp_path / "coco")
    found = run(python, PYCOCOTOOLS, tmp_path / "coco")
    assert len(found) == 9 and "images/nobody.jpg" not in found
    texts = {text for regions in found.values() for text, *_ in regions}
    assert "日本語" in texts and "Straße, 12" in texts
    for _, ignored, area, drawn, box in (region for r in found.values() for region in r):
        assert ignored in (0, 1) and abs(area - drawn) < 0.25 * area and len(box) == 4


DATASETS = """
import json, sys, hashlib
import numpy as np
from datasets import load_dataset
def facts(row):
    pixels = np.asarray(row["image"].convert("RGB"))
    return [row["key"], hashlib.sha256(pixels.tobytes()).hexdigest(), row["width"], row["objects"]]
whole = load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
streamed = load_dataset(sys.argv[1], split="train", streaming=True)
features = {name: type(feature).__name__ for name, feature in whole.features.items()}
print(json.dumps([features, list(map(facts, whole)), list(map(facts, streamed))]))
"""


@pytest.mark.slow
def test_datasets(python, store, tmp_path):
    """`load_dataset` of the folder, also streaming: pictures, texts, polygons, null objects."""
    ocrstore.export(store, to="hf", out=tmp_path / "hf", shard_size=100_000)
    assert len(list((tmp_path / "hf" / "data").iterdir())) > 1
    features, whole, streamed = run(python, DATASETS, tmp_path / "hf", tmp_path / "cache")
    assert features["image"] == "Image" and whole == streamed and len(whole) == 10
    with ocrstore.open(store) as opened:
        for key, digest, width, objects in whole:
            row = opened.row(key)
            own = opened.attributes(row)
            assert digest == hash_of(opened["image"][row]) and width == own["width"]
            if not own["annotated"]:
                assert objects is None or not objects["text"]
                continue
            assert objects["text"] == own["texts"] and objects["ignore"] == own["ignored"]
            given = [np.float32(points).tolist() for points in own["polygons"]]
            assert [np.float32(points).tolist() for points in objects["segmentation"]] == given


@pytest.mark.slow
def test_datasets_loads_what_replaced_another(python, store, tmp_path):
    """An export of other samples to the same folder is not taken from the cache of `datasets`."""
    for keys in (None, ["a.jpg"]):
        ocrstore.export(store, to="hf", out=tmp_path / "hf", keys=keys, overwrite=True)
        _, whole, streamed = run(python, DATASETS, tmp_path / "hf", tmp_path / "cache")
        assert len(whole) == len(streamed) == (10 if keys is None else 1)


def hash_of(array):
    """The hash of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


FACTS = """
import hashlib
import numpy as np, torch
def facts(value):
    if isinstance(value, torch.Tensor):
        digest = hashlib.sha256(value.numpy().tobytes()).hexdigest()
        return [str(value.dtype), list(value.shape), digest]
    if isinstance(value, (list, tuple)):
        return [facts(v) for v in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
"""
WEBDATASET = f"""{FACTS}
import json, sys
from webdataset_train import make_loader
loader = make_loader(sys.argv[1], batch_size=1, workers=2)
print(json.dumps([{{name: facts(value) for name, value in batch.items()}} for batch in loader]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["", "without whole pictures"])
def test_webdataset_example(python, store, tmp_path, whole):
    """Each sample once, by two workers; batches equal to those of OCRStoreDataset."""
    pytest.importorskip("torch", reason="the example needs torch")
    from torch.utils.data import DataLoader

    from ocrstore.torch import OCRStoreDataset
    from ocrstore.torch.annotations import ON_ACCESS

    if not whole:
        store = tmp_path / "val.ocrs"
        columns = ["tensor", "inverse_matrix", "prob_map", "prob_mask"]
        ocrstore.build(samples(), store, size=48, workers=0, columns=columns)
    shard_size = 300_000 if whole else 60_000
    ocrstore.export(store, to="webdataset", out=tmp_path / "out", shard_size=shard_size)
    shards = tmp_path / "out" / "val-*.tar"
    # the torch of these tests: to install another one takes minutes
    path = os.pathsep.join((str(ROOT / "examples"), sysconfig.get_path("purelib")))
    made = run(python, WEBDATASET, shards, PYTHONPATH=path)
    found = {batch["image_filename"][0]: batch for batch in made}
    scope = {}
    exec(FACTS, scope)
    facts = scope["facts"]
    batches = list(DataLoader(OCRStoreDataset(store), batch_size=1))
    assert len(found) == len(batches) == 10
    for batch in batches:
        own = {name: facts(value) for name, value in batch.items() if name not in ON_ACCESS}
        other = found[batch["image_filename"][0]]
        assert other.pop("annotated") == facts(list(batch["annotated"]))
        (polygons,), (moved,) = own.pop("polygons"), other.pop("polygons")
        assert other == own and len(moved) == len(polygons)
        for ours, theirs in zip(polygons, moved, strict=True):
            assert np.allclose(ours, theirs, rtol=0, atol=1e-4)  # both round to float32
    # two ranks: shards of their own, together all
    ranks = [
        run(python, WEBDATASET, shards, PYTHONPATH=path, RANK=str(rank), WORLD_SIZE="2")
        for rank in range(2)
    ]
    keys = [[batch["image_filename"][0] for batch in batches] for batches in ranks]
    assert sorted(keys[0] + keys[1]) == sorted(found) and keys[0] and keys[1]
    script = [str(python), "examples/webdataset_train.py", str(shards), "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0 and "loss" in done.stdout, done.stderr[-2000:]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Stores of all real pictures."""
    if not REAL:
        pytest.skip("set OCRSTORE_PICTURES to a folder of real pictures")
    folder = tmp_path_factory.mktemp("real")
    for name in ("icdar2015", "sroie"):
        source = Path(REAL) / name
        ocrstore.build(source / "images", folder / name, size=32, columns=["image", "tensor"])
    return folder


@pytest.mark.slow
@pytest.mark.pictures
@pytest.mark.parametrize("to", PICTURES)
def test_real_pictures(real, tmp_path, to):
    """All of both sets come back with their keys, pixels, polygons, texts and flags."""
    for name in ("icdar2015", "sroie"):
        out, again = tmp_path / name, tmp_path / f"{name}.ocrs"
        ocrstore.export(real / name, to=to, out=out)
        ocrstore.build(source_of(out, to), again, size=32, columns=["image", "tensor"])
        assert content(again) == content(real / name)
