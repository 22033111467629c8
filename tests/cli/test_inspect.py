"""`ocrstore inspect`: one screen about a store, one sample, and what differs from another store."""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import ocrstore
from ocrstore.inspection import source_status
from ocrstore.inspection.facts import gather_facts
from ocrstore.report import make_report
from ocrstore.views import View, views_metadata
from tests.drawn import HOSTILE, bare_store, build_drawn


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A store with its source; not to be changed."""
    return build_drawn(tmp_path_factory.mktemp("built"))


@pytest.fixture
def own(built, tmp_path):
    """The same, to be changed."""
    shutil.copytree(built.parent, tmp_path / "own")
    for path in (built.parent / "images").iterdir():  # copytree keeps times, not all of them
        times = path.stat()
        copy = tmp_path / "own" / "images" / path.name
        os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    return tmp_path / "own" / "val.ocrs"


@pytest.fixture
def run(run):
    """Run `ocrstore inspect`; returns exit code, standard output and error."""
    return functools.partial(run, "inspect")


def test_one_screen_answers_everything(run, built):
    """What, how many, which columns, which recipe, from what, how old, sound, cached, how dear."""
    code, out, _ = run(built)
    assert code == 0
    for fact in (
        "an ocrstore file, format 1.1",
        "samples 6",
        "7, 1.2 a sample, 2 ignored (29%), 2 more under 8 px in view 64; 2 samples without any",
        f"{built.parent}/images",
        f"annotations in {built.parent}/gt",
        "unchanged since the build (6 pictures); only its pictures were compared",
        "1 bad-picture",
        "Longest side scaled to 64, linear resampling",
        ocrstore.open(built).metadata["views"]["64"]["fingerprint"],
        ocrstore.open(built).fingerprint[:16],
        "extents agree with the index",
        "page cache",
        "per sample",
        "zero-copy",
        "96..128x64..128x3",
        "float16",
    ):
        assert fact in " ".join(out.split()), fact  # however the lines are wrapped
    assert len(out.splitlines()) < 40


def test_the_facts_for_programs(run, built):
    """--json has the same facts, exactly."""
    code, out, _ = run(built, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["polygons"] == {
        "total": 7,
        "ignored": 2,
        "too_small": {"64": 2},  # `small` and `tiny`
        "samples_without": 2,  # c.jpg, and f.jpg without an annotation
    }
    assert facts["source"]["state"] == "up to date"
    assert facts["source"]["images"] == str(built.parent / "images")
    assert facts["integrity"]["ok"] and facts["integrity"]["rows"] == 6 * 7
    assert facts["views"][0]["recipe"]["size"] == [64, 64]
    assert facts["views"][0]["in_words"][0].startswith("Longest side scaled to 64")
    assert facts["problems"]["bad-picture"] == 1
    assert facts["nbytes_per_sample"] == facts["live_nbytes"] / 6


def test_no_payload_is_read(run, own):
    """Damage in a row's bytes is not seen by the quick check, and by --full it is."""
    opened = ocrstore.open(own)
    position = int(opened["tensor"].offsets[2]) + 7
    _flip(own, position)
    code, out, _ = run(own)
    assert code == 0 and "extents agree" in out
    code, out, _ = run(own, "--full")
    assert code == 1 and "damaged" in out and "tensor" in out and "c.jpg" in out
    code, out, _ = run(own, "--full", "--json")
    assert code == 1 and json.loads(out)["verification"]["findings"][0]["sample"] == "c.jpg"


def test_damaged_headers_are_found_at_once(run, own):
    """A flipped bit in an extent's directory is found without --full; its samples are named."""
    opened = ocrstore.open(own)
    first = int(opened["tensor"].offsets.min())
    _flip(own, first // 4096 * 4096 - 4096 + 16 + 20)  # the page before the rows holds the header
    code, out, _ = run(own, "--json")
    found = json.loads(out)["integrity"]
    assert code == 1 and not found["ok"]
    assert any("'tensor'" in finding for finding in found["findings"])
    code, out, _ = run(own)
    assert code == 1 and "damaged" in out


def test_a_sound_store_verifies_in_full(run, built):
    """--full says that every byte is as it was written."""
    code, out, _ = run(built, "--full")
    assert code == 0 and "every byte is as it was written" in out


def test_the_source_is_newer(run, own):
    """Changed, new and gone pictures, and annotations written since, are distinguished."""
    images = own.parent / "images"
    assert json.loads(run(own, "--source", images, "--json")[1])["source"]["state"] == "up to date"
    (images / "a.jpg").write_bytes((images / "b.jpg").read_bytes())
    (images / "new.jpg").write_bytes(b"x")
    (images / "e.jpg").unlink()
    code, out, _ = run(own, "--source", images, "--json")
    source = json.loads(out)["source"]
    assert code == 0 and source["state"] == "newer"
    assert (source["changed"], source["new"], source["gone"]) == (["a.jpg"], ["new.jpg"], ["e.jpg"])
    code, out, _ = run(own, "--source", images)
    assert "newer: 1 changed (a.jpg), 1 new (new.jpg), 1 gone (e.jpg)" in out


def test_annotations_written_since(run, tmp_path):
    """An annotation file that is younger than the build makes the source newer, with --source."""
    store = build_drawn(tmp_path)
    path = tmp_path / "gt" / "gt_b.txt"
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))
    code, out, _ = run(store, "--source", tmp_path / "images")
    assert code == 0 and "annotations written since" in out
    assert "unchanged since the build" in run(store)[1]  # no folder is listed that was not named
    build_drawn(tmp_path)
    code, out, _ = run(store, "--source", tmp_path / "images")
    assert "unchanged since the build" in out


def test_only_files_of_the_index_are_looked_up(run, tmp_path, monkeypatch):
    """A manifest that names / as its source opens no folder; new pictures are not looked for."""
    path = tmp_path / "a.ocrs"
    metadata = {
        "build": {"source": {"images": "/", "annotations": "/", "annotations_mtime_ns": 1}},
        **views_metadata((View("64", ocrstore.Recipe.make(size=64), default=True),)),
    }
    metadata["views"]["64"]["columns"] = {}
    passwd = Path("/etc/passwd").stat()
    facts = {"source_nbytes": passwd.st_size, "source_mtime_ns": passwd.st_mtime_ns}
    with ocrstore.create(path, {"a": ocrstore.Column("int8", (2,))}, metadata=metadata) as writer:
        for key in ("etc/passwd", "../etc/passwd", "/etc/passwd", "etc", "no/such", "nul\\x00"):
            writer.append(key, {"a": np.zeros(2, np.int8)}, attributes=facts)
    opened = []
    scandir = os.scandir

    def watched(folder="."):
        opened.append(os.fspath(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", watched)
    source = json.loads(run(path, "--json")[1])["source"]
    assert opened == []
    assert (source["state"], source["listed"], source["pictures"]) == ("newer", False, 1)
    assert source["gone"] == ["etc", "no/such", "nul\\x00"]  # a folder is no picture
    assert "only its pictures were compared" in " ".join(run(path)[1].split())
    (tmp_path / "empty").mkdir()
    run(path, "--source", tmp_path / "empty")
    assert str(tmp_path / "empty") in opened


def test_a_report_looks_at_no_source(built, monkeypatch):
    """A report says nothing about the source, so it does not look at it."""
    monkeypatch.setattr(source_status, "_named_files", None)
    with ocrstore.open(built) as store:
        assert gather_facts(store, check_source=False).source_status is None
        make_report(store, samples=1)


def test_only_so_many_files_are_looked_up(own, monkeypatch):
    """The number of files is bounded, whatever the index says."""
    monkeypatch.setattr(source_status, "LIMIT", 2)
    with ocrstore.open(own) as store:
        assert source_status.check_source_status(store).pictures == 2


def test_a_touched_picture_is_not_changed(run, own, monkeypatch):
    """Where only the time differs the bytes decide, as in a build; up to a limit of bytes."""
    images = own.parent / "images"
    picture = images / "a.jpg"

    def changed():
        return json.loads(run(own, "--source", images, "--json")[1])["source"]["changed"]

    os.utime(picture, ns=(1, 1))
    assert changed() == []
    monkeypatch.setattr(source_status, "READ_LIMIT", 100)
    assert changed() == ["a.jpg"]
    monkeypatch.setattr(source_status, "READ_LIMIT", 10**6)
    data = bytearray(picture.read_bytes())
    data[-1] ^= 1
    picture.write_bytes(data)
    assert changed() == ["a.jpg"]


def test_a_removed_bad_picture_is_forgotten(run, tmp_path):
    """A build that changes no sample still records that a bad picture is gone."""
    store = build_drawn(tmp_path)
    assert json.loads(run(store, "--json")[1])["problems"]["bad-picture"] == 1
    (tmp_path / "images" / "broken.jpg").unlink()
    before = ocrstore.open(store).fingerprint
    build_drawn(tmp_path)
    assert "bad-picture" not in json.loads(run(store, "--json")[1])["problems"]
    assert ocrstore.open(store).fingerprint == before
    written = store.read_bytes()
    build_drawn(tmp_path)
    assert store.read_bytes() == written  # and nothing more is written after that


def test_a_source_that_has_gone(run, own):
    """A folder that is not there is said to be missing, not to be newer."""
    code, out, _ = run(own, "--source", own.parent / "nowhere")
    assert code == 0 and "folder not found" in out


def test_a_store_without_a_build(run, tmp_path):
    """No polygons, no recipe, no source: what can be said is said."""
    store = bare_store(tmp_path / "bare.ocrs")
    code, out, _ = run(store)
    assert code == 0 and "polygons" not in out and "0..3" in out
    facts = json.loads(run(store, "--json")[1])
    assert facts["polygons"] is None and facts["views"] == []
    assert facts["source"]["state"] == "unknown"
    assert run(store, "s1")[0] == 0


def test_metadata_of_others_does_no_harm(run, tmp_path):
    """Names that the build uses, with other content, are passed over, and that is said."""
    path = tmp_path / "odd.ocrs"
    metadata = {"views": {"a": 3, "b": {"recipe": 1}}, "build": ["x"]}
    with ocrstore.create(path, {"a": ocrstore.Column("int8", (2,))}, metadata=metadata) as writer:
        attributes = {"polygons": [[1.0, 2.0, 3.0]], "ignored": "yes", "width": "wide"}
        writer.append("k", {"a": np.zeros(2, np.int8)}, attributes=attributes)
    code, out, _ = run(path)
    assert code == 0 and "metadata.views.a: expected an object, found 3" in " ".join(out.split())
    assert run(path, "k")[0] == 0
    assert run(path, "--json")[0] == 0


def test_one_sample(run, built):
    """A sample's facts: size, polygons with text, rows with bytes and hashes."""
    code, out, _ = run(built, "a.jpg")
    assert code == 0 and "▀" not in out
    for fact in ("128 x 96", "3, 1 ignored", "counted 50 x 16 px at 10, 10  'just'", "96x128x3"):
        assert fact in out, fact
    code, out, _ = run(built, "d.jpg", "--json")
    facts = json.loads(out)
    assert facts["row"] == 3 and facts["attributes"]["texts"][1] == HOSTILE
    opened = ocrstore.open(built)
    assert facts["columns"][0]["hash"] == f"{int(opened['image'].hashes[3]):016x}"


def test_an_unknown_sample(run, built):
    """Wrong use, with a hint at what keys look like."""
    code, _, err = run(built, "nothing.jpg")
    assert code == 2 and "'a.jpg'" in err


@pytest.mark.parametrize(
    ("environment", "printed"),
    [
        ({}, False),  # a pipe
        ({"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"}, True),
        ({"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
    ids=["pipe", "terminal", "NO_COLOR", "dumb"],
)
def test_a_picture_only_where_there_are_colours(run, built, monkeypatch, environment, printed):
    """Half blocks with the polygons drawn, in a terminal that has colours; nothing elsewhere."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, out, _ = run(built, "a.jpg")
    assert code == 0 and ("▀" in out) == printed
    if printed:
        assert "38;2;" in out
        assert "0;230;118" in out and "255;82;82" in out  # a polygon that counts, an ignored one
        assert "▀" not in run(built, "a.jpg", "--no-picture")[1]


def test_keys_and_texts_are_no_markup(run, tmp_path):
    """Square brackets in keys and texts are printed as they are."""
    path = tmp_path / "a.ocrs"
    with ocrstore.create(path, {"a": ocrstore.Column("int8", (2,))}) as writer:
        attributes = {"polygons": [[0.0, 0.0, 9.0, 0.0, 9.0, 9.0]], "texts": ["[/bold][red]x"]}
        writer.append("[bold]k[/]", {"a": np.zeros(2, np.int8)}, attributes=attributes)
    code, out, _ = run(path, "[bold]k[/]")
    assert code == 0 and "[bold]k[/]" in out and "[/bold][red]x" in out


def test_nothing_foreign_reaches_the_terminal(run, tmp_path):
    """Escape sequences in keys, texts and metadata are shown, not obeyed."""
    path = tmp_path / "a.ocrs"
    evil = "k\x1b]0;title\x07\x9b2J"
    metadata = {"build": {"source": {"images": evil, "annotations": evil}}}
    with ocrstore.create(path, {"a": ocrstore.Column("int8", (2,))}, metadata=metadata) as writer:
        attributes = {"polygons": [[0.0, 0.0, 9.0, 0.0, 9.0, 9.0]], "texts": [evil], "note": evil}
        writer.append(evil, {"a": np.zeros(2, np.int8)}, attributes=attributes)
    other = bare_store(tmp_path / "bare.ocrs")
    for arguments in ((), (evil,), ("--diff", other)):
        code, out, _ = run(path, *arguments)
        assert code in (0, 1) and not {"\x1b", "\x07", "\x9b"} & set(out), arguments


def test_equal_stores_do_not_differ(run, built, tmp_path):
    """A store built twice from one source: no difference, exit code 0."""
    other = built.parent / "again.ocrs"
    ocrstore.build(
        built.parent / "images", other, annotations=built.parent / "gt", size=64, workers=0
    )
    code, out, _ = run(built, "--diff", other)
    assert code == 0 and "the same recipes, samples and content" in out
    assert json.loads(run(built, "--diff", other, "--json")[1])["same_content"]


def test_what_differs(run, own):
    """Recipe field by field; samples added, removed, changed; columns and attributes."""
    root = own.parent
    (root / "images" / "c.jpg").unlink()
    (root / "images" / "z.jpg").write_bytes((root / "images" / "b.jpg").read_bytes())
    gt = root / "gt" / "gt_b.txt"
    gt.write_text(gt.read_text() + "\n5,60,60,60,60,90,5,90,more")
    other = build_drawn(
        root, name="new.ocrs", size=96, columns=["image", "tensor", "inverse_matrix"]
    )
    code, out, _ = run(own, "--diff", other, "--json")
    found = json.loads(out)
    assert code == 1 and found["differs"] and not found["same_content"]
    assert (found["added"], found["removed"]) == (["z.jpg"], ["c.jpg"])
    assert sorted(found["changed"]) == ["a.jpg", "b.jpg", "d.jpg", "e.jpg", "f.jpg"]
    assert "default view: size: [64, 64] -> [96, 96]" in found["recipes"]
    by_name = {column["name"]: column for column in found["columns"]}
    assert (by_name["image"]["state"], by_name["image"]["changed"]) == ("same", 0)
    assert (by_name["tensor"]["state"], by_name["tensor"]["changed"]) == ("respecified", 5)
    assert by_name["prob_map"]["state"] == "removed"
    assert (by_name["polygons"]["state"], by_name["polygons"]["changed"]) == ("changed", 1)
    code, out, _ = run(own, "--diff", other)
    assert code == 1 and "+ 1 added: z.jpg" in out and "- 1 removed: c.jpg" in out
    assert found["renamed"] == [["b.jpg", "z.jpg"]]
    assert "! 1 in both under different keys: b.jpg = z.jpg" in out


def test_diff_of_stores_with_nothing_in_common(run, built, tmp_path):
    """Other columns, other samples: still one answer."""
    other = bare_store(tmp_path / "bare.ocrs")
    code, out, _ = run(built, "--diff", other)
    assert code == 1 and "no sample in common" in out and "recipe: removed" in out


def test_options_that_exclude_each_other(run, built):
    """--diff with a key or with --full is wrong use."""
    assert run(built, "a.jpg", "--diff", built)[0] == 2
    assert run(built, "--full", "--diff", built)[0] == 2


def _flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
