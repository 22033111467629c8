"""Builds on a Ray cluster of two nodes on this machine: nodes, tasks and pictures that die."""

import logging
import os
import threading

import numpy as np
import pytest

import ocrstore
from ocrstore.building.build_dataset import collect_garbage
from ocrstore.catalog import CATALOG, read_catalog
from ocrstore.errors import SchemaError, SourceError
from tests.building.conftest import QUADS, Dataset
from tests.waiting import wait_until

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = pytest.mark.slow

TARGETS = """
import os, signal, time
import numpy as np
from pathlib import Path

HERE = Path(__file__).parent
FATAL = 32  # x of the first point of the picture that kills

def draw(polygons, ignored, height, width):
    wish = (HERE / "wish").read_text()
    if os.getpid() == int((HERE / "driver").read_text()):
        wish = "work"
    if wish == "slow":
        (HERE / "begun").touch()
        time.sleep(0.05)
    elif wish == "die once" and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif wish in ("crash", "kill") and polygons and abs(float(polygons[0][0][0]) - FATAL) < 2:
        os.kill(os.getpid(), signal.SIGSEGV if wish == "crash" else signal.SIGKILL)
    return {"prob_map": np.full((height, width), len(polygons), np.float16)}
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The folder of a target function that does what the file `wish` says."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "targets_of_ray.py").write_text(TARGETS)
    (folder / "wish").write_text("work")
    (folder / "driver").write_text(str(os.getpid()))
    return folder


@pytest.fixture(scope="module")
def cluster(faults):
    """Two nodes with a core each, to which this process is connected."""
    from ray.cluster_utils import Cluster

    paths = [str(faults), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(paths))
        patched.syspath_prepend(faults)
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def pictures(tmp_path, faults):
    """30 pictures, one of which the target function may die of."""
    dataset = Dataset(tmp_path)
    for number in range(30):
        quads = [[[60, 20], [90, 20], [90, 60], [60, 60]]] if number == 7 else QUADS[1:]
        dataset.add(f"{number:02}.jpg", seed=number, quads=quads)
    (faults / "wish").write_text("work")
    for mark in ("begun", "died"):
        (faults / mark).unlink(missing_ok=True)
    return dataset


def build(dataset, name, on="ray", **options):
    """Build a data set of shards of about five pictures."""
    return ocrstore.build(
        dataset.images,
        dataset.root / name,
        annotations=dataset.gt,
        size=64,
        shard_size=200_000,
        targets="targets_of_ray:draw",
        on=on,
        **options,
    )


def same(dataset, one, other):
    """Whether two data sets have the same catalog, byte by byte, and shards that it describes."""
    for name in (one, other):
        catalog = read_catalog(dataset.root / name)
        for shard in catalog.shards:
            with ocrstore.open(catalog.shard_path(shard)) as store:
                assert store.fingerprint == shard.fingerprint
    payloads = [(dataset.root / name / "dataset.json").read_bytes() for name in (one, other)]
    return payloads[0] == payloads[1]


def test_equal_to_a_local_build(cluster, pictures):
    """Same catalog; the second time there is nothing to do, and no cluster is needed for it."""
    told = []
    report = build(pictures, "ray", progress=told.append)
    assert (
        report.ok and report.samples == 30 and len(read_catalog(pictures.root / "ray").shards) > 3
    )
    assert told[-1].total == 30
    build(pictures, "local", on=None)
    assert same(pictures, "ray", "local")
    assert build(pictures, "ray", on="ray:192.0.2.1:1").action == "nothing"


def test_a_node_dies_midway(cluster, pictures, faults):
    """Its shards are made elsewhere; what its attempts left goes with gc."""
    (faults / "wish").write_text("slow")
    node = cluster.add_node(num_cpus=2)

    def kill():
        wait_until((faults / "begun").exists)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    report = build(pictures, "ray")
    killer.join()
    (faults / "wish").write_text("work")
    build(pictures, "local", on=None)
    assert report.ok and same(pictures, "ray", "local")
    collect_garbage(pictures.root / "ray")
    names = {shard.name for shard in read_catalog(pictures.root / "ray").shards}
    left = {path.name for path in (pictures.root / "ray").iterdir()}
    assert left - {".dataset.lock"} == {CATALOG, *names}


def test_a_task_dies_once(cluster, pictures, faults):
    """It is run again; nobody notices."""
    (faults / "wish").write_text("die once")
    assert build(pictures, "ray").ok
    assert (faults / "died").exists()
    build(pictures, "local", on=None)
    assert same(pictures, "ray", "local")


def test_a_picture_that_crashes_its_process_is_named(cluster, pictures, faults):
    """As in a local build: the picture is left out and reported, the rest is there."""
    (faults / "wish").write_text("crash")
    report = build(pictures, "ray")
    assert [problem.kind for problem in report.problems] == ["crashed"]
    assert report.skipped == ["07.jpg"] and report.samples == 29
    local = build(pictures, "local", on=None, workers=1)
    assert local.skipped == ["07.jpg"] and same(pictures, "ray", "local")


def test_a_shard_that_fails_for_good_is_in_the_report(cluster, pictures, faults):
    """No catalog is written, the others are kept, and the next build makes what is missing."""
    (faults / "wish").write_text("kill")
    report = build(pictures, "ray")
    assert not report.ok and [problem.kind for problem in report.problems] == ["shard-failed"]
    assert "SIGKILL" in report.problems[0].message
    assert not (pictures.root / "ray" / "dataset.json").exists()
    (faults / "wish").write_text("work")
    again = build(pictures, "ray")
    assert again.ok and again.samples == 30 and 0 < again.derived < 30


def test_a_damaged_picture_with_on_error_fail(cluster, pictures):
    """An error of ocrstore in a task arrives as what it is."""
    (pictures.images / "03.jpg").write_bytes(b"no picture")
    with pytest.raises(SourceError, match=r"03\.jpg"):
        build(pictures, "ray", on_error="fail")
    assert not (pictures.root / "ray" / "dataset.json").exists()


def test_another_engine_is_refused(pictures):
    """Only Ray is known."""
    with pytest.raises(SchemaError, match="expected 'ray'"):
        build(pictures, "x", on="spark")


def test_numbers_are_those_of_the_function(cluster, pictures):
    """What the tasks stored is what the function drew."""
    build(pictures, "ray")
    catalog = read_catalog(pictures.root / "ray")
    with ocrstore.open(catalog.shard_path(catalog.shards[0])) as store:
        assert (np.asarray(store["prob_map"][0]) == 1).all()
