"""Building a store: what is in it, determinism, incremental builds, options."""

import json
import os

import cv2
import numpy as np
import pyarrow as pa
import pytest

import ocrstore
from ocrstore.building.build import build, prepare
from ocrstore.building.plan import IN_PLACE
from ocrstore.building.run import execute
from ocrstore.decode import decode
from ocrstore.errors import NotAStoreError, SchemaError, SourceError
from ocrstore.float16 import to_float16
from ocrstore.geometry import invert, longest_side, transform_points
from ocrstore.maps import draw_maps
from ocrstore.recipe import DEFAULT_PRESET, PRESETS, Recipe
from ocrstore.sources import open_source
from ocrstore.verification import verify
from tests.building.conftest import QUADS, SIZE, draw, encode, kinds, with_exif


def make(dataset, **options):
    """Build small and in this process, unless said otherwise."""
    options = {"size": SIZE, "workers": 0, **options}
    if "recipe" in options or "pipeline" in options:
        options.pop("size")
    return build(dataset.images, dataset.store, **options)


def test_what_a_store_holds(dataset):
    """Columns, attributes and metadata are what decode, geometry and maps make of the source."""
    dataset.add("a b.jpg", seed=1, texts=["word", "###"])
    dataset.add("sub/ü.png", encode(draw(80, 50, seed=2), ".png"), quads=QUADS[:1])
    report = make(dataset)
    assert report.ok and report.action == "create" and report.samples == 2
    assert (report.polygons, report.ignored_polygons, report.derived) == (3, 1, 2)
    store = ocrstore.open(dataset.store)
    assert store.keys == ("a b.jpg", "sub/ü.png")
    for row, key in enumerate(store.keys):
        data = (dataset.images / key).read_bytes()
        pixels = decode(data).pixels
        geometry = longest_side(pixels.shape[:2], (SIZE, SIZE))
        facts = store.attributes(key)
        quads = [np.array(p, np.float32).reshape(-1, 2) for p in facts["polygons"]]
        assert [q.tolist() for q in quads] == QUADS[: len(quads)]
        moved = [transform_points(geometry.matrix, q) for q in quads]
        maps = draw_maps(moved, facts["ignored"], SIZE, SIZE)
        assert np.array_equal(store["image"][row], pixels)
        assert np.array_equal(store["tensor"][row], geometry.apply(pixels))
        assert np.array_equal(store["prob_map"][row], to_float16(maps.prob_map))
        assert np.array_equal(store["thresh_map"][row], to_float16(maps.thresh_map))
        assert np.array_equal(store["prob_mask"][row], maps.prob_mask)
        assert np.array_equal(store["thresh_mask"][row], maps.thresh_mask)
        assert np.array_equal(store["inverse_matrix"][row], invert(geometry.matrix))
        assert (facts["height"], facts["width"]) == pixels.shape[:2]
        stat = (dataset.images / key).stat()
        assert (facts["source_nbytes"], facts["source_mtime_ns"]) == (
            stat.st_size,
            stat.st_mtime_ns,
        )
        assert facts["annotated"] is True and facts["source_orientation"] == 1
    assert store.attributes(0)["texts"] == ["word", "###"]
    assert store.attributes(0)["ignored"] == [False, True]
    assert store.attributes(0)["languages"] == [None, None]
    assert store.index.schema.field("polygons").type == pa.list_(pa.list_(pa.float32()))
    views = store.metadata["views"]
    assert list(views) == [str(SIZE)] and store.metadata["default_view"] == str(SIZE)
    entry = views[str(SIZE)]
    assert entry["fingerprint"] == Recipe.make(size=SIZE, preset=DEFAULT_PRESET).fingerprint
    assert Recipe.from_json(entry["recipe"]).fingerprint == entry["fingerprint"]
    assert entry["columns"]["tensor"] == "tensor" and "image" not in entry["columns"]
    assert ocrstore.verify(dataset.store).ok


def test_workers_make_no_difference(dataset):
    """In this process, with one worker and with three: one fingerprint."""
    dataset.fill(11)
    dataset.add("large.jpg", encode(draw(900, 700, seed=5)))
    found = set()
    for workers in (0, 1, 3):
        report = make(dataset, workers=workers, force=True)
        assert report.samples == 12
        found.add(report.fingerprint)
    assert len(found) == 1


def test_building_again_does_nothing(dataset):
    """Nothing changed, nothing is written, and it says so."""
    dataset.fill(3)
    make(dataset)
    before = dataset.store.read_bytes()
    report = make(dataset)
    assert report.action == "nothing" and report.reasons == ["nothing has changed"]
    assert (report.derived, report.reused, report.samples) == (0, 3, 3)
    assert dataset.store.read_bytes() == before


def test_new_changed_and_removed_pictures(dataset):
    """Only what changed is made; the result is what a fresh build makes."""
    dataset.fill(8)
    make(dataset)
    dataset.add("img_0005b.jpg", seed=50)
    dataset.add("img_002.jpg", seed=20)
    dataset.annotate("img_003.jpg", "1,1,60,1,60,40,1,40,other")
    (dataset.images / "img_004.jpg").unlink()
    (dataset.gt / "gt_img_004.txt").unlink()
    os.utime(dataset.images / "img_006.jpg", (1, 1))  # another time, the same bytes
    report = make(dataset)
    assert report.action == "update"
    assert (report.derived, report.reused, report.removed) == (3, 5, 1)
    text = "\n".join(report.reasons)
    assert "1 new picture (img_0005b.jpg)" in text
    assert "1 removed picture (img_004.jpg)" in text
    assert "changed picture (img_003.jpg): annotation changed" in text
    assert "(img_002.jpg): file size changed" in text or "(img_002.jpg): content changed" in text
    store = ocrstore.open(dataset.store)
    assert store.keys == tuple(sorted(store.keys)) and len(store) == 8
    assert store.generation == 2
    assert verify(dataset.store, source=dataset.images, workers=0).ok
    os.utime(
        dataset.images / "img_006.jpg", ns=(1, store.attributes("img_006.jpg")["source_mtime_ns"])
    )
    fresh = build(dataset.images, dataset.root / "fresh.ocrs", size=SIZE, workers=0)
    assert fresh.fingerprint == report.fingerprint
    again = ocrstore.open(dataset.root / "fresh.ocrs").metadata["build"]["fingerprint"]
    assert again == store.metadata["build"]["fingerprint"]


def test_a_changed_picture_that_cannot_be_used_leaves_the_store(dataset):
    """The store is what the source is; the report tells of the loss."""
    dataset.fill(3)
    make(dataset)
    (dataset.images / "img_001.jpg").write_bytes(b"broken")
    report = make(dataset)
    assert report.skipped == ["img_001.jpg"] and kinds(report) == {"bad-picture"}
    assert ocrstore.open(dataset.store).keys == ("img_000.jpg", "img_002.jpg")


def test_many_new_pictures_are_written_into_a_new_file(dataset, monkeypatch):
    """Beyond a limit a rewrite takes over unchanged samples as they are."""
    assert IN_PLACE == 256
    monkeypatch.setattr("ocrstore.building.plan.IN_PLACE", 2)
    dataset.fill(4)
    make(dataset)
    dataset.fill(3, start=4)
    report = make(dataset)
    assert report.action == "rewrite" and (report.derived, report.reused) == (3, 4)
    assert ocrstore.open(dataset.store).generation == 1
    assert verify(dataset.store, source=dataset.images, workers=0).ok


def test_a_changed_recipe(dataset):
    """The reason names the fields; pictures are taken from the store, not decoded again."""
    dataset.fill(3)
    make(dataset)
    report = make(dataset, size=96)
    assert report.action == "rewrite" and report.derived == 3
    assert report.reasons[:2] == [
        "the default view 64 becomes 96",
        "the recipe of view 96 changed: size: [64, 64] -> [96, 96]",
    ]
    store = ocrstore.open(dataset.store)
    assert store["tensor"][0].shape == (96, 96, 3)
    assert verify(dataset.store, source=dataset.images, workers=0).ok
    fresh = build(dataset.images, dataset.root / "fresh.ocrs", size=96, workers=0)
    assert fresh.fingerprint == report.fingerprint


def test_fewer_and_more_columns(dataset):
    """Columns that stay are copied; a column that comes is made from the stored pictures."""
    dataset.fill(3)
    make(dataset)
    fewer = make(dataset, columns=["image", "tensor"])
    assert fewer.action == "rewrite" and (fewer.derived, fewer.reused) == (0, 3)
    assert set(fewer.columns) == {"image", "tensor"}
    more = make(dataset, columns=["image", "tensor", "prob_map"])
    assert more.action == "rewrite" and more.derived == 3
    assert verify(dataset.store, source=dataset.images, workers=0).ok
    without = make(dataset, columns=["tensor"])
    assert without.reused == 3 and list(without.columns) == ["tensor"]
    back = make(dataset, columns=["image", "tensor"])  # the pictures must be decoded again
    assert back.derived == 3
    assert verify(dataset.store, source=dataset.images, workers=0).ok


def test_mean_and_std_change_the_manifest_only(dataset):
    """Numbers for the model are brought up to date without writing a pixel."""
    dataset.fill(2)
    make(dataset)
    nbytes = dataset.store.stat().st_size
    recipe = Recipe.make(size=SIZE, preset=DEFAULT_PRESET, mean=(0.5, 0.5, 0.5))
    report = make(dataset, recipe=recipe)
    assert report.action == "update" and report.derived == 0 and "mean" in report.reasons[0]
    store = ocrstore.open(dataset.store)
    assert store.metadata["views"][str(SIZE)]["recipe"]["mean"] == [0.5, 0.5, 0.5]
    assert dataset.store.stat().st_size < nbytes + 200_000


def test_another_decoder_family_decodes_again(dataset, monkeypatch):
    """A store made by other decoders is rewritten, and the reason names both."""
    dataset.fill(2)
    make(dataset)
    families = {"jpeg": "other-jpeg", "png": "opencv"}
    monkeypatch.setattr("ocrstore.building.plan.DECODER_FAMILIES", families)
    report = make(dataset)
    assert report.action == "rewrite" and report.derived == 2
    assert report.reasons == ["jpeg pictures are decoded by other-jpeg now, not by libjpeg-turbo"]
    assert ocrstore.open(dataset.store).metadata["build"]["decoders"] == families


def test_another_family_of_a_format_that_is_not_there_changes_nothing(dataset, monkeypatch):
    """Only the formats of the store's own pictures count; a mislabelled one may be of any."""
    dataset.fill(2)
    make(dataset)
    families = {"jpeg": "libjpeg-turbo", "png": "other-png"}
    monkeypatch.setattr("ocrstore.building.plan.DECODER_FAMILIES", families)
    assert make(dataset).action == "nothing"
    dataset.add("really_a_jpeg.png", encode(draw(40, 30)))
    make(dataset)
    monkeypatch.setattr("ocrstore.building.plan.DECODER_FAMILIES", families | {"png": "third"})
    assert make(dataset).reasons == ["png pictures are decoded by third now, not by other-png"]


def test_force_starts_over(dataset):
    """--force rebuilds from scratch; a file that is no store is never overwritten."""
    dataset.fill(2)
    make(dataset)
    report = make(dataset, force=True)
    assert report.action == "create" and report.derived == 2
    dataset.store.write_text("my novel")
    for force in (False, True):
        with pytest.raises(NotAStoreError):
            make(dataset, force=force)
    assert dataset.store.read_text() == "my novel"


def test_a_store_made_by_hand_is_not_touched(dataset):
    """A store that was not built from pictures is refused, with the remedy."""
    dataset.fill(1)
    with ocrstore.create(dataset.store, {"x": ocrstore.Column("uint8", ())}) as writer:
        writer.append("a", {"x": 1})
    with pytest.raises(SchemaError, match="--force"):
        make(dataset)
    assert make(dataset, force=True).samples == 1


def test_exif_rotation(dataset):
    """Pictures stand upright, polygons with them, and the report says which frame was found."""
    stored = draw(90, 120, seed=3)
    wide = [[[5, 5], [110, 5], [110, 20], [5, 20]]]  # fits the stored frame only
    tall = [[[5, 5], [20, 5], [20, 110], [5, 110]]]  # fits the upright frame only
    either = [[[5, 5], [20, 5], [20, 20], [5, 20]]]
    dataset.add("plain.jpg", seed=3)
    for name, quads in (("wide", wide), ("tall", tall), ("either", either)):
        dataset.add(f"{name}.jpg", with_exif(encode(stored), 6), quads=quads)
    report = make(dataset, polygons_frame="raw")
    store = ocrstore.open(dataset.store)
    assert store["image"][store.row("wide.jpg")].shape == (120, 90, 3)
    assert np.array_equal(
        store["image"][store.row("wide.jpg")], np.rot90(store["image"][store.row("plain.jpg")], -1)
    )
    assert store.attributes("tall.jpg")["polygons"] == [np.ravel(tall[0]).tolist()]
    assert store.attributes("wide.jpg")["polygons"] == [[84, 5, 84, 110, 69, 110, 69, 5]]
    found = {(p.key, p.kind): p.message for p in report.problems}
    assert "stored picture only" in found["wide.jpg", "polygons-rotated"]
    assert "either way" in found["either.jpg", "polygons-rotated"]
    assert "upright picture only" in found["tall.jpg", "polygons-upright"]
    assert report.ok and store.attributes("wide.jpg")["source_orientation"] == 6
    assert store.index["source_orientation"].to_pylist() == [6, 1, 6, 6]
    assert "orientation" not in store.index.column_names


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_codecs(dataset, codec):
    """Compressed columns hold the same arrays; the change of codec is a reason to rewrite."""
    dataset.fill(2)
    make(dataset, preset="fast")
    before = [np.array(a) for a in ocrstore.open(dataset.store)["image"][0:2]]
    report = make(dataset, codecs={"image": codec, "prob_map": codec})
    assert f'columns.image.codec: "raw" -> "{codec}"' in "\n".join(report.reasons)
    store = ocrstore.open(dataset.store)
    assert store.columns["image"].codec == codec
    assert store.columns["thresh_map"].codec == "raw"  # nobody said that it should change
    for a, b in zip(before, store["image"][0:2], strict=True):
        assert np.array_equal(a, b)
    assert make(dataset, codecs={"image": codec, "prob_map": codec}).action == "nothing"
    assert verify(dataset.store, source=dataset.images, workers=0).ok


@pytest.mark.parametrize("workers", [0, 2])
def test_files_as_the_image_column(dataset, workers):
    """Codec file keeps the bytes of every format; a file larger than its pixels is compressed."""
    dataset.fill(2)
    suffixes = (".png", ".webp", ".tiff", ".bmp")
    for suffix in suffixes:
        params = [cv2.IMWRITE_TIFF_COMPRESSION, 5] if suffix == ".tiff" else ()
        dataset.add(
            f"x_{suffix[1:]}{suffix}", encode(np.full((80, 90, 3), 40, np.uint8), suffix, params)
        )
    report = make(dataset, codecs={"image": "file"}, workers=workers)
    assert report.ok and report.samples == 2 + len(suffixes)
    store = ocrstore.open(dataset.store)
    for row, key in enumerate(store.keys):
        data = (dataset.images / key).read_bytes()
        assert np.array_equal(store["image"][row], decode(data).pixels)
        assert (bytes(store["image"].stored(row)) == data) == (not key.endswith(".bmp")), key
    assert store["image"].nbytes[store.row("x_bmp.bmp")] < 1000
    again = make(dataset, size=48)  # from the stored bytes
    assert again.action == "rewrite" and again.derived == 6
    assert ocrstore.open(dataset.store).columns["image"].codec == "file"
    assert verify(dataset.store, source=dataset.images, workers=0).ok
    assert verify(dataset.store).ok


def test_the_jpeg_codec_is_only_read(dataset):
    """It has no place for other pictures, so a new store cannot have it; an old one keeps it."""
    dataset.fill(2)
    with pytest.raises(SchemaError, match="codec file stores the files of all formats"):
        make(dataset, codecs={"image": "jpeg"})
    old = Recipe.make(size=SIZE, codecs={"image": "jpeg"})
    plan, options = prepare_recipe(dataset, old)
    execute(plan, options)
    dataset.add("x.png", encode(draw(), ".png"))
    dataset.add("new.jpg", seed=5)
    report = make(dataset)
    assert report.skipped == ["x.png"] and kinds(report) == {"not-a-jpeg"}
    store = ocrstore.open(dataset.store)
    assert store.columns["image"].codec == "jpeg" and len(store) == 3
    data = (dataset.images / "new.jpg").read_bytes()
    assert bytes(store["image"].stored(store.row("new.jpg"))) == data
    assert verify(dataset.store, source=dataset.images, workers=0).ok


def prepare_recipe(dataset, recipe):
    """Plan a build of a recipe that only an older version would have made."""
    return prepare(
        open_source(dataset.images),
        dataset.store,
        recipe=recipe,
        view=None,
        maps=None,
        workers=0,
        on_error="skip",
        force=False,
        drop_annotations=False,
        max_pixels=10**8,
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(dataset, preset):
    """Each has its codecs, holds the same arrays, and leaves out no picture."""
    dataset.fill(2)
    dataset.add("x.png", encode(draw(), ".png"))
    make(dataset, preset="fast")
    before = ocrstore.open(dataset.store)
    wanted = {name: [np.array(a) for a in before[name]] for name in before.columns}
    report = make(dataset, preset=preset)
    assert report.ok and report.samples == 3
    store = ocrstore.open(dataset.store)
    for name, arrays in wanted.items():
        assert store.columns[name].codec == PRESETS[preset].get(name, "raw")
        assert all(np.array_equal(a, b) for a, b in zip(arrays, store[name], strict=True))
    dataset.add("later.jpg", seed=9)
    assert make(dataset, size=SIZE).action == "update"  # an existing store keeps its codecs
    assert {n: c.codec for n, c in ocrstore.open(dataset.store).columns.items()} == {
        name: PRESETS[preset].get(name, "raw") for name in wanted
    }
    assert verify(dataset.store, source=dataset.images, workers=0).ok


def test_what_a_recipe_says_overrides_the_preset(dataset):
    """A recipe file's codecs count; the preset is for the columns that it leaves open."""
    dataset.fill(1)
    recipe = dataset.root / "recipe.yaml"
    recipe.write_text(f"size: {SIZE}\ncolumns:\n  tensor: {{codec: zstd}}\n  prob_map:\n")
    make(dataset, recipe=recipe, preset="small")
    columns = ocrstore.open(dataset.store).columns
    assert (columns["tensor"].codec, columns["prob_map"].codec) == ("zstd", "lz4block")
    with pytest.raises(SchemaError, match="leave out `preset`"):
        make(dataset, recipe=Recipe.make(size=SIZE), preset="small")
    with pytest.raises(SchemaError, match="unknown preset 'tiny'"):
        make(dataset, preset="tiny")


def test_an_albumentations_pipeline(dataset):
    """A pipeline given in Python decides pixels, size and matrix; a random one is refused."""
    A = pytest.importorskip("albumentations")
    dataset.fill(2)
    pipeline = A.Compose([A.Resize(48, 80), A.HorizontalFlip(p=1)])
    report = make(dataset, pipeline=pipeline, workers=1)
    store = ocrstore.open(dataset.store)
    assert report.ok and store["tensor"][0].shape == (48, 80, 3)
    wanted = pipeline(image=store["image"][0])["image"]
    assert np.array_equal(store["tensor"][0], wanted)
    corner = transform_points(store["inverse_matrix"][0], [[79, 0]])
    assert np.allclose(corner, [[0, 0]], atol=1e-3)
    assert verify(dataset.store, source=dataset.images, workers=0).ok
    with pytest.raises(SchemaError, match=r"^HorizontalFlip is random"):
        make(dataset, pipeline=A.Compose([A.HorizontalFlip()]))


def test_views_of_varying_size(dataset):
    """A pipeline without padding gives each view its own size."""
    A = pytest.importorskip("albumentations")
    dataset.add("a.jpg", encode(draw(90, 120)))
    dataset.add("b.jpg", encode(draw(120, 60)))
    make(dataset, pipeline=A.LongestMaxSize(60))
    store = ocrstore.open(dataset.store)
    assert [a.shape for a in store["tensor"][0:2]] == [(45, 60, 3), (60, 30, 3)]
    assert store["prob_map"][1].shape == (60, 30)


def test_a_pipeline_that_fails_on_a_picture(dataset):
    """The picture is skipped with the reason; the others are built."""
    A = pytest.importorskip("albumentations")
    dataset.add("large.jpg", encode(draw(200, 200)))
    dataset.add("small.jpg", encode(draw(40, 40)))
    report = make(dataset, pipeline=A.Crop(0, 0, 100, 100))
    assert report.skipped == ["small.jpg"] and kinds(report) == {"bad-geometry"}


def test_recipe_files(dataset, tmp_path):
    """A recipe file says it all; options beside it are refused."""
    dataset.fill(1)
    path = tmp_path / "recipe.yaml"
    path.write_text("size: 32\ncolumns: [tensor, prob_map]\n")
    report = make(dataset, recipe=path)
    assert set(report.columns) == {"tensor", "prob_map"}
    with pytest.raises(SchemaError, match="are part of a recipe"):
        build(dataset.images, dataset.store, recipe=path, size=64)


def test_on_error_fail(dataset):
    """The first loss ends the build with its reason, and finished samples are kept."""
    dataset.fill(2)
    dataset.add("zz.jpg", b"not a picture")
    with pytest.raises(SourceError, match=r"zz\.jpg: .*bad-picture.*--on-error skip"):
        make(dataset, on_error="fail")
    assert not dataset.store.exists()
    assert make(dataset).skipped == ["zz.jpg"]


def test_nothing_usable(dataset):
    """Not one good picture: an error, no store, the first reason."""
    dataset.add("a.jpg", b"")
    with pytest.raises(SourceError, match=r"none of the 1 pictures.*a\.jpg: .*empty"):
        make(dataset)
    assert not dataset.store.exists()


def test_max_pixels_and_wrong_arguments(dataset):
    """A bomb is refused by its header; arguments out of range by name."""
    dataset.fill(1)
    dataset.add("large.jpg", encode(draw(300, 300)))
    report = make(dataset, max_pixels=20_000)
    assert report.skipped == ["large.jpg"] and kinds(report) == {"too-many-pixels"}
    with pytest.raises(SchemaError, match="on_error"):
        make(dataset, on_error="ignore")
    with pytest.raises(SchemaError, match="workers"):
        make(dataset, workers=-1)
    with pytest.raises(SchemaError, match="view's name"):
        make(dataset, view="a/b")


def test_progress_and_announcement(dataset):
    """The plan is announced before, progress reported for every sample."""
    dataset.fill(4)
    dataset.add("img_1x.jpg", b"bad")
    told, plans = [], []
    make(dataset, progress=told.append, announce=plans.append)
    assert plans[0].action == "create"
    assert [p.done for p in told] == [1, 2, 3, 4, 5] and told[-1].total == 5
    assert told[-1].lost == 1


def test_reports(dataset, tmp_path):
    """The report file has every problem with its kind, meaning and whether something was lost."""
    dataset.fill(1)
    dataset.annotate("img_000.jpg", "1,1,60,1,60,40,1,40,ok\n1,2,3,bad\n")
    report = make(dataset)
    report.write(tmp_path / "report.json")
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["ok"] is False and record["samples"] == 1
    (problem,) = record["problems"]
    assert problem["kind"] in record["meanings"] and problem["lost"] is True
    assert problem["key"] == "img_000.jpg" and problem["polygon"] == 1
    again = make(dataset)  # an unchanged sample's problems are told again
    assert again.action == "nothing" and again.counts() == report.counts()


def test_unannotated_pictures(dataset):
    """A folder alone builds; among annotated pictures, one without is kept and noted."""
    dataset.fill(1)
    dataset.add("lonely.jpg", quads=None)
    report = make(dataset)
    store = ocrstore.open(dataset.store)
    assert store.attributes("lonely.jpg")["annotated"] is False
    assert store.attributes("img_000.jpg")["annotated"] is True
    assert kinds(report) == {"no-annotation"} and report.ok
    assert not np.asarray(store["prob_map"][store.row("lonely.jpg")]).any()


def test_a_store_without_records_is_rewritten(dataset):
    """A store whose attributes do not say which files it came from cannot be trusted in parts."""
    dataset.fill(2)
    make(dataset)
    store = ocrstore.open(dataset.store)
    bare = dataset.root / "bare.ocrs"
    with ocrstore.create(bare, dict(store.columns), metadata=dict(store.metadata)) as writer:
        for row, key in enumerate(store.keys):
            writer.append(key, {name: store[name][row] for name in store.columns})
    report = build(dataset.images, bare, size=SIZE, workers=0)
    assert report.action == "rewrite" and report.derived == 2
    assert "does not record the files" in "\n".join(report.reasons)
    assert verify(bare, source=dataset.images, workers=0).ok


def test_a_polygon_of_too_many_points_is_kept_but_not_drawn(tmp_path):
    """Offsetting such a polygon could take hours: it stays in the annotation, and is reported."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(encode(draw(), ".png"))
    angles = np.linspace(0, 2 * np.pi, 5000, endpoint=False)
    circle = np.stack((40 + 20 * np.cos(angles), 40 + 20 * np.sin(angles)), axis=1).tolist()
    words = {"1": {"points": circle}, "2": {"points": [[5, 5], [60, 5], [60, 30], [5, 30]]}}
    annotations = tmp_path / "a.json"
    annotations.write_text(json.dumps({"images": {"a.png": {"words": words}}}))
    report = ocrstore.build(
        tmp_path / "images", tmp_path / "a.ocrs", annotations=annotations, workers=0
    )
    assert kinds(report) == {"undrawable-polygon"}
    store = ocrstore.open(tmp_path / "a.ocrs")
    polygons = store.attributes(0)["polygons"]
    assert [len(polygon) // 2 for polygon in polygons] == [5000, 4]
    assert store["prob_map"][0].any()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"columns": "tensor"}, r"columns='tensor': expected a list"),
        ({"codecs": "zstd"}, "codecs='zstd': expected a mapping"),
        ({"size": 64.5}, r"size has to be an int or \(height, width\), not 64.5"),
        ({"workers": "two"}, "workers has to be an int of 0 or more, not 'two'"),
        ({"recipe": {"size": 64}}, r"expected a Recipe or a file; Recipe.from_json"),
        ({"view": 64}, "view has to be a name, not 64"),
    ],
)
def test_what_is_given_wrong_is_named(dataset, wrong, words):
    """Before anything is written."""
    dataset.add("a.jpg", seed=1)
    with pytest.raises(ocrstore.SchemaError, match=words):
        build(dataset.images, dataset.store, **wrong)
    assert not dataset.store.exists()
