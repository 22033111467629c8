"""Data sets of many stores: which shards there are, what a change rebuilds, what is refused."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ocrstore
from ocrstore.building.build import dataset_request, prepare
from ocrstore.building.build_dataset import LOCK, collect_garbage, execute_dataset
from ocrstore.building.shard import ShardJob, build_shard, divide
from ocrstore.catalog import CATALOG, read_catalog
from ocrstore.errors import (
    NotAStoreError,
    SchemaError,
    SourceError,
    StoreBusyError,
    StoreExistsError,
    WorkerDiedError,
    WriteError,
)
from ocrstore.format.lock import FileLock
from ocrstore.machine import parse_nbytes
from ocrstore.recipe import Recipe
from ocrstore.sources import open_source
from tests.building.conftest import REPOSITORY, SIZE, draw, encode, kinds

SHARD_SIZE = 60_000  # three or four of these pictures


@pytest.fixture
def images(dataset):
    """Sixteen pictures, and the folder of the data set to be."""
    dataset.fill(16)
    dataset.out = dataset.root / "train"
    return dataset


def build(dataset, **options):
    """Build the data set."""
    options = {"size": SIZE, "workers": 0, "shard_size": SHARD_SIZE, **options}
    return ocrstore.build(dataset.images, dataset.out, **options)


def names(dataset):
    """The names of the shards by bucket, as the catalog has them."""
    return {shard.bucket: shard.name for shard in read_catalog(dataset.out).shards}


def plan(dataset, *, part=None, commit=False, **options):
    """Plan a build of the data set."""
    arguments = {"force": False, "drop_annotations": False, "on_error": "skip", **options}
    made, how = prepare(
        open_source(dataset.images),
        dataset.out,
        recipe=Recipe.make(size=SIZE, preset="balanced"),
        view=None,
        maps=None,
        workers=0,
        max_pixels=10**8,
        dataset=dataset_request(dataset.out, SHARD_SIZE, part=part, commit=commit),
        **arguments,
    )
    return made, how


def key_in(bucket, avoid=()):
    """A name of a picture that goes to a bucket."""
    found = divide([f"new_{i}.jpg" for i in range(1000)], [bucket])[bucket]
    return next(name for name in found if name not in avoid)


def test_every_sample_once_in_the_shard_of_its_hash(images):
    """The shards together have what one store has; each is an ordinary store."""
    report = build(images)
    catalog = read_catalog(images.out)
    assert report.action == "create" and report.samples == len(catalog) == 16 and report.ok
    assert report.shards == len(catalog.shards) > 3
    one = ocrstore.build(images.images, images.store, size=SIZE, workers=0)
    assert report.polygons == one.polygons and report.columns == one.columns
    assert report.bounds == one.bounds
    whole = ocrstore.open(images.store)
    keys = []
    for shard in catalog.shards:
        with ocrstore.open(catalog.shard_path(shard)) as store:
            assert ocrstore.verify(store.path).ok
            assert dict(store.columns) == dict(whole.columns) == dict(catalog.columns)
            assert store.fingerprint == shard.fingerprint and len(store) == shard.samples
            keys += store.keys
            for key in store.keys:
                assert (store["tensor"][key] == whole["tensor"][key]).all()
    assert sorted(keys) == list(whole.keys)


def test_again_does_nothing(images):
    """The second build reads no picture and leaves every file as it is."""
    build(images)
    before = {path: path.stat().st_mtime_ns for path in images.out.iterdir()}
    report = build(images)
    assert (report.action, report.derived, report.reused) == ("nothing", 0, 16)
    assert {path: path.stat().st_mtime_ns for path in images.out.iterdir()} == before


def test_touched_pictures_are_not_changed(images):
    """Another time of a file, the same bytes: the same names."""
    build(images)
    before = names(images)
    for path in images.images.iterdir():
        os.utime(path, ns=(1, 1))
    assert build(images).action == "nothing" and names(images) == before


def test_a_changed_picture_rebuilds_its_shard_alone(images):
    """The other rows of that shard are copied; the old shard stays until `gc`."""
    build(images)
    before = names(images)
    images.add("img_003.jpg", seed=77)
    report = build(images)
    after = names(images)
    (changed,) = [bucket for bucket in before if before[bucket] != after[bucket]]
    assert report.derived == 1 and report.action == "update"
    assert (images.out / before[changed]).exists()
    assert collect_garbage(images.out).keys() == {before[changed]}
    assert not (images.out / before[changed]).exists() and build(images).action == "nothing"


@pytest.mark.parametrize("change", ["annotation", "removal"])
def test_other_changes_rebuild_one_shard(images, change):
    """A changed annotation and a removed picture concern one shard."""
    build(images)
    before = names(images)
    if change == "annotation":
        images.annotate("img_003.jpg", "1,1,50,1,50,30,1,30,other")
    else:
        (images.images / "img_003.jpg").unlink()
        (images.gt / "gt_img_003.txt").unlink()
    report = build(images)
    assert len(set(before.values()) ^ set(names(images).values())) == 2
    assert report.derived == (change == "annotation") and report.removed == (change == "removal")


def test_added_pictures_change_the_shards_that_get_them(images):
    """Also when a bucket splits: the others keep their names."""
    build(images)
    before = names(images)
    bucket = max(before, key=len)
    added = []
    for _ in range(4):
        added.append(key_in(bucket, added))
        images.add(added[-1], seed=50 + len(added))
    report = build(images)
    after = names(images)
    gone = set(before) - set(after)
    assert gone == {bucket} and all(name.startswith(bucket) for name in set(after) - set(before))
    assert all(after[kept] == before[kept] for kept in set(before) - {bucket})
    assert report.derived == 4 and report.samples == 20


def test_the_same_catalog_whatever_the_way(images):
    """Built at once, in parts by several machines, or after interruptions: the same bytes."""
    build(images)
    expected = (images.out / CATALOG).read_bytes()
    images.out.rename(images.root / "first")
    for number in (3, 1, 2):
        execute_dataset(*plan(images, part=(number, 3)))
        assert not (images.out / CATALOG).exists()
    execute_dataset(*plan(images, commit=True))
    assert (images.out / CATALOG).read_bytes() == expected
    for path in (images.root / "first").glob("[01a]*.ocrs"):
        assert ocrstore.open(path).fingerprint == ocrstore.open(images.out / path.name).fingerprint


def test_commit_says_what_is_missing(images):
    """No catalog is written, and no shard made."""
    execute_dataset(*plan(images, part=(1, 2)))
    with pytest.raises(WriteError, match=r"of \d+ shards are missing \(buckets [01]+") as caught:
        execute_dataset(*plan(images, commit=True))
    assert "without --commit" in str(caught.value) and not (images.out / CATALOG).exists()
    before = set(images.out.glob("[01a]*.ocrs"))
    assert build(images).samples == 16  # goes on from the part
    assert before < set(images.out.glob("[01a]*.ocrs"))


def test_a_job_is_small_and_can_be_run_twice(images):
    """What another machine gets and returns; a second attempt finds the shard of the first."""
    made, _ = plan(images)
    images.out.mkdir()
    job = pickle.loads(pickle.dumps(made.jobs[0]))
    assert isinstance(job, ShardJob) and len(pickle.dumps(job)) < 20_000
    first = build_shard(job)
    assert first.derived == len(job.source) and len(pickle.dumps(first)) < 1000
    again = build_shard(job)
    assert again.shard == first.shard and again.derived == 0
    assert [path.name for path in images.out.iterdir()] == [first.shard.name]


def test_a_picture_that_cannot_be_used(images):
    """It is in every report; the build is done nevertheless, until the picture is repaired."""
    path = images.add("img_020.jpg", b"not a picture")
    report = build(images)
    assert not report.ok and report.skipped == ["img_020.jpg"] and "bad-picture" in kinds(report)
    again = build(images)
    assert again.action == "nothing" and again.skipped == ["img_020.jpg"] and not again.ok
    images.add("img_020.jpg", seed=20)
    assert build(images).ok and path.exists() and len(read_catalog(images.out)) == 17


def test_a_shard_without_a_sample(images):
    """A bucket whose only picture is bad has an empty shard: again is nothing to do."""
    build(images)
    bucket = next(b for b in ("000000", "111111", "010101") if not names(images).get(b))
    build(images, shard_size=1)  # one picture in each shard
    images.add(key_in(bucket), b"bad")
    assert build(images, shard_size=1).samples == 16
    assert 0 in [shard.samples for shard in read_catalog(images.out).shards]
    assert build(images, shard_size=1).action == "nothing"


def test_a_larger_limit_takes_pictures_that_were_too_large(images):
    """What was refused for its size is tried again with another limit, and nothing else is."""
    images.add("img_030.jpg", encode(draw(200, 200)))
    report = build(images, max_pixels=20_000)
    assert report.skipped == ["img_030.jpg"] and kinds(report) >= {"too-many-pixels"}
    assert build(images, max_pixels=20_000).action == "nothing"
    before = names(images)
    report = build(images, max_pixels=50_000)
    assert report.ok and report.derived == 1 and report.samples == 17
    assert len(set(before.values()) ^ set(names(images).values())) == 2
    assert build(images, max_pixels=20_000).action == "nothing"  # what is stored stays


def test_on_error_fail(images):
    """No catalog, whether the problem is new or was recorded by an earlier build."""
    images.add("img_020.jpg", b"not a picture")
    with pytest.raises(SourceError, match="img_020"):
        build(images, on_error="fail")
    assert not (images.out / CATALOG).exists()
    build(images)
    with pytest.raises(SourceError, match="--on-error skip"):
        build(images, on_error="fail")


def test_lost_annotations_are_counted_over_the_whole(images):
    """Two of sixteen are few in a shard of two, too many in all; one is allowed."""
    build(images)
    (images.gt / "gt_img_000.txt").unlink()
    assert build(images).action == "update"
    for i in (1, 2, 3):
        (images.gt / f"gt_img_{i:03}.txt").unlink()
    with pytest.raises(StoreExistsError, match=r"the data set has 6 polygons in 3 .*--drop-ann"):
        build(images)
    assert build(images, drop_annotations=True).polygons == 24


def test_another_folder_of_pictures_is_refused(images, tmp_path):
    """None of the samples is in it: probably the wrong one."""
    build(images)
    images.images.rename(tmp_path / "other")
    images.add("other.jpg")
    with pytest.raises(StoreExistsError, match="is it the right folder"):
        build(images)
    assert build(images, force=True).samples == 1


def test_the_existing_data_set_keeps_its_shard_size(images):
    """Without the option the recorded size is used; the same result."""
    build(images)
    before = (images.out / CATALOG).read_bytes()
    assert build(images, shard_size=None).action == "nothing"
    assert (images.out / CATALOG).read_bytes() == before
    smaller = build(images, shard_size=SHARD_SIZE // 2)
    assert smaller.shards > len(before) // 10_000 and smaller.derived == 0  # rows are copied
    shards = set(names(images))
    assert build(images, shard_size="1GB").action == "nothing"  # never joined
    assert set(names(images)) == shards


def test_another_recipe_makes_every_shard_again(images):
    """New names; the pictures are taken from the old shards."""
    build(images)
    before = names(images)
    report = build(images, size=SIZE // 2)
    after = names(images)
    assert report.action == "update" and not set(before.values()) & set(after.values())
    assert read_catalog(images.out).columns["tensor"].shape == (SIZE // 2, SIZE // 2, 3)


def test_force_makes_every_shard_again(images):
    """The names are the same, the files are new."""
    build(images)
    before = {path.name: path.stat().st_mtime_ns for path in images.out.glob("[01a]*.ocrs")}
    assert build(images, force=True).derived == 16
    after = {path.name: path.stat().st_mtime_ns for path in images.out.glob("[01a]*.ocrs")}
    assert before.keys() == after.keys() and not set(before.values()) & set(after.values())


def test_a_shard_that_somebody_changed(images):
    """It is named, with the difference; --force repairs it."""
    build(images)
    shard = images.out / min(names(images).values())
    ocrstore.add_view(shard, size=32, workers=0)
    with pytest.raises(SchemaError, match=rf"{shard.name}: differs .*32/"):
        build(images)
    assert build(images, force=True).ok
    with ocrstore.edit(shard) as writer:
        writer.delete(writer.keys[0])
    with pytest.raises(SourceError, match=rf"{shard.name}: has \d samples of"):
        build(images)


def test_a_shard_that_somebody_removed(images):
    """It is made again, under the same name."""
    build(images)
    before = (images.out / CATALOG).read_bytes()
    (images.out / min(names(images).values())).unlink()
    assert 0 < build(images).derived < 16
    assert (images.out / CATALOG).read_bytes() == before


def test_garbage_is_what_the_catalog_does_not_name(images):
    """Attempts and old shards go; foreign files, folders, links and the catalog's shards stay."""
    build(images)
    kept = {*(path.name for path in images.out.iterdir()), "notes.txt", "val.ocrs", "model.ckpt"}
    for name in ("notes.txt", "val.ocrs", "model.ckpt"):
        (images.out / name).write_bytes(b"mine")
    (images.out / f"1-{'0' * 16}.ocrs").mkdir()
    (images.out / f"0-{'0' * 16}.ocrs").symlink_to(images.store)
    kept |= {f"1-{'0' * 16}.ocrs", f"0-{'0' * 16}.ocrs"}
    garbage = {
        f"all-{'a' * 16}.ocrs": 3,
        f".01-{'b' * 16}.attempt.ocrs": 3,
        f"..01-{'b' * 16}.attempt.ocrs.partial": 3,
    }
    for name in garbage:
        (images.out / name).write_bytes(b"abc")
    assert collect_garbage(images.out, dry_run=True) == garbage
    assert {path.name for path in images.out.iterdir()} == kept | garbage.keys()
    assert collect_garbage(images.out) == garbage
    assert {path.name for path in images.out.iterdir()} == kept


def test_garbage_is_not_collected_during_a_build(images):
    """Builds hold a lock together; `gc` waits for none of them, and needs a catalog."""
    images.out.mkdir()
    with pytest.raises(NotAStoreError, match=r"no dataset\.json"):
        collect_garbage(images.out)
    build(images)
    locks = [
        FileLock(images.out / LOCK, create=True, store=images.out, shared=True) for _ in range(2)
    ]
    with pytest.raises(StoreBusyError):
        collect_garbage(images.out)
    for lock in locks:
        lock.release()
    assert collect_garbage(images.out) == {}


@pytest.mark.parametrize("number", range(3))
def test_divide_is_stable(number):
    """Buckets are prefixes that cover every key once; more keys refine, and never join."""
    keys = [f"{number}/{i}" for i in range(500)]
    few = divide(keys[:200], [], most=20)
    more = divide(keys, few, most=20)
    for found, of in ((few, keys[:200]), (more, keys)):
        assert sorted(key for members in found.values() for key in members) == sorted(of)
        assert max(map(len, found.values())) <= 20
    assert all(any(bucket.startswith(old) for old in few) for bucket in more if len(bucket) > 3)
    assert divide(keys, more, most=1000).keys() == more.keys()
    assert divide(["a"], ["11", "0"]) in ({"0": ["a"]}, {"10": ["a"]}, {"11": ["a"]})


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("512MB", 512_000_000), ("1.5 GB", 1_500_000_000), ("2MiB", 2**21), (7, 7), ("64k", 64_000)],
)
def test_sizes(text, nbytes):
    """As people write them."""
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "0", -1, "1e9", "512 bytes", "0.1B"])
def test_no_sizes(text):
    """What is no size is refused with an example."""
    with pytest.raises(SchemaError, match="512MB"):
        parse_nbytes(text)


def test_a_store_is_no_folder_of_shards(images):
    """And a data set cannot be made in parts without a size."""
    for out in (images.store, images.root / "x.ocrs"):
        images.store.write_bytes(b"")
        with pytest.raises(SchemaError, match="name a folder"):
            dataset_request(out, "1MB")
    with pytest.raises(SchemaError, match="--shard-size"):
        dataset_request(images.out, None, commit=True)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [2, 7, 15])
def test_killed_and_continued(images, samples):
    """SIGKILL midway: what is done stays; again gives the same catalog; `gc` takes the rest."""
    build(images)
    expected = (images.out / CATALOG).read_bytes()
    images.out.rename(images.root / "undisturbed")
    script = f"""if True:
        import os, signal, ocrstore
        def progress(now):
            if now.done == {samples}:
                os.kill(os.getpid(), signal.SIGKILL)
        ocrstore.build({str(images.images)!r}, {str(images.out)!r}, size={SIZE}, workers=0,
                       shard_size={SHARD_SIZE}, progress=progress)
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=120)
    assert done.returncode == -signal.SIGKILL and not (images.out / CATALOG).exists()
    there = set(images.out.glob("[01a]*.ocrs"))
    report = build(images)
    assert report.derived <= 16 - len(there) and (images.out / CATALOG).read_bytes() == expected
    assert all("attempt" in name for name in collect_garbage(images.out))
    assert not list(images.out.glob(".*attempt*"))


def test_worker_processes_make_the_same(images):
    """Whole shards in other processes: the same catalog, and progress over the whole."""
    images.fill(14, start=16)
    build(images)
    expected = (images.out / CATALOG).read_bytes()
    images.out.rename(images.root / "first")
    told = []
    report = build(images, workers=2, progress=told.append)
    assert report.derived == 30 and (images.out / CATALOG).read_bytes() == expected
    assert told[-1].done == told[-1].total == 30
    images.add("img_020.jpg", b"not a picture")
    with pytest.raises(SourceError, match="img_020"):
        build(images, workers=2, size=32, on_error="fail")
    assert (images.out / CATALOG).read_bytes() == expected


@pytest.mark.slow
def test_a_worker_that_is_killed(images):
    """The error names the shard; what is made stays, and no worker is left."""
    images.fill(44, start=16)

    def kill_one(now):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)

    with pytest.raises(WorkerDiedError, match=r"SIGKILL\) while making shard [01]+"):
        build(images, workers=2, progress=kill_one)
    assert Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text() == ""
    assert build(images, workers=2).samples == 60
    killed = collect_garbage(images.out)
    assert len(killed) <= 1 and all("attempt" in name for name in killed)
