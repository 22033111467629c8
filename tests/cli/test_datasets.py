"""Commands that read a store, on a data set of many stores."""

import json
import shutil

import pyarrow.csv
import pytest

import ocrstore
from ocrstore.catalog import read_catalog
from tests.sharded import shard_store
from tests.torch_.making import make_store


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store of 12 samples."""
    return make_store(tmp_path_factory.mktemp("whole") / "all.ocrs", samples=12)


@pytest.fixture(scope="module")
def folder(whole, tmp_path_factory):
    """The same samples in 4 shards."""
    return shard_store(whole, tmp_path_factory.mktemp("set") / "train")


def test_inspect_shows_one_table(run, folder, whole):
    """Counts of the whole, the shards, and their health; one sample; the difference."""
    code, out, _ = run("inspect", folder)
    assert code == 0
    for fact in ("a data set of 4 shards", "samples", "12", "headers of", "view 160"):
        assert fact in out, fact
    code, out, _ = run("inspect", folder / "dataset.json", "--json")
    facts, expected = json.loads(out), json.loads(run("inspect", whole, "--json")[1])
    assert facts["samples"] == 12 and len(facts["shards"]) == 4
    assert facts["polygons"] == expected["polygons"] and facts["views"] == expected["views"]
    assert facts["nbytes"] == sum(path.stat().st_size for path in folder.glob("*.ocrs"))
    key = ocrstore.open(folder).keys[-1]
    code, out, _ = run("inspect", folder, key, "--no-picture")
    assert code == 0 and key in out
    code, out, _ = run("inspect", folder, "--diff", whole)
    assert code == 1 and "7 columns" in out and "in another order" in out
    code, _, err = run("inspect", folder, "--generation", "2")
    assert code == 2 and "no older ones" in err


def test_verify_names_the_bad_shards(run, folder, tmp_path):
    """Sound: exit 0. Damaged or missing: exit 1, with the names and what to do."""
    own = shutil.copytree(folder, tmp_path / "own")
    code, out, _ = run("verify", own)
    assert code == 0 and "84 rows of 12 samples" in out
    first, second = sorted(own.glob("*.ocrs"))[:2]
    first.unlink()
    second.write_bytes(second.read_bytes()[:-4096])
    code, out, _ = run("verify", own)
    assert code == 1 and first.name in out and second.name in out
    assert "`ocrstore build` with the same options" in out
    code, out, _ = run("inspect", own)
    assert code != 0


def test_export_and_report_have_all_samples(run, folder, tmp_path):
    """As one set, whatever shard they are in."""
    table = tmp_path / "index.csv"
    code, _, _ = run("export", folder, "--to", "csv", "--out", table, "--columns", "key,width")
    keys = pyarrow.csv.read_csv(table)["key"].to_pylist()
    assert code == 0 and keys == list(ocrstore.open(folder).keys)
    coco = tmp_path / "coco"
    code, _, _ = run("export", folder, "--to", "coco", "--out", coco)
    assert code == 0 and len(list((coco / "images").glob("*"))) == 12
    page = tmp_path / "report.html"
    code, _, _ = run("report", folder, "--out", page)
    assert code == 0 and all(key in page.read_text("utf-8") for key in keys)


def test_evaluation_is_of_all_samples(run, folder, whole):
    """The upper bound of a data set is that of one store with its samples."""
    pytest.importorskip("cv2")
    code, out, _ = run("eval", folder, "--oracle", "--json")
    found, expected = json.loads(out), json.loads(run("eval", whole, "--oracle", "--json")[1])
    assert code == 0 and found["pictures"] == 12 and found == expected


def test_warm_and_profile(run, folder):
    """Bytes of all shards; costs of samples of any."""
    pytest.importorskip("torch")
    code, out, _ = run("warm", folder, "--column", "tensor", "--json")
    nbytes = sum(shard.column_nbytes["tensor"] for shard in read_catalog(folder).shards)
    assert code == 0 and json.loads(out)["nbytes"] == nbytes
    code, out, _ = run("profile", folder, "--samples", "4", "--repeats", "1", "--json")
    assert code == 0 and json.loads(out)["costs"]


def test_view_notices_another_catalog(folder, tmp_path):
    """The viewer shows all samples, and is told when the data set was built again."""
    pytest.importorskip("starlette")
    from ocrstore.viewer.live import Live

    own = shutil.copytree(folder, tmp_path / "own")
    live = Live(own / "dataset.json")
    try:
        facts = live.catalog.facts()
        assert (facts["name"], facts["samples"]) == ("own", 12)
        assert live.catalog.sample(11)["key"] == ocrstore.open(own).keys[11]
        (own / "other.txt").touch()
        assert live.look().kind == "same"
        smaller = shard_store(own / sorted(own.glob("*.ocrs"))[0].name, tmp_path / "new", bits=1)
        for path in smaller.iterdir():
            shutil.copy(path, tmp_path / "copied")
            (tmp_path / "copied").replace(own / path.name)
        assert live.look().kind == "replaced"
        live.reload()
        assert live.catalog.facts()["samples"] < 12
    finally:
        live.close()
