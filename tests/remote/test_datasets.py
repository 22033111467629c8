"""Data sets of many stores behind URLs, and commands that read URLs."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import ocrstore
from ocrstore.cli import cli
from ocrstore.torch import OCRStoreDataset
from tests.drawn import write_source
from tests.remote.local_copies import upload
from tests.sharded import describe_shard, write_dataset


@pytest.fixture
def folder(tmp_path):
    """A data set of several shards."""
    write_source(tmp_path)
    target = tmp_path / "train"
    options = {"annotations": tmp_path / "gt", "size": 64, "workers": 0}
    ocrstore.build(tmp_path / "images", target, shard_size=1, **options)
    assert len(list(target.glob("*.ocrs"))) > 1
    return target


@pytest.fixture
def dataset_url(s3_server, bucket, folder):
    """The same in a bucket."""
    for path in folder.iterdir():
        upload(s3_server, f"{bucket}/train/{path.name}", path)
    return f"{bucket}/train"


def test_a_data_set_is_read_by_its_catalog(dataset_url, folder, cache, proxy):
    """Only the catalog at first; then shards that are needed, each row as in the source."""
    dataset = OCRStoreDataset(f"{dataset_url}/")
    assert [r.path for r in proxy.requests if r.path.endswith(".ocrs")] == []
    local = OCRStoreDataset(folder)
    assert len(dataset) == len(local)
    assert dataset.is_remote and not local.is_remote
    for row in range(len(local)):
        assert (dataset[row]["image"] == local[row]["image"]).all()
    batch, expected = dataset[[3, 0, 4]], local[[3, 0, 4]]
    assert (batch["images"] == expected["images"]).all()
    assert (batch["prob_maps"] == expected["prob_maps"]).all()


@pytest.mark.parametrize("how", ["direct", "copy_into", "sequential"])
def test_batches_of_several_shards_wait_for_rows_that_are_mapped(how, cache, tmp_path):
    """Raw rows large enough to be mapped together, which nobody has fetched before."""
    folder, columns = tmp_path / "train", {"tensor": ocrstore.Column("uint8", (160, 160, 3))}
    folder.mkdir()
    random = np.random.default_rng(0)
    shards = []
    for number in range(4):
        path = folder / f"{number}.ocrs"
        metadata = {"views": {}, "default_view": None}
        with ocrstore.create(path, columns, metadata=metadata) as writer:
            for row in range(3):
                pixels = random.integers(1, 255, (160, 160, 3), np.uint8)
                writer.append(f"{number}_{row}.jpg", {"tensor": pixels})
        shards.append(describe_shard(path, f"{number:02b}"))
    write_dataset(folder, shards)
    local, dataset = OCRStoreDataset(folder), OCRStoreDataset(f"file://{folder}/")
    for rows in ([2, 3], [4, 5, 6]) if how == "sequential" else ([11, 0, 7, 3], [4, 10, 1]):
        batch, expected = dataset[rows], local[rows]["images"]
        if how == "copy_into":
            buffers = batch.empty_buffers()
            batch.copy_into(buffers)
            assert (buffers["images"] == expected).all()
        else:
            assert (batch["images"] == expected).all()


def test_a_data_set_opens_as_one_store(dataset_url, folder, cache):
    """All shards, by row and by key."""
    store, local = ocrstore.open(dataset_url), ocrstore.open(folder)
    assert store.keys == local.keys
    for name in local.columns:
        for row in range(len(local)):
            assert np.array_equal(store[name][row], local[name][row]), (name, row)
        assert len(store[name][:]) == len(local)


def test_beyond_the_limit_shards_that_were_removed_are_let_go(dataset_url, folder, cache):
    """Or the disk would stay full: what is removed, but mapped, takes its room."""
    dataset = OCRStoreDataset(dataset_url, cache_limit=50_000)
    local = OCRStoreDataset(folder)
    for _ in range(2):
        for row in range(len(local)):
            assert (dataset[row]["image"] == local[row]["image"]).all()
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().splitlines()
    removed = {line.split()[-2] for line in mapped if str(cache) in line and "(deleted)" in line}
    assert len(list(folder.glob("*.ocrs"))) >= 5
    assert len(removed) <= 1


@pytest.mark.slow
def test_a_shard_that_is_not_the_catalogs_is_refused(dataset_url, folder, cache, s3_server):
    """Another store of the same name was put there."""
    first, second = sorted(folder.glob("*.ocrs"))[:2]
    upload(s3_server, f"{dataset_url}/{first.name}", second)
    with pytest.raises(ocrstore.CorruptStoreError, match=first.name):
        ocrstore.open(dataset_url)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["dataset", "store"])
def test_commands_read_urls(place, dataset_url, folder, cache, tmp_path):
    """Those that show, export, verify and warm; also with JSON."""
    url, local = dataset_url, folder
    if place == "store":
        local = min(folder.glob("*.ocrs"))
        url = f"{dataset_url}/{local.name}"
    run = CliRunner().invoke
    shown = run(cli, ["inspect", url, "--json"], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["samples"] == len(ocrstore.open(local))
    assert json.loads(shown.stdout)["path"] == url
    refused = run(cli, ["compact", url])
    assert refused.exit_code == 2 and "ocrstore pull" in refused.output
    report = ["report", url, "--out", str(tmp_path / "report.html")]
    for command in (["verify", url], ["warm", url], report):
        done = run(cli, command, catch_exceptions=False)
        assert done.exit_code == 0, (command, done.output)
    for command in ("warm", "doctor"):
        done = run(cli, [command, url, "--json"], catch_exceptions=False)
        record = json.loads(done.stdout)
        assert record["path"] == url
    assert record["cached_nbytes"] == record["view_nbytes"] > 0
