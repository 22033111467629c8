"""The commands that make stores: build, add-view and verify --source."""

from __future__ import annotations

import json
import subprocess
import sys

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ocrstore
from ocrstore.sources import all_dialects, unregister
from tests.building.test_frames import EITHER, RAW, UPRIGHT, Words


@pytest.fixture
def images(tmp_path):
    """Three pictures with ICDAR annotations beside them."""
    folder, gt = tmp_path / "images", tmp_path / "gt"
    folder.mkdir()
    gt.mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (60, 80, 3), np.uint8)
        cv2.imwrite(str(folder / f"img [{i}].jpg"), pixels)
        (gt / f"gt_img [{i}].txt").write_text("5,5,60,5,60,30,5,30,word\n1,1,9,1,9,9,1,9,###\n")
    return folder


def test_build_prints_what_and_why(images, run, tmp_path):
    """The first build, one with nothing to do, one with changes: plan, counts, sizes, time."""
    store = tmp_path / "val.ocrs"
    code, out, _ = run("build", images, "--out", store, "--size", "64")
    assert code == 0 and "does not exist yet" in out and "3 new pictures" in out
    assert "3 of 3 pictures; 3 derived, 0 reused" in out and "6, 3 of them ignored" in out
    assert "tensor 36.9 kB" in out and "samples/s" in out
    code, out, _ = run("build", images, "--out", store, "--size", "64")
    assert code == 0 and "nothing has changed" in out and "after a fix" not in out
    (images / "img [1].jpg").unlink()
    code, out, _ = run("build", images, "--out", store, "--size", "96x64")
    assert "size: [64, 64] -> [96, 64]" in out and "1 removed picture (img [1].jpg)" in out
    assert "· 1 missing-picture" in out and code == 0  # its annotation is left without it
    assert ocrstore.open(store)["tensor"][0].shape == (96, 64, 3)


def test_build_reports_problems_and_fails(images, run, tmp_path):
    """A loss is exit code 1, a line with its meaning, and an entry in the report file."""
    store, report = tmp_path / "val.ocrs", tmp_path / "report.json"
    (images / "odd.jpg").write_bytes(b"")
    code, out, _ = run("build", images, "--out", store, "--size", 32, "--report", report)
    assert code == 1 and "1 bad-picture" in out and "odd.jpg: the file is empty" in out
    assert "the same command updates only the samples concerned" in out
    record = json.loads(report.read_text())
    assert record["skipped"] == ["odd.jpg"] and record["counts"]["bad-picture"] == 1
    code, out, _ = run("build", images, "--out", store, "--size", 32, "--json")
    assert code == 1 and json.loads(out)["ok"] is False
    code, _, err = run("build", images, "--out", store, "--size", 32, "--on-error", "fail")
    assert code == 1 and "--on-error skip" in err


def test_annotations_of_more_pictures_are_no_loss(images, run, tmp_path):
    """One annotation file for train and val: the build of either folder is whole, exit code 0."""
    store, words = tmp_path / "val.ocrs", tmp_path / "both.json"
    region = {"transcription": "word", "points": [[5, 5], [60, 5], [60, 30], [5, 30]]}
    names = [*(path.name for path in images.iterdir()), "train_1.jpg", "train_2.jpg"]
    words.write_text("\n".join(f"{name}\t{json.dumps([region])}" for name in names))
    options = ("--annotations", words, "--size", 64)
    code, out, _ = run("build", images, "--out", store, *options)
    assert code == 0 and "· 2 missing-picture" in out and "✓" in out and "✗" not in out
    code, out, _ = run("build", images, "--out", store, *options, "--json")
    record = json.loads(out)
    assert record["ok"] and record["samples"] == 3 and record["counts"]["missing-picture"] == 2
    # a picture or polygon that is lost still is exit code 1, and stops --on-error fail
    (images / "odd.jpg").write_bytes(b"")
    assert run("build", images, "--out", store, *options)[0] == 1
    assert run("build", images, "--out", store, *options, "--on-error", "fail")[0] == 1


def test_dry_run_writes_nothing(images, run, tmp_path):
    """The plan and the disk space, and no file."""
    store = tmp_path / "val.ocrs"
    code, out, _ = run("build", images, "--out", store, "--size", 64, "--dry-run")
    assert code == 0 and "expected" in out and "free in" in out and not store.exists()
    code, out, _ = run("build", images, "--out", store, "--size", 64, "--dry-run", "--json")
    record = json.loads(out)
    assert record["action"] == "create" and record["columns"]["tensor"] == 3 * 64 * 64 * 3
    assert not list(tmp_path.glob("*.ocrs*")) and not list(tmp_path.glob(".*"))


def test_add_view_and_verify_source(images, run, tmp_path):
    """A view more, checked against the pictures; a changed picture is exit code 1."""
    store = tmp_path / "val.ocrs"
    run("build", images, "--out", store, "--size", 64)
    code, out, _ = run("add-view", store, "--size", 32)
    assert code == 0 and "view 32 of 3 samples" in out and "32/tensor" in out
    code, out, _ = run("add-view", store, "--size", 32)
    assert code == 0 and "already" in out
    code, out, _ = run("add-view", store, "--size", 48, "--columns", "tensor", "--json")
    assert json.loads(out)["columns"] == {"48/tensor": 3 * 48 * 48 * 3}
    code, out, _ = run("verify", store, "--source", images)
    assert code == 0 and "3 of 3 samples derived again" in out
    code, out, _ = run("verify", store, "--source", images, "--sample", 2, "--json")
    assert json.loads(out)["samples"] == 2
    cv2.imwrite(str(images / "img [0].jpg"), np.zeros((60, 80, 3), np.uint8))
    code, out, _ = run("verify", store, "--source", images)
    assert code == 1 and "sample 'img [0].jpg': column 'image'" in out
    code, _, err = run("verify", store, "--sample", 2)
    assert code == 2 and "--source" in err


def test_another_folder_does_not_empty_a_store(images, run, tmp_path):
    """None of the store's samples is there: refused but with --force, told by --dry-run, verify.

    The polygons of the store need --drop-annotations as well.
    """
    store, other = tmp_path / "val.ocrs", tmp_path / "other"
    run("build", images, "--out", store, "--size", 64)
    before = store.read_bytes()
    other.mkdir()
    cv2.imwrite(str(other / "stranger.png"), np.zeros((20, 30, 3), np.uint8))
    words = f"none of the 3 samples of the store is in {other}; is it the right folder?"
    code, out, err = run("build", other, "--out", store)
    assert code == 2 and words in err and "--force" in err and not out
    code, out, _ = run("build", other, "--out", store, "--dry-run")
    assert code == 0 and words in out and "refused" in out
    _, out, _ = run("build", other, "--out", store, "--dry-run", "--json")
    assert json.loads(out)["mistaken"] == words
    code, out, _ = run("verify", store, "--source", other)
    assert code == 1 and out.count("✗") == 2 and words in out and "1 finding;" in out
    assert "ocrstore build" not in out and store.read_bytes() == before
    _, _, err = run("build", other, "--out", store)
    assert "use --force --drop-annotations to replace" in err
    code, _, err = run("build", other, "--out", store, "--size", 64, "--force")
    assert code == 2 and "6 polygons in 3 pictures" in err and store.read_bytes() == before
    run("build", other, "--out", store, "--size", 64, "--force", "--drop-annotations")
    assert ocrstore.open(store).keys == ("stranger.png",)


def test_a_store_keeps_its_recipe_where_none_is_given(images, run, tmp_path):
    """Size, columns, codecs and the view's name stay; an option that is given changes them."""
    store = tmp_path / "val.ocrs"
    recipe = ("--size", 64, "--columns", "tensor,inverse_matrix", "--codec", "tensor=zstd")
    run("build", images, "--out", store, *recipe, "--view", "mine")
    before = store.read_bytes()
    code, out, _ = run("build", images, "--out", store)
    assert (
        code == 0
        and "with the recipe of the existing store (view mine)" in out
        and "nothing to do" in out
    )
    assert store.read_bytes() == before
    cv2.imwrite(str(images / "new.jpg"), np.zeros((20, 30, 3), np.uint8))
    code, out, _ = run("build", images, "--out", store)
    assert code == 0 and "1 derived, 3 reused" in out
    with ocrstore.open(store) as opened:
        assert list(opened.columns) == ["tensor", "inverse_matrix"]
        assert opened["tensor"][3].shape == (64, 64, 3)
    code, out, _ = run("build", images, "--out", store, "--size", 32)
    assert code == 0 and "existing store" not in out and "size: [64, 64] -> [32, 32]" in out


def test_a_store_with_map_files_needs_them_again(images, run, tmp_path):
    """Without --maps and without a recipe the maps would silently be drawn; that is refused."""
    store, maps = tmp_path / "val.ocrs", tmp_path / "maps"
    maps.mkdir()
    run("build", images, "--out", store, "--size", 64, "--maps", maps)
    code, _, err = run("build", images, "--out", store)
    assert code == 2 and "--maps" in err
    code, out, _ = run("build", images, "--out", store, "--maps", maps)
    assert "with the recipe of the existing store (view 64)" in out and "nothing to do" in out


def test_sizes_in_every_codec(images, run, tmp_path):
    """A dry run says what each codec would take and what fits, for people and for programs."""
    arguments = ("build", images, "--out", tmp_path / "x.ocrs", "--size", 64, "--dry-run")
    code, out, _ = run(*arguments)
    assert code == 0 and "fits the page cache" in out and "memory" in out and "as zstd" in out
    for preset in ("--preset fast", "--preset balanced", "--preset small"):
        assert preset in out
    code, out, _ = run(*arguments, "--json")
    record = json.loads(out)
    assert record["page_cache"]["fits_as_asked"]
    assert record["codecs"]["image"]["raw"] == 3 * 60 * 80 * 3 > record["columns"]["image"]
    assert record["presets"]["small"]["nbytes"] < record["presets"]["balanced"]["nbytes"]
    assert record["presets"]["balanced"]["nbytes"] == record["nbytes"]
    assert record["codecs"]["prob_mask"]["zstd"] < record["codecs"]["prob_mask"]["raw"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--size", "x"], "not a size"),
        (["--size", "1x2x3"], "not a size"),
        (["--columns", "tensor,tensors"], "unknown column 'tensors'"),
        (["--codec", "image"], "COLUMN=CODEC"),
        (["--codec", "tensor=file"], "only `image`"),
        (["--codec", "image=jpeg"], "codec file stores the files of all formats"),
        (["--preset", "tiny"], "tiny"),
        (["--format", "nosuch"], "nosuch"),
        (["--view", "a/b"], "view's name"),
        (["--recipe", "RECIPE", "--size", "3"], "are part of a recipe"),
    ],
)
def test_wrong_use(images, run, tmp_path, options, words):
    """Wrong options are exit code 2, with what is expected."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("size: 32\n")
    options = [str(recipe) if option == "RECIPE" else option for option in options]
    code, _, err = run("build", images, "--out", tmp_path / "x.ocrs", *options)
    assert code == 2 and words in " ".join(err.split())
    assert not (tmp_path / "x.ocrs").exists()


def test_a_dry_run_where_memory_is_short(images, run, tmp_path, monkeypatch):
    """The steps, what each saves, and the options for it; or that nothing helps."""
    arguments = ("build", images, "--out", tmp_path / "x.ocrs", "--size", 64, "--dry-run")
    from ocrstore.building.estimate import HEADROOM
    from ocrstore.machine import Memory

    def memory(nbytes):
        monkeypatch.setattr(
            "ocrstore.cli.build.look_at_memory", lambda: Memory(nbytes, nbytes, "cgroup")
        )

    small = json.loads(run(*arguments, "--json")[1])["presets"]["small"]["nbytes"]
    memory(int(small / HEADROOM) + 2)
    code, out, _ = run(*arguments)
    assert code == 0 and "(cgroup)" in out and "with that it fits" in out
    assert "  --preset small" in out
    memory(1000)
    code, out, _ = run(*arguments)
    assert code == 0 and "still does not fit" in out and "--columns tensor" in out


def test_wrong_places_are_wrong_use(images, run, tmp_path):
    """No such folder for a result, no pictures, no such view: exit code 2, before any work."""
    store, nowhere, empty = tmp_path / "val.ocrs", tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    run("build", images, "--out", store, "--size", 32)
    for command in (
        ("build", images, "--out", nowhere / "x.ocrs"),
        ("build", images, "--out", store, "--report", nowhere / "x.json"),
        ("report", store, "--out", nowhere / "x.html"),
        ("export", store, "--to", "csv", "--out", nowhere / "x.csv"),
        ("export", store, "--to", "coco", "--out", nowhere / "x"),
    ):
        code, out, err = run(*command)
        assert code == 2 and "no such folder" in err and not out
    for options in ((), ("--dry-run",)):
        code, _, err = run("build", empty, "--out", tmp_path / "x.ocrs", *options)
        assert code == 2 and "no picture in it" in err


def test_a_log_gets_no_progress(images, run, tmp_path):
    """Where standard error is no terminal, no bar and no empty line is written to it."""
    store = tmp_path / "val.ocrs"
    for command in (
        ("build", images, "--out", store, "--size", 32),
        ("add-view", store, "--size", 16),
        ("verify", store),
        ("verify", store, "--source", images),
        ("compact", store),
    ):
        code, _, err = run(*command)
        assert code == 0 and err == ""


def test_verify_source_notes_what_cannot_be_used(images, run, tmp_path):
    """A line of an annotation that cannot be read is in no store: noted, and no difference."""
    store = tmp_path / "val.ocrs"
    run("build", images, "--out", store, "--size", 32)
    with (images.parent / "gt" / "gt_img [1].txt").open("a") as file:
        file.write("junk\n")
    code, out, _ = run("verify", store, "--source", images)
    assert code == 0 and "· img [1].jpg: " in out and "line 3" in out


def test_without_the_build_extra(images, tmp_path):
    """Commands that need it say what to install, in one line; the others and --help work."""
    code = "import sys; sys.modules['cv2'] = None; from ocrstore.cli import main; main()"
    store = tmp_path / "val.ocrs"
    ocrstore.build(images, store, size=32, workers=0)

    def run(*arguments):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    for command in (
        ("build", images, "--out", tmp_path / "new.ocrs"),
        ("add-view", store, "--size", 16),
        ("verify", store, "--source", images),
    ):
        code_, _, err = run(*command)
        assert code_ == 2 and err.count("\n") == 1, err
        assert 'needs cv2, which is missing: pip install "ocrstore[build]"' in err
    assert run("build", "--help")[0] == 0
    assert run("verify", store)[0] == 0


def test_the_frame_of_polygons(tmp_path, run):
    """The option is asked for with exit code 2; inspect and report list the turned pictures."""
    words = Words(tmp_path)
    words.add("raw.jpg", RAW)
    words.add("up.jpg", UPRIGHT)
    words.add("open.jpg", EITHER)
    command = ["build", words.images, "--out", words.store, "--annotations", words.file]
    code, _, error = run(*command)
    assert code == 2 and "--polygons-frame raw or upright" in " ".join(error.split())
    assert run(*command, "--size", 64, "--polygons-frame", "raw")[0] == 0
    code, out, _ = run("inspect", words.store, "--json")
    assert {key: one["frame"] for key, one in json.loads(out)["turned"].items()} == {
        "open.jpg": "raw",
        "raw.jpg": "raw",
        "up.jpg": "upright",
    }
    assert "3 pictures with an EXIF rotation" in run("inspect", words.store)[1]
    page = tmp_path / "report.html"
    assert run("report", words.store, "--out", page)[0] == 0
    section = page.read_text().partition('id="turned"')[2].partition("</section>")[0]
    assert section.count("data:image/jpeg") == 3 and "would fit either way" in section


def test_split(images, run, tmp_path):
    """Two disjoint stores of one folder, by a hash of the keys; an empty part is an error."""
    code, out, _ = run("build", images, "--out", tmp_path / "s", "--split", "train=0.5,val=0.5")
    assert code == 0 and "train.ocrs" in out
    parts = [set(ocrstore.open(tmp_path / "s" / f"{n}.ocrs").keys) for n in ("train", "val")]
    assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == len(list(images.glob("*.jpg")))
    code, _, error = run("build", images, "--out", tmp_path / "s", "--split", "train=0.9,val=0.2")
    assert code == 2 and "at most 1 in all" in error
    code, _, error = run("build", images, "--out", tmp_path / "s", "--split", "none=0.000001")
    assert code == 2 and "larger share" in error


OWN = """
from ocrstore.sources import Dialect, Region

class Own(Dialect):
    name, looks_for, suffixes, per_picture = "own", "a point", (".own",), True

    def recognise(self, file):
        return True

    def regions(self, entry):
        x = int(entry.record.text()[0])
        yield Region([x, x, x + 20, x, x + 20, x + 20])
"""


@pytest.fixture
def forgotten():
    """Remove the dialect `own` afterwards, also if the test fails."""
    yield
    if "own" in [dialect.name for dialect in all_dialects()]:
        unregister("own")


@pytest.mark.usefixtures("forgotten")
def test_a_dialect_of_ones_own(images, run, tmp_path, monkeypatch):
    """--format module:Class imports it, because the user says so; others are refused."""
    (tmp_path / "ocrown.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "gt-own").mkdir()
    for path in images.glob("*.jpg"):
        (tmp_path / "gt-own" / f"{path.stem}.own").write_text("7")
    command = ("build", images, "--annotations", tmp_path / "gt-own", "--out", tmp_path / "a.ocrs")
    code, _, error = run(*command, "--format", "ocrown:Own")
    assert code == 0, error
    assert ocrstore.open(tmp_path / "a.ocrs").attributes(0)["polygons"] == [[7, 7, 27, 7, 27, 27]]
    unregister("own")  # as in a process of its own
    verify = ("verify", tmp_path / "a.ocrs", "--source", images, "--workers", 0)
    code, out, error = run(*verify, *command[2:4], "--format", "ocrown:Own")
    assert code == 0 and "3 of 3 samples" in out, error
    code, _, error = run(*command, "--format", "ocrown:Region")
    assert code == 2 and "no subclass" in error
    code, _, error = run(*command, "--format", "nowhere:Own")
    assert code == 2 and "cannot be imported" in error
    code, _, error = run(*command, "--format", "xyz")
    assert code == 2 and "'xyz' is none of" in error


def test_verify_takes_the_columns_map(images, run, tmp_path):
    """A store that was built with --columns-map can be compared with its source."""
    rows = [
        {"scan": path.read_bytes(), "regions": [{"where": [5.0, 5, 50, 20], "text": path.stem}]}
        for path in sorted(images.iterdir())
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "odd.parquet")
    names = ("--columns-map", "image=scan", "--columns-map", "objects=regions")
    names += ("--columns-map", "bbox=where")
    store = tmp_path / "a.ocrs"
    code, _, error = run("build", tmp_path / "odd.parquet", "--out", store, "--size", 64, *names)
    assert code == 0, error
    verify = ("verify", store, "--source", tmp_path / "odd.parquet", "--workers", 0)
    code, out, _ = run(*verify, *names)
    assert code == 0 and "3 of 3 samples derived again" in out
    code, _, error = run(*verify)
    assert code != 0 and "--columns-map image=NAME" in error
    code, _, error = run("verify", store, *names)
    assert code == 2 and "require --source" in error


def test_nothing_to_learn_from(images, run, tmp_path):
    """A store without polygons is refused by train and eval, with what to do."""
    pytest.importorskip("torch")
    store = tmp_path / "none.ocrs"
    assert run("build", images, "--format", "folder", "--size", 64, "--out", store)[0] == 0
    for command in (
        ("eval", store, "--oracle"),
        ("train", store, "--out", tmp_path / "run", "--epochs", 1),
    ):
        code, _, error = run(*command)
        words = " ".join(error.split())
        assert code != 0 and "no polygon in any of its 3 samples (0 of them annotated)" in words
        assert "ocrstore build IMAGES --annotations PATH" in words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (":X", "expected MODULE:CLASS"),
        (".x:X", "expected MODULE:CLASS"),
        ("json:", "expected MODULE:CLASS"),
        ("nosuchmodule:X", "cannot be imported: ModuleNotFoundError"),
        ("json:JSONDecoder", "is no subclass"),
        ("ocrstore.sources:Dialect", "that defines recognise, regions, name"),
        ("dialect_of_a_test:Half", "that defines regions, name"),
        ("dialect_of_a_test:Odd", "cannot be made without arguments"),
        ("broken_dialect:X", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_format_that_is_no_dialect(images, run, tmp_path, monkeypatch, value, words):
    """A usage error that says what is expected; nothing is written."""
    (tmp_path / "dialect_of_a_test.py").write_text(
        "from ocrstore.sources import Dialect\n"
        "class Half(Dialect):\n    def recognise(self, file): return True\n"
        "class Odd(Half):\n    name = 'odd'\n    def regions(self, entry): return []\n"
        "    def __init__(self, size): pass\n"
    )
    (tmp_path / "broken_dialect.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for command in (("build", images, "--out", tmp_path / "a.ocrs"), ("verify", tmp_path)):
        code, _, err = run(*command, "--format", value)
        assert code == 2 and words in err and "bug" not in err
    assert not (tmp_path / "a.ocrs").exists()


def test_split_is_checked_before_anything_is_built(images, run, tmp_path):
    """An empty part, and a file in the place of the folder: exit code 2, nothing is written."""
    out = tmp_path / "stores"
    parts = ("--split", "train=0.999999,val=0.000001")
    code, _, err = run("build", images, "--out", out, *parts)
    assert code == 2 and "no key has a hash from" in err and not out.exists()
    out.write_text("x")
    code, _, err = run("build", images, "--out", out, "--split", "train=0.5,val=0.5")
    assert code == 2 and "is a file; with --split it is a folder" in err
    assert out.read_text() == "x"


def test_inspect_a_store_from_python(run, tmp_path):
    """It says where the samples came from and how they are compared; no folder is asked for."""
    pixels = np.zeros((40, 40, 3), np.uint8)
    store = tmp_path / "a.ocrs"
    ocrstore.build([ocrstore.SourceSample("a", pixels)], store, size=32, workers=0)
    code, out, _ = run("inspect", store)
    assert code == 0 and "samples from Python" in out and "None" not in out
    assert "ocrstore.verify(store, source=samples)" in out and "FOLDER" not in out
    code, out, _ = run("inspect", store, "--json")
    assert json.loads(out)["source"]["from_python"] is True
