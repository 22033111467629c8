"""A source whose annotations were not found never empties a store by itself."""

import shutil
import tarfile
import zipfile
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ocrstore
from ocrstore.errors import SourceError, StoreExistsError
from tests.building.conftest import SIZE


@pytest.fixture
def built(dataset):
    """A store of four pictures with two polygons each, whose annotations have moved since."""
    dataset.fill(4)
    ocrstore.build(dataset.images, dataset.store, annotations=dataset.gt, size=SIZE, workers=0)
    dataset.gt.rename(dataset.root / "moved")
    return dataset


def polygons(path):
    """Return the number of polygons in a store."""
    with ocrstore.open(path) as store:
        return sum(map(len, store.index["ignored"].to_pylist()))


@pytest.mark.parametrize("options", [{}, {"force": True}, {"format": "folder"}, {"size": 32}])
def test_no_build_removes_every_polygon(built, options):
    """Moved annotations: refused with numbers and the old place, whatever the reason to build."""
    before = built.store.read_bytes()
    with pytest.raises(StoreExistsError) as caught:
        ocrstore.build(built.images, built.store, **{"size": SIZE, "workers": 0} | options)
    message = str(caught.value)
    assert "8 polygons in 4 of these pictures" in message and "--drop-annotations" in message
    assert f"--annotations {built.gt}" in message and "does not exist now" in message
    assert built.store.read_bytes() == before


def places(folder):
    """Pictures by where they are: a function that makes the source with or without annotations."""
    images, gt = folder / "images", folder / "moved"
    names = sorted(path.name for path in images.iterdir())

    def packed(suffix, annotated):
        files = {name: images / name for name in names}
        if annotated:
            files |= {f"{name[:-4]}.txt": gt / f"gt_{name[:-4]}.txt" for name in names}
        path = folder / f"all{suffix}"
        if suffix == ".tar":
            with tarfile.open(path, "w") as tar:
                for name, file in files.items():
                    tar.add(file, name)
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for name, file in files.items():
                    archive.write(file, name)
        return path

    def listed(annotated):
        ends = [f"\tmoved/gt_{name[:-4]}.txt" if annotated else "" for name in names]
        lines = [f"images/{name}{end}\n" for name, end in zip(names, ends, strict=True)]
        (folder / "all.lst").write_text("".join(lines))
        return folder / "all.lst"

    def table(annotated):
        column = "objects" if annotated else "regions"
        box = {"bbox": [[10.0, 10, 50, 20]] * 2, "text": ["a", "b"]}
        rows = [
            {
                "key": name,
                "image": {"bytes": (images / name).read_bytes(), "path": name},
                column: box,
            }
            for name in names
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / "all.parquet")
        return folder / "all.parquet"

    def samples(annotated):
        boxes = [[10, 10, 60, 10, 60, 30, 10, 30]] * 2
        return [
            ocrstore.SourceSample(name, images / name, boxes if annotated else None)
            for name in names
        ]

    return {
        "tar": (partial(packed, ".tar"), "--annotations "),
        "zip": (partial(packed, ".zip"), "--annotations "),
        "list": (listed, "--annotations "),
        "parquet": (table, "--columns-map objects=NAME"),
        "python": (samples, "give these their polygons"),
    }


@pytest.mark.parametrize("place", ["tar", "zip", "list", "parquet", "python"])
def test_every_kind_of_source(built, place):
    """The same pictures without their annotations are refused, with what to do about it."""
    make, advice = places(built.root)[place]
    store = built.root / "other.ocrs"
    assert ocrstore.build(make(True), store, size=SIZE, workers=0).polygons == 8
    with pytest.raises(StoreExistsError, match="8 polygons in 4 of these pictures") as caught:
        ocrstore.build(make(False), store, size=SIZE, workers=0)
    assert advice in str(caught.value) and "not registered" not in str(caught.value)
    report = ocrstore.build(make(False), store, size=SIZE, workers=0, drop_annotations=True)
    assert report.polygons == 0


def test_what_the_message_says_works(built):
    """With the annotations, wherever they are, there is nothing to do; with the flag they go."""
    moved = built.root / "moved"
    report = ocrstore.build(built.images, built.store, annotations=moved, size=SIZE, workers=0)
    assert report.action == "nothing" and polygons(built.store) == 8
    report = ocrstore.build(built.images, built.store, size=SIZE, workers=0, drop_annotations=True)
    assert report.action == "update" and polygons(built.store) == 0
    # nothing is left to lose
    assert ocrstore.build(built.images, built.store, size=SIZE, workers=0).action == "nothing"


def test_annotations_read_by_the_wrong_dialect(built):
    """Files are found, but give no polygon: that is a loss, too."""
    built.gt.mkdir()
    for path in built.images.iterdir():
        (built.gt / f"gt_{path.stem}.txt").write_text("nothing, that, is, a, number\n")
    with pytest.raises(StoreExistsError, match="8 polygons"):
        ocrstore.build(
            built.images, built.store, annotations=built.gt, format="icdar", size=SIZE, workers=0
        )


@pytest.mark.parametrize(("left", "lost"), [(1, 3), (2, 2), (3, 0)])
def test_some_annotations_may_go(built, left, lost):
    """One picture without its annotation is a change like any other; several of four are a loss."""
    built.gt.mkdir()
    for number in range(left):
        shutil.copy(built.root / "moved" / f"gt_img_00{number}.txt", built.gt)
    options = {"size": SIZE, "workers": 0}
    if lost:
        with pytest.raises(StoreExistsError, match=f"{2 * lost} polygons in {lost} of these"):
            ocrstore.build(built.images, built.store, **options)
        assert polygons(built.store) == 8
        options["drop_annotations"] = True
    ocrstore.build(built.images, built.store, **options)
    assert polygons(built.store) == 2 * left


def test_a_small_share_of_annotations_may_go(dataset):
    """Two of twenty may, two of seven not; an emptied file says that there is no text."""
    dataset.fill(20)
    options = {"annotations": dataset.gt, "size": SIZE, "workers": 0}
    ocrstore.build(dataset.images, dataset.store, **options)
    files = sorted(dataset.gt.iterdir())
    for path in files[:2]:
        path.unlink()
    for path in files[10:]:
        path.write_text("")
    ocrstore.build(dataset.images, dataset.store, **options)
    assert polygons(dataset.store) == 16
    files[2].unlink()
    assert ocrstore.build(dataset.images, dataset.store, **options).polygons == 14
    files[3].unlink()
    files[4].unlink()
    with pytest.raises(StoreExistsError, match="4 polygons in 2 of these"):
        ocrstore.build(dataset.images, dataset.store, **options)


def test_the_commands_say_it(built, cli):
    """build exits with 2, a dry run warns, verify --source does not advise to build."""
    done = cli("build", built.images, "--out", built.store, code=2)
    assert "8 polygons" in done.stderr and "updating" not in done.stdout
    done = cli("build", built.images, "--out", built.store, "--dry-run", code=0)
    assert "without --drop-annotations would be refused" in done.stdout
    done = cli("verify", built.store, "--source", built.images, code=1)
    assert "8 polygons" in done.stdout and "up to date" not in done.stdout
    cli("build", built.images, "--out", built.store, "--drop-annotations", code=0)
    assert polygons(built.store) == 0


def test_a_further_view_has_the_polygons_of_the_store(dataset):
    """Maps of add-view are drawn from the source's annotations, which have to be the same."""
    dataset.fill(3)
    columns = ["tensor", "prob_map", "inverse_matrix"]
    options = {"size": SIZE, "columns": columns, "workers": 0}
    ocrstore.build(dataset.images, dataset.store, annotations=dataset.gt, **options)
    dataset.gt.rename(dataset.root / "moved")
    with pytest.raises(SourceError, match="0 polygons in the source, 2 in the store"):
        ocrstore.add_view(dataset.store, size=128, images=dataset.images, workers=0)
    moved = dataset.root / "moved"
    ocrstore.add_view(dataset.store, size=128, images=dataset.images, annotations=moved, workers=0)
    with ocrstore.open(dataset.store) as store:
        assert np.asarray(store["128/prob_map"][0]).any()


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
def test_annotations_in_an_archive(built, suffix, cli):
    """The archive is named, not a folder in it, and what the message advises works."""
    images, store = built.images, built.root / "other.ocrs"
    archive = built.root / f"all{suffix}"
    files = [(f"img/{path.name}", path) for path in sorted(images.iterdir())]
    files += [(f"gt/{path.name}", path) for path in sorted((built.root / "moved").iterdir())]
    if suffix == ".tar":
        with tarfile.open(archive, "w") as tar:
            for name, path in files:
                tar.add(path, name)
    else:
        with zipfile.ZipFile(archive, "w") as packed:
            for name, path in files:
                packed.write(path, name)
    options = {"size": SIZE, "workers": 0}
    assert ocrstore.build(archive, store, **options).polygons == 8
    (built.root / "again").mkdir()
    images.rename(built.root / "again" / "img")
    with pytest.raises(StoreExistsError) as caught:
        ocrstore.build(built.root / "again", store, **options)
    message = str(caught.value)
    assert f"read from {archive}. Give" in message and "not exist" not in message
    assert f"--annotations {archive}" in message
    done = cli("build", built.root / "again", "--out", store, "--annotations", archive, code=0)
    assert "8, 0 of them ignored" in done.stdout
    archive.unlink()
    with pytest.raises(StoreExistsError, match="does not exist now"):
        ocrstore.build(built.root / "again", store, **options)


def test_annotations_in_several_archives(dataset):
    """The pattern of the pictures' archives is named, in quotes for a shell; it works as well."""
    dataset.fill(4)
    for number, path in enumerate(sorted(dataset.images.iterdir())):
        with tarfile.open(dataset.root / f"part-{number}.tar", "w") as tar:
            tar.add(path, path.name)
            tar.add(dataset.gt / f"gt_{path.stem}.txt", f"gt_{path.stem}.txt")
    options = {"size": SIZE, "workers": 0}
    pattern = dataset.root / "part-{0..3}.tar"
    ocrstore.build(pattern, dataset.store, **options)
    dataset.gt.rename(dataset.root / "moved")
    with pytest.raises(StoreExistsError) as caught:
        ocrstore.build(dataset.images, dataset.store, **options)
    assert f"read from {pattern}. " in str(caught.value)
    assert f"--annotations '{pattern}'" in str(caught.value)
    report = ocrstore.build(dataset.images, dataset.store, annotations=pattern, **options)
    assert report.polygons == 8


DIALECT = """
from ocrstore.sources import Dialect, Region

class Boxes(Dialect):
    name, looks_for, suffixes, per_picture = "boxes", "boxes", (".bx",), True

    def recognise(self, file):
        return True

    def regions(self, entry):
        yield Region([[1, 1], [20, 1], [20, 20]])

class Half(Dialect):
    def recognise(self, file):
        return True
"""


def test_a_dialect_that_is_not_registered(dataset, cli):
    """build and verify advise --format MODULE:CLASS, and both take it."""
    dataset.fill(3)
    for path in dataset.images.iterdir():
        path.with_suffix(".bx").write_text("x")
    shutil.rmtree(dataset.gt)
    (dataset.root / "mydial.py").write_text(DIALECT)
    build = ("build", dataset.images, "--out", dataset.store)
    own = ("--format", "mydial:Boxes")
    done = cli(*build, "--size", SIZE, *own, code=0, cwd=dataset.root)
    assert "3, 0 of them ignored" in done.stdout
    done = cli(*build, code=2)
    assert "boxes is not registered now" in done.stderr
    assert f"--annotations {dataset.images} --format MODULE:CLASS" in done.stderr
    verify = ("verify", dataset.store, "--source", dataset.images)
    assert "--format MODULE:CLASS" in cli(*verify, code=1).stdout
    again = ("--annotations", dataset.images, *own)
    assert "nothing to do" in cli(*build, *again, code=0, cwd=dataset.root).stdout
    cli(*verify, *again, code=0, cwd=dataset.root)


def test_force_and_other_pictures_without_annotations(built, cli):
    """A folder whose keys all changed: --force alone does not drop the polygons."""
    other = built.root / "bare" / "sub"
    other.parent.mkdir()
    built.images.rename(other)
    options = {"size": SIZE, "workers": 0}
    with pytest.raises(StoreExistsError, match="is it the right folder"):
        ocrstore.build(other.parent, built.store, **options)
    for more in ({}, {"view": "other"}):
        with pytest.raises(StoreExistsError, match="8 polygons in 4 pictures, none of which is in"):
            ocrstore.build(other.parent, built.store, force=True, **options, **more)
    done = cli("build", other.parent, "--out", built.store, "--force", code=2)
    assert f"read from {built.gt}" in done.stderr and "--drop-annotations" in done.stderr
    annotated = {"annotations": built.root / "moved"}
    assert ocrstore.build(other.parent, built.store, force=True, **options, **annotated).ok
    assert polygons(built.store) == 8
    other.rename(other.with_name("third"))
    options |= {"force": True, "drop_annotations": True}
    assert ocrstore.build(other.parent, built.store, **options).polygons == 0
