"""The report: one file, nothing from elsewhere, nothing hostile gets through, the figures right."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

import ocrstore
from ocrstore import cli
from ocrstore.errors import OCRStoreError, WriteError
from ocrstore.report import make_report, write_report
from ocrstore.report.charts import Markup, escape, tag
from tests.drawn import HOSTILE, bare_store, build_drawn

VOID = {"meta", "img", "input", "br", "hr", "link"}


class Page(HTMLParser):
    """Checks that elements nest, and collects what a test asks about."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.elements = []
        self.texts = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        """An element begins."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """An element ends: the one that began last."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Text between elements."""
        if "style" not in self.open:
            self.texts.append(data)

    def named(self, tag, **wanted):
        """Attributes of the elements of a name, with given values."""
        return [a for t, a in self.elements if t == tag and wanted.items() <= a.items()]

    @property
    def text(self):
        """All text."""
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A store built from drawn pictures."""
    return build_drawn(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def html(built):
    """Its report."""
    with ocrstore.open(built) as store:
        return make_report(store)


@pytest.fixture(scope="module")
def page(html):
    """Its report, parsed."""
    return Page(html)


def test_it_is_one_file(html, page):
    """No script, no link, nothing loaded from anywhere: only data URIs and places in the page."""
    assert html.startswith("<!doctype html>")
    for name, attributes in page.elements:
        assert name not in ("script", "link", "iframe", "object", "embed", "base")
        for attribute, value in attributes.items():
            assert not attribute.startswith("on")
            if attribute in ("src", "xlink:href"):
                assert value.startswith("data:image/")
            if attribute == "href":
                assert value.startswith("#")
    assert "url(" not in html and "@import" not in html
    assert not re.search(r"(https?:)?//\w", re.sub(r"base64,[\w+/=]+", "", html))
    policy = page.named("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy.startswith("default-src 'none'")


def test_every_place_that_is_linked_is_there(page):
    """Fragments lead somewhere, and ids are named once."""
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    links = {a["href"][1:] for a in page.named("a")}
    assert links <= set(ids) and {"sheet", "distributions", "suspects", "problems"} <= links


def test_pictures_with_polygons_and_maps(built, page):
    """Each sample is a picture with its polygons and two overlays, toggled without a script."""
    cards = page.named("figure", **{"class": "card"})
    assert len(cards) == 6
    data = [a["src"] for a in page.named("img") if a["src"].startswith("data:image/jpeg")]
    first = cv2.imdecode(np.frombuffer(base64.b64decode(data[0].split(",")[1]), np.uint8), 1)
    assert first.shape == (96, 128, 3)
    with ocrstore.open(built) as store:
        known = np.asarray(store["image"][0], int)[..., ::-1]
    assert np.abs(first.astype(int) - known).mean() < 6
    assert len(page.named("img", **{"class": "over prob_map"})) == 6
    assert len(page.named("img", **{"class": "over thresh_map"})) == 6
    # a.jpg comes first: its polygons are drawn where they are
    drawn = page.named("polygon")
    assert drawn[0]["points"] == "10.0,10.0 60.0,10.0 60.0,26.0 10.0,26.0"
    assert [a["class"] for a in drawn[:3]] == ["counted", "counted", "ignored"]
    boxes = {a["id"]: "checked" in a for a in page.named("input")}
    assert boxes == {
        "show-polygons": True,
        "show-ignored": True,
        "show-prob_map": False,
        "show-thresh_map": False,
    }


def test_overlays_lie_where_the_maps_are(page):
    """The probability map of a.jpg is opaque inside of its polygon and clear elsewhere."""
    source = page.named("img", **{"class": "over prob_map"})[0]["src"]
    data = np.frombuffer(base64.b64decode(source.split(",")[1]), np.uint8)
    overlay = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    assert overlay.shape == (48, 64, 4)  # half of the picture's size
    alpha = overlay[..., 3]
    assert alpha[9, 17] > 150 and alpha[44, 20] == 0
    assert alpha[12, 47] == 0  # ignored: nothing is drawn


def test_hostile_texts_are_shown_not_run(html, page):
    """A polygon's text is text, whatever it says."""
    assert "<script>" not in html and "<img src=x" not in html
    titles = re.findall(r"<title>(.*?)</title>", html)
    assert any("&lt;script&gt;" in title and "&amp;amp;" in title for title in titles)
    assert HOSTILE in page.texts


def test_hostile_keys_paths_and_problems(tmp_path):
    """Keys, attributes and what the manifest says are escaped as well."""
    path = tmp_path / "val & 'co'.ocrs"
    evil = '"><script>x()</script>\x00\x1b[31m\u202e'
    metadata = {
        "build": {
            "source": {"description": evil, "images": evil},
            "problems": {
                "counts": {evil: 1},
                "first": [{"kind": evil, "message": evil, "key": evil}],
            },
        },
        "views": {evil: {"recipe": {"geometry": evil, "maps": {}}, "fingerprint": evil}},
        "default_view": evil,
    }
    columns = {"image": ocrstore.Column("uint8", (None, None, 3))}
    with ocrstore.create(path, columns, metadata=metadata) as writer:
        attributes = {
            "polygons": [[0.0, 0.0, 9.0, 0.0, 9.0, 9.0], [float("nan")] * 6, []],
            "texts": [evil, evil, None],
            "ignored": [True, False, False],
        }
        writer.append(evil, {"image": np.zeros((20, 30, 3), np.uint8)}, attributes=attributes)
    with ocrstore.open(path) as store:
        text = make_report(store)
    page = Page(text)
    assert not page.named("script") and "val & " not in text and "val &amp; &#x27;co" in text
    assert not re.search("[\x00-\x08\x0e-\x1f\u202e]", text)


def test_the_figures_are_right(page):
    """Sentences against what can be counted in the data set by hand."""
    text = page.text
    assert "7 polygons" in text and "28.6 % ignored by the source" in text
    # of the five that count: 16, 15, 10, 30, 30 high; by halves 8, 7.5, 5, 15, 15
    assert "Median 16 px, half of them 15 to 30 px." in text
    assert (
        "Median 8 px, half of them 8 to 15 px. 2 of 5 polygons (40 %) fall under the 8 px limit"
        in text
    )
    assert "1.2 on average, 3 at most; 2 pictures have none." in text
    assert "The source ignores 28.6 % of 7 polygons; in 1 picture it ignores every one." in text
    assert "64 to 128 wide, 96 to 128 high" in text
    assert "16.7 % are higher than wide" in text
    assert "100 % of the polygons lie within 5° of the horizontal." in text
    assert "No picture had to be turned upright." in text


def test_suspects_are_ranked(page):
    """The worst first, each with its reasons."""
    start = page.texts.index("the same picture as another sample (equal bytes)")
    text = " ".join(page.texts[start:])
    order = [text.index(f" {name} ") for name in ("f.jpg", "a.jpg", "d.jpg", "c.jpg", "b.jpg")]
    assert order == sorted(order)
    for reason in (
        "the same picture as a.jpg",
        "no annotation",
        "1 polygon outside of the picture",
        "1 polygon sticks out of the picture",
        "its only polygon under 8 px in view 64",
        "all 1 polygons ignored",
    ):
        assert reason in text, reason


def test_problems_of_the_build_are_listed(page):
    """What was left out is distinguished from what is good to know."""
    text = page.text
    assert "bad-picture" in text and "broken.jpg" in text
    assert "left out" in text and "good to know" in text


def test_light_and_dark_and_small(html):
    """Both colour schemes and small screens are provided for."""
    assert "prefers-color-scheme: dark" in html and "max-width: 560px" in html
    assert 'name="viewport"' in html


def test_a_store_without_a_build(tmp_path):
    """No pictures, no polygons, no recipe: still a page."""
    with ocrstore.open(bare_store(tmp_path / "bare.ocrs")) as store:
        page = Page(make_report(store))
    assert "no column of pictures" in page.text and "No build is recorded." in page.text
    assert "neither sizes nor polygons" in page.text


def test_an_empty_store(tmp_path):
    """No sample at all."""
    with ocrstore.open(bare_store(tmp_path / "bare.ocrs", samples=0)) as store:
        assert "Nothing suspicious" in Page(make_report(store)).text


def test_pictures_without_polygons(tmp_path):
    """Only an image column: sizes are known from the index, duplicates by their hashes."""
    path = tmp_path / "a.ocrs"
    with ocrstore.create(path, {"image": ocrstore.Column("uint8", (None, None, 3))}) as writer:
        for row in range(3):
            writer.append(f"p{row}", {"image": np.full((20, 40 + row // 2, 3), 7, np.uint8)})
    with ocrstore.open(path) as store:
        page = Page(make_report(store))
    assert "Picture sizes" in page.text and "the same picture as p1" in page.text
    assert not page.named("input") and not page.named("polygon")


def test_only_the_tensor_is_stored(tmp_path):
    """Without an image column the view is shown, polygons moved into it."""
    columns = ["tensor", "prob_map", "inverse_matrix"]
    store = build_drawn(tmp_path, columns=columns)
    with ocrstore.open(store) as opened:
        page = Page(make_report(opened))
    assert page.named("polygon")[0]["points"] == "5.0,5.0 30.0,5.0 30.0,13.0 5.0,13.0"
    assert page.named("img", **{"class": "over prob_map"})


def test_a_damaged_picture_is_said_to_be(tmp_path):
    """A row that cannot be decoded costs its own card only."""
    path = build_drawn(tmp_path, codecs={"image": "zstd"})
    with ocrstore.open(path) as store:
        position = int(store["image"].offsets[1])
    data = bytearray(path.read_bytes())
    data[position : position + 8] = b"damaged!"
    path.write_bytes(data)
    with ocrstore.open(path) as store:
        page = Page(make_report(store))
    assert "b.jpg cannot be shown:" in page.text and len(page.named("figure")) == 6


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["icdar2015", "sroie"])
def test_real_pictures(name, tmp_path):
    """A few real pictures with their annotations become a whole page."""
    folder = Path(os.environ.get("OCRSTORE_PICTURES", "")) / name
    if not os.environ.get("OCRSTORE_PICTURES") or not folder.is_dir():
        pytest.skip("set OCRSTORE_PICTURES to a folder of real pictures")
    (tmp_path / "images").mkdir()
    for path in sorted((folder / "images").iterdir())[:4]:
        (tmp_path / "images" / path.name).write_bytes(path.read_bytes())
    out = tmp_path / "real.ocrs"
    ocrstore.build(tmp_path / "images", out, annotations=folder / "gt", size=320, workers=0)
    with ocrstore.open(out) as store:
        page = Page(make_report(store))
        expected = sum(len(found) for found in store.index["polygons"].to_pylist())
    assert len(page.named("figure")) == 4 and len(page.named("polygon")) >= expected > 4


def test_a_sheet_of_some_samples(built):
    """--samples limits the sheet; statistics are over all."""
    with ocrstore.open(built) as store:
        page = Page(make_report(store, samples=2))
    assert len(page.named("figure")) == 2 and "Pictures (2 of 6)" in page.text
    assert "7 polygons" in page.text
    with ocrstore.open(built) as store:
        assert len(Page(make_report(store, samples=0)).named("figure")) == 0


def test_predictions_are_a_layer(built, tmp_path):
    """Boxes over the polygons, the worst picture first, and a box to hide them."""
    store = ocrstore.open(built)
    quads = {key: store.attributes(key)["polygons"] for key in store.keys[:3]}
    right, wrong, none = store.keys[:3]
    boxes = {right: quads[right], wrong: [[1, 1, 4, 1, 4, 4, 1, 4]], none: []}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    html = make_report(store, predictions=tmp_path / "boxes.json")
    assert html.count('class="found"') == 1 + len(quads[right])
    assert 'id="show-found"' in html and "Pictures (3 of" in html
    assert html.index(f"<bdi>{wrong}</bdi>") < html.index(f"<bdi>{right}</bdi>")
    assert 'id="show-found"' not in make_report(store)


def test_the_command(built, tmp_path, monkeypatch, capsys):
    """`ocrstore report` writes the file, and replaces one that is there."""
    out = tmp_path / "report.html"
    out.write_text("old")
    monkeypatch.setattr("sys.argv", ["ocrstore", "report", str(built), "--out", str(out)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0 and "report.html" in capsys.readouterr().out
    assert Page(out.read_text("utf-8")).named("figure")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    monkeypatch.setattr("sys.argv", ["ocrstore", "report", str(built), "--out", str(built)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2 and ocrstore.verify(built).ok


def test_a_folder_that_is_none(built, tmp_path):
    """The disk's refusal is one error, and nothing is left behind."""
    (tmp_path / "file").touch()
    with ocrstore.open(built) as store, pytest.raises(WriteError, match="cannot be written"):
        write_report(store, tmp_path / "file" / "report.html")


def test_without_opencv_it_says_what_to_install(built, monkeypatch):
    """A reader's installation has no OpenCV: the error names the extra."""
    monkeypatch.setitem(sys.modules, "cv2", None)
    with ocrstore.open(built) as store, pytest.raises(OCRStoreError, match=r"ocrstore\[build\]"):
        make_report(store)


def test_inspect_needs_the_core_only(built):
    """Looking at a store brings in no decoder and nothing else that building needs."""
    heavy = ["cv2", "simplejpeg", "pyclipper", "yaml", "albumentations", "torch"]
    code = (
        "import sys\n"
        f"for name in {heavy!r}: sys.modules[name] = None\n"
        "from ocrstore.cli import main\n"
        "store = sys.argv[1]\n"
        "for extra in [], ['a.jpg'], ['--full'], ['--diff', store]:\n"
        "    sys.argv = ['ocrstore', 'inspect', store, *extra]\n"
        "    try: main()\n"
        "    except SystemExit as exc: assert exc.code == 0, extra\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(built)],
        capture_output=True,
        encoding="utf-8",
        cwd=Path(__file__).parents[2],
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"},  # so the picture, too
    )
    assert done.returncode == 0, done.stderr
    assert "▀" in done.stdout


def test_markup_escapes_what_is_not_markup():
    """Text is escaped once, markup never; quotes cannot leave an attribute."""
    assert escape("<&>\"'") == "&lt;&amp;&gt;&quot;&#x27;"
    assert escape(escape("<")) == "&lt;"
    assert tag("b", "<", Markup("<i>"), None, class_='"x') == '<b class="&quot;x">&lt;<i></b>'
    assert tag("img", src="a", alt=None) == '<img src="a">'
