"""Every command on files of strangers: code that they name does not run, escapes are shown."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
import pytest

import ocrstore
from ocrstore import cli, pipeline
from ocrstore.errors import SchemaError
from ocrstore.recipe import Recipe

torch = pytest.importorskip("torch")
albumentations = pytest.importorskip("albumentations")
pytest.importorskip("ocrstore.torch.lightning_bases")
pytest.importorskip("obstore")

# what Lightning warns of in a small training is meant here
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
]

EVIL = {"__class_fullname__": "evil.Boom", "p": 1.0}
BOX = "5,5,60,5,60,30,5,30,word\n"


def write_source(root, *, folder="images", names=("a.jpg", "b.jpg")):
    """Write small pictures with ICDAR annotations beside their folder."""
    images, gt = root / folder, root / "gt"
    images.mkdir()
    gt.mkdir()
    for seed, name in enumerate(names):
        pixels = np.random.default_rng(seed).integers(0, 256, (60, 80, 3), np.uint8)
        (images / name).write_bytes(cv2.imencode(".jpg", pixels)[1].tobytes())
        (gt / f"gt_{Path(name).stem}.txt").write_text(BOX)
    return images


def write_checkpoint(path, recipe):
    """Write a checkpoint of a small network with random weights that names a recipe."""
    from ocrstore.dbnet.checkpoint import KEY
    from ocrstore.dbnet.network import DBNet, ModelConfig
    from ocrstore.evaluation.postprocess import PostParams

    model = ModelConfig(backbone="resnet10", width=16, inner=32)
    record = {
        "model": model.to_json(),
        "post": asdict(PostParams()),
        "provenance": {"store_fingerprint": "f" * 64, "recipe": recipe, "view": "64"},
    }
    weights = {f"net.{name}": tensor for name, tensor in DBNet(model).state_dict().items()}
    torch.save({"global_step": 0, "state_dict": weights, KEY: record}, path)


def all_commands(store, images, checkpoint, recipe, out):
    """Return a call of every command, by its name; some several times."""
    train = ["--backbone", "resnet10", "--width", 16, "--inner", 32, "--precision", 32, "--quiet"]
    train += ["--epochs", 1, "--workers", 0, "--batch-size", 2, "--device", "cpu"]
    return [
        ("inspect", store),
        ("inspect", store, "--json"),
        ("inspect", store, "--full", "--source", images),
        ("inspect", store, "--diff", store),
        ("verify", store),
        ("verify", store, "--source", images, "--annotations", images.parent / "gt"),
        ("verify", store, "--source", images, "--workers", 1, "--json"),
        ("build", images, "--out", store),
        ("build", images, "--out", store, "--dry-run"),
        ("build", images, "--out", out / "new.ocrs", "--recipe", recipe, "--workers", 0),
        ("add-view", store, "--size", 32),
        ("add-view", store, "--recipe", recipe, "--view", "b"),
        ("report", store, "--out", out / "report.html"),
        ("export", store, "--to", "csv", "--out", out / "index.csv"),
        ("export", store, "--to", "coco", "--out", out / "coco"),
        ("export", store, "--to", "webdataset", "--out", out / "shards"),
        ("export-model", checkpoint, "--to", "torchvision", "--out", out / "model.pth"),
        ("warm", store),
        ("doctor", store, "--workers", 0),
        ("profile", store, "--samples", 1, "--repeats", 1),
        ("profile", store, "--transform", recipe, "--samples", 1, "--repeats", 1),
        ("predict", images, "--checkpoint", checkpoint, "--out", out / "boxes", "--quiet"),
        ("eval", store, "--oracle"),
        ("eval", store, "--checkpoint", checkpoint),
        ("eval", store, "--checkpoint", checkpoint, "--any-recipe"),
        ("train", store, "--out", out / "run", *train),
        ("train", store, "--out", out / "run2", "--resume", checkpoint, *train),
        ("view", store, "--predictions", images, "--no-browser"),
        ("compact", store),
        ("gc", out),
        ("completion", "bash"),
        ("export-model", checkpoint, "--to", "db", "--out", out / "a.pth"),
        ("convert", store, out / "converted.ocrs", "--preset", "small"),
        ("push", store, (out / "bucket").as_uri() + "/pushed.ocrs"),
        ("pull", (out / "bucket").as_uri() + "/pushed.ocrs", out / "pulled.ocrs"),
    ]


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line as the shell would; returns exit code, standard output and error."""
    from ocrstore.viewer.app import Viewer

    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(Viewer, "run", lambda *_, **__: None)  # it would wait for Ctrl-C

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ocrstore", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module in the way of imports that leaves a file when it is imported; returns the file."""
    mark = tmp_path / "was imported"
    (tmp_path / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
        "import albumentations as A\n\n\nclass Boom(A.HorizontalFlip):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(pipeline, "_permitted", set())
    yield mark
    sys.modules.pop("evil", None)


def evil_store(path, images, **changes):
    """Build a store whose recipe names the class `evil.Boom`, as its manifest says."""
    ocrstore.build(images, path, size=64, workers=0)
    with ocrstore.edit(path) as writer:
        views = json.loads(json.dumps(writer.metadata["views"]))
        views["64"]["recipe"] |= {"pipeline": EVIL, "geometry": "pipeline", **changes}
        writer.metadata["views"] = views
    return path


def test_no_command_imports_what_a_file_names(run, evil, tmp_path):
    """A store, a checkpoint and a recipe file that name a class: no command runs its module."""
    images = write_source(tmp_path)
    store = evil_store(tmp_path / "a.ocrs", images)
    recipe = {**Recipe.make(size=64).to_json(), "pipeline": EVIL, "geometry": "pipeline"}
    write_checkpoint(tmp_path / "a.ckpt", recipe)
    (tmp_path / "evil.json").write_text(json.dumps({"transform": EVIL}))
    commands = all_commands(
        store, images, tmp_path / "a.ckpt", tmp_path / "evil.json", tmp_path / "out"
    )
    (tmp_path / "out").mkdir()
    assert {name for name, *_ in commands} == set(cli.COMMANDS)
    refused = 0
    for command in commands:
        code, _, err = run(*command)
        assert not evil.exists() and "evil" not in sys.modules, command
        assert code in (0, 1, 2) and "Traceback" not in err, (command, code, err)
        refused += code == 2 and "--allow-module evil" in err
    assert refused >= 7  # build, build --recipe, add-view, verify --source, predict, profile


@pytest.mark.parametrize(
    "recipe",
    [
        {"_target_": "evil.Boom"},
        {"_target_": "albumentations.Compose", "transforms": [{"_target_": "evil.Boom"}]},
        {"targets": "evil:Boom"},
        {"targets": {"function": "evil:Boom", "version": "1", "arrays": {}}},
        {"pipeline": {"_target_": "evil.Boom"}, "targets": "evil:Boom"},
    ],
)
def test_nodes_and_targets_of_a_file_are_not_imported(run, evil, tmp_path, recipe):
    """A Hydra node and a target function of a recipe file are refused, with the option to give."""
    images = write_source(tmp_path)
    (tmp_path / "evil.json").write_text(json.dumps(recipe))
    code, _, err = run(
        "build", images, "--out", tmp_path / "a.ocrs", "--recipe", tmp_path / "evil.json"
    )
    assert code == 2 and not evil.exists() and "evil" not in sys.modules
    assert "--allow-module evil" in err or "--targets evil:Boom" in err


def test_what_the_user_allows_is_imported(run, evil, tmp_path):
    """--allow-module imports the module here and in workers; the next call needs it again."""
    images = write_source(tmp_path)
    (tmp_path / "evil.json").write_text(json.dumps({"transform": EVIL}))
    store = tmp_path / "a.ocrs"
    call = ("build", images, "--out", store, "--recipe", tmp_path / "evil.json", "--workers", 1)
    code, _, err = run(*call)
    assert code == 2 and "--allow-module evil" in err and not evil.exists()
    code, out, err = run(*call, "--allow-module", "evil")
    assert code == 0 and evil.exists(), out + err
    check = ("verify", store, "--source", images, "--workers", 1)
    assert run(*check, "--allow-module", "evil")[0] == 0
    pipeline._permitted.clear()  # as in another process, but the module is imported already
    assert run(*check)[0] == 2
    code, _, err = run(*check, "--allow-module", "no.such.module")
    assert code == 2 and "cannot be imported" in err


def test_python_callers_allow_modules_too(evil, tmp_path):
    """allow_modules of build, add_view, verify and Recipe.make; an object needs no permission."""
    images, store = write_source(tmp_path), tmp_path / "a.ocrs"
    with pytest.raises(SchemaError, match=r"allow_modules=\['evil'\]"):
        Recipe.make(pipeline={"transform": EVIL})
    recipe = Recipe.make(pipeline={"transform": EVIL}, allow_modules=["evil"])
    for allowed in ((), ["evil"]):
        pipeline._permitted.clear()
        calls = (
            lambda allowed=allowed: ocrstore.build(
                images, store, recipe=recipe, workers=0, allow_modules=allowed
            ),
            lambda allowed=allowed: ocrstore.add_view(
                store, recipe=recipe, view="b", workers=0, allow_modules=allowed
            ),
            lambda allowed=allowed: ocrstore.verify(
                store, source=images, workers=0, allow_modules=allowed
            ),
        )
        for call in calls:
            if allowed:
                assert call()
            elif store.exists() or call is calls[0]:
                with pytest.raises(SchemaError, match="--allow-module evil"):
                    call()
    pipeline._permitted.clear()
    assert Recipe.make(pipeline=sys.modules["evil"].Boom(p=1.0)) == recipe


@pytest.mark.parametrize(
    "name",
    [
        "albumentations.core.serialization.load",
        "albumentations.load",
        "albumentations_evil.Boom",
        "albumentations.core.composition.BaseCompose",
        "KeypointParams",
        "os.system",
        "builtins.exec",
        "Lambda",
    ],
)
def test_only_transforms_are_made(name):
    """Functions, other classes and abstract ones of albumentations are no transforms."""
    with pytest.raises(SchemaError, match=r"no transform named|cannot be made|--allow-module"):
        pipeline.make_transform({"__class_fullname__": name, "p": 1.0})
    for wrong in ([], {"__class_fullname__": "Compose", "transforms": 3}, {"transforms": [1]}):
        with pytest.raises(SchemaError, match="not a serialised"):
            pipeline.make_transform(wrong)


def test_every_transform_of_albumentations_is_known():
    """The list of permitted classes has all that albumentations can serialise."""
    registry = albumentations.core.serialization.SERIALIZABLE_REGISTRY
    kinds = (albumentations.BasicTransform, albumentations.BaseCompose)
    own = [
        name
        for name, cls in registry.items()
        if cls.__module__.startswith("albumentations.") and issubclass(cls, kinds)
    ]
    assert len(own) > 80
    for name in own:
        pipeline._check_classes({"__class_fullname__": name})


# C0 and C1 controls, a bidirectional mark, a line separator, rich's markup, an emoji code
HOSTILE = "e\x1b]0;t\x07\x9b2J\u202e\u2028[bold]x[link=a]:warning:\x7f"
BYTES = "\udce9"  # a byte that is no UTF-8, as os.fsdecode gives it


def controls(text):
    """Return the characters of an output that a terminal would obey."""
    return {c for c in text if not c.isprintable() and c != "\n"}


def hostile_store(path, images):
    """Build a store, and put hostile strings wherever its manifest and attributes have strings."""
    ocrstore.build(images, path, size=64, workers=0)
    with ocrstore.edit(path) as writer:
        build = json.loads(json.dumps(writer.metadata["build"]))
        told = HOSTILE + "[/nothing]"  # a closing tag that nothing opened is an error of rich
        build["source"] |= {"description": told, "images": told, "annotations": told}
        build["problems"] = {
            "counts": {HOSTILE: 1},
            "first": [{"kind": HOSTILE, "message": HOSTILE, "key": HOSTILE, "polygon": None}],
        }
        build["dialect"] = HOSTILE
        writer.metadata["build"] = build
    return path


@pytest.fixture
def hostile(tmp_path):
    """A source and a store whose folder, files, keys, texts and manifest are hostile."""
    root = tmp_path / (HOSTILE + BYTES)
    root.mkdir()
    names = (f"{HOSTILE}a.jpg", f"{HOSTILE}{BYTES}b.jpg")
    images = write_source(root, folder=HOSTILE, names=names)
    (images / f"{HOSTILE}.jpg").write_bytes(b"")
    for path in (root / "gt").iterdir():
        path.write_text(BOX.replace("word", HOSTILE.replace("\u2028", "")))
    return images, hostile_store(root / f"{HOSTILE}.ocrs", images)


def test_nothing_foreign_reaches_the_terminal(run, hostile, tmp_path):
    """Hostile paths, keys, texts and records: every command prints only what can be read."""
    images, store = hostile
    out = tmp_path / f"out {HOSTILE}"  # TensorBoard takes valid Unicode only
    out.mkdir()
    write_checkpoint(out / f"{HOSTILE}.ckpt", Recipe.make(size=64).to_json())
    recipe = out / f"{HOSTILE}.json"
    recipe.write_text(json.dumps({"transform": {"__class_fullname__": HOSTILE}}))
    commands = all_commands(store, images, out / f"{HOSTILE}.ckpt", recipe, out)
    key = ocrstore.open(store).keys[0]
    commands += [
        ("inspect", store, key),
        ("inspect", store, "no such key" + HOSTILE),
        ("inspect", store, key, "--json"),
        ("inspect", recipe),
        ("verify", recipe),
        ("build", images, "--out", recipe),
        ("build", images, "--out", store, "--force", "--json"),
        ("build", images, "--out", store, "--annotations", out),
        ("build", images, "--out", out / "c.ocrs", "--recipe", store),
        ("build", images, "--out", out / "d.ocrs", "--on-error", "fail"),
        ("build", images / HOSTILE, "--out", out / "d.ocrs"),
        ("build", images, "--out", out / HOSTILE / "d.ocrs", f"--{HOSTILE}"),
        ("eval", store, "--checkpoint", recipe),
        ("train", store, "--out", out / "run3", "--weights", recipe, "--view", HOSTILE),
        ("warm", store, "--column", HOSTILE),
        ("view", store, "--predictions", recipe, "--no-browser"),
        (HOSTILE,),
    ]
    for command in commands:
        code, printed, err = run(*command)
        assert code in (0, 1, 2) and "Traceback" not in err, (command, code, err)
        assert not controls(printed) and not controls(err), (command, printed, err)
        assert "⚠" not in printed + err, command  # an emoji code is no emoji


def test_one_function_escapes_what_is_printed():
    """No command escapes markup alone; `shown` of console.py does both."""
    for path in Path(cli.__file__).parent.glob("*.py"):
        assert path.name == "console.py" or "rich.markup" not in path.read_text(), path
