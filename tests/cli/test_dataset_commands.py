"""`build --shard-size`, `--shard-part`, `--commit` and `gc` on the command line."""

import json
import os
import signal
import subprocess
import sys

import pytest

from ocrstore.catalog import CATALOG, read_catalog
from tests.building.conftest import REPOSITORY, Dataset
from tests.waiting import wait_until

SIZE = ("--size", 64, "--workers", 0)


@pytest.fixture
def pictures(tmp_path):
    """Twelve pictures with annotations."""
    return Dataset(tmp_path / "data").fill(12)


@pytest.fixture
def built(run, pictures):
    """A data set of several shards, and the arguments that made it."""
    out = pictures.root / "train"
    build = ("build", pictures.images, "--out", out)
    assert run(*build, *SIZE, "--shard-size", "60kB")[0] == 0
    return out, build


def test_build_and_again(run, built):
    """The second run needs no options, and changes no byte of the catalog."""
    out, build = built
    before = (out / CATALOG).read_bytes()
    code, text, _ = run(*build)
    assert code == 0 and "nothing to do" in text and "recipe of the existing store" in text
    count = len(read_catalog(out).shards)
    assert f"{count} shards, {count} of them up to date" in text and f"in {count} shards" in text
    assert (out / CATALOG).read_bytes() == before


def test_dry_run(run, built, pictures):
    """Which shards would be made, and how many pictures; nothing is written."""
    out, build = built
    pictures.add("img_000.jpg", seed=99)
    before = sorted(out.iterdir())
    code, text, _ = run(*build, "--dry-run")
    assert code == 0 and "1 to be made, with" in text and "nothing was written" in text
    record = json.loads(run(*build, "--dry-run", "--json")[1])
    assert record["action"] == "update" and record["shards"] == len(read_catalog(out).shards)
    assert len(record["shards_to_make"]) == 1 and record["shards_to_make"][0]["pictures"] > 0
    assert sorted(out.iterdir()) == before


def test_parts_and_commit(run, built, pictures):
    """Parts in any order, an early commit that says what is missing, the same catalog at last."""
    out, build = built
    parts = pictures.root / "parts"
    build = (*build[:-1], parts, *SIZE, "--shard-size", "60kB")
    assert "no catalog yet" in run(*build, "--shard-part", "2/2")[1]
    code, _, error = run(*build, "--commit")
    assert code == 1 and "shards are missing" in error and "without --commit" in error
    assert run(*build, "--shard-part", "1/2")[0] == 0 and not (parts / CATALOG).exists()
    assert run(*build, "--commit")[0] == 0
    assert (parts / CATALOG).read_bytes() == (out / CATALOG).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "x.ocrs", "--shard-size", "1MB"), "name a folder"),
        (("--out", "t", "--shard-size", "much"), "512MB"),
        (("--out", "t", "--commit"), "give --shard-size"),
        (("--out", "t", "--shard-size", "1MB", "--shard-part", "3/2"), "1/16 to 16/16"),
        (("--out", "t", "--shard-size", "1MB", "--shard-part", "0/2"), "1/16 to 16/16"),
        (("--out", "t", "--shard-size", "1MB", "--shard-part", "1/2", "--commit"), "leave out"),
        (("--out", "."), "--shard-size or --split"),
    ],
)
def test_wrong_use(run, pictures, monkeypatch, options, message):
    """Exit code 2, and what to do."""
    monkeypatch.chdir(pictures.root)
    code, _, error = run("build", pictures.images, *options)
    assert code == 2 and message in error
    assert not (pictures.root / "t").exists()


def test_split(run, pictures):
    """Each part of a split is a data set of its own; again keeps them."""
    out = pictures.root / "sets"
    build = ("build", pictures.images, "--out", out, "--split", "train=0.7,val=0.3")
    assert run(*build, *SIZE, "--shard-size", "60kB")[0] == 0
    assert len(read_catalog(out / "train")) + len(read_catalog(out / "val")) == 12
    code, text, _ = run(*build)
    assert code == 0 and text.count("nothing to do") == 2


@pytest.mark.parametrize(
    "command", [("add-view", "--size", 32), ("compact",), ("convert", "x.ocrs")]
)
def test_shards_are_changed_by_build_only(run, built, command):
    """Commands that change a store say so, of the folder and of the catalog."""
    for place in (built[0], built[0] / CATALOG):
        code, _, error = run(command[0], place, *command[1:])
        assert code == 2 and "changed by `ocrstore build` only" in error


def test_gc(run, built, pictures):
    """It says what it removes and how many bytes; a dry run removes nothing."""
    out, build = built
    pictures.add("img_000.jpg", seed=99)
    assert run(*build)[0] == 0
    (old,) = {path.name for path in out.glob("[01a]*.ocrs")} - {
        s.name for s in read_catalog(out).shards
    }
    nbytes = (out / old).stat().st_size
    code, text, _ = run("gc", out, "--dry-run")
    assert code == 0 and old in text and "would remove 1 file" in text and (out / old).exists()
    record = json.loads(run("gc", out, "--json")[1])
    assert record["files"] == {old: nbytes} and record["nbytes"] == nbytes
    assert not (out / old).exists() and "removed 0 files" in run("gc", out)[1]
    (out / CATALOG).unlink()
    code, _, error = run("gc", out)
    assert code == 1 and "no dataset.json" in error and len(list(out.glob("[01a]*.ocrs"))) > 1


@pytest.mark.slow
def test_ctrl_c_keeps_finished_shards(run, pictures):
    """Exit code 130 and what to do; the same command goes on, with the same catalog."""
    pictures.fill(40)
    out = pictures.root / "train"
    build = ("build", pictures.images, "--out", out, *SIZE, "--shard-size", "60kB")
    child = subprocess.Popen(
        [sys.executable, "-m", "ocrstore", *map(str, build)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    wait_until(lambda: len(list(out.glob("[01a]*.ocrs"))) > 2)
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 130 and "Finished shards are kept" in error, error
    made = {path.name for path in out.glob("[01a]*.ocrs")}
    assert made and not (out / CATALOG).exists()
    code, text, _ = run(*build)
    assert code == 0 and made <= {shard.name for shard in read_catalog(out).shards}
    assert f"{len(made)} of them up to date" in text
