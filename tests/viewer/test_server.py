"""The server, asked over a real connection: who may ask, what it tells, what it survives."""

import functools
import json
import os
import socket
import threading
from http.cookies import SimpleCookie
from urllib.parse import urlencode

import cv2
import numpy as np
import pytest

import ocrstore
from ocrstore.errors import SourceError
from ocrstore.viewer.query import Filter
from tests.viewer.conftest import QUADS, write_store


def replace(path, **options):
    """Put another store where one is, as `build` does: by renaming."""
    write_store(path.with_suffix(".new"), **options).replace(path)


# ---- who may ask ----


def test_the_token_in_the_address_becomes_a_cookie(client):
    """The page comes with the cookie that carries the token from then on."""
    status, headers, body = client.request(f"/?token={client.viewer.token}", cookie=False)
    assert status == 200 and b"<!doctype html>" in body.lower()
    cookie = SimpleCookie(headers["set-cookie"])[f"ocrstore_{client.viewer.port}"]
    assert cookie.value == client.viewer.token
    assert cookie["httponly"] and cookie["samesite"] == "Strict" and cookie["path"] == "/"
    assert client.request("/")[0] == 200
    assert "set-cookie" not in client.request("/")[1]


FOREIGN_COOKIES = [
    'prefs={"a":1,"b":[1,2]}',
    "noequals",
    "x=é",
    "",
    "=",
    'q="',
    "a b=c d",
    "$Path=/",
]


@pytest.mark.parametrize("foreign", FOREIGN_COOKIES)
def test_cookies_of_other_servers_do_not_matter(client, foreign):
    """Browsers send the cookies of every server on localhost, before and after the viewer's own."""
    own = f"ocrstore_{client.viewer.port}={client.viewer.token}"
    stale = f"ocrstore_{client.viewer.port}=stale"
    for cookie in (f"{foreign}; {own}", f"{own};{foreign}", f"{stale}; {foreign}; {own}"):
        for encoding in ("latin-1", "utf-8"):
            headers = {"Cookie": cookie.encode(encoding)}
            assert client.request("/api/store", headers=headers)[0] == 200, cookie
    assert client.request("/api/store", headers={"Cookie": foreign.encode()})[0] == 403


@pytest.mark.parametrize("path", ["/", "/api/store", "/thumbnail/0", "/static/main.js", "/nothing"])
def test_nothing_without_the_token(client, path):
    """A missing or wrong token gets a page that says what to do, and no data."""
    wrong = {"Cookie": f"ocrstore_{client.viewer.port}=x{client.viewer.token}"}
    guesses = ((None, {}), (wrong, {}), (None, {"token": "guess"}), (None, {"token": ""}))
    for headers, query in guesses:
        status, given, body = client.request(path, cookie=False, headers=headers, **query)
        assert status == 403 and b"ocrstore view" in body and "set-cookie" not in given
        assert client.viewer.token.encode() not in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", ""])
def test_another_host_name_is_refused(client, host):
    """A name that was made to point here (DNS rebinding) reads nothing, cookie or not."""
    headers = {"Host": host.format(port=client.viewer.port)}
    status, _, body = client.request("/api/store", headers=headers)
    assert status == 403 and b"does not answer to this name" in body
    headers = {"Host": f"localhost:{client.viewer.port}"}
    assert client.request("/api/store", headers=headers)[0] == 200


def test_other_pages_cannot_change_anything(client):
    """Reloading is for the viewer's own page, whatever cookies a browser sends."""
    port = client.viewer.port
    for origin in ("http://127.0.0.1:1", "https://evil.example", "null", None):
        headers = {"Origin": origin} if origin else {}
        assert client.request("/api/reload", method="POST", headers=headers)[0] == 403
    own = {"Origin": f"http://127.0.0.1:{port}"}
    assert client.request("/api/reload", method="POST", headers=own)[0] == 200
    assert client.request("/api/reload")[0] == 405


def test_every_answer_is_locked_down(client):
    """Nothing from elsewhere, no frames, no guessing of types, no referrer."""
    for path in ("/", "/api/store", "/static/main.js", "/thumbnail/0", "/nothing"):
        _, headers, _ = client.request(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_only_this_machine(client):
    """The socket is bound to the loopback address and nothing else."""
    with socket.socket() as other, pytest.raises(OSError):
        other.settimeout(2)
        other.connect(("127.0.0.2", client.viewer.port))  # a socket open to all would answer


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/etc/passwd",
        "/static/",
        "/picture/0?column=../../etc/passwd",
    ],
)
def test_nothing_but_the_store_is_readable(client, path):
    """No path leads out."""
    assert client.request(path)[0] == 404


def test_the_page_needs_nothing_from_elsewhere(client):
    """Every file that the page names is served; no address of another host is in any of them."""
    files = ["index.html", "style.css", "icon.svg", "main.js"]
    seen = set()
    while files:
        name = files.pop()
        seen.add(name)
        status, headers, body = client.request(f"/static/{name}")
        assert status == 200, name
        text = body.decode()
        assert "https://" not in text and "http://" not in text.replace("http://www.w3.org/", "")
        if name.endswith(".js"):
            assert headers["content-type"].startswith("text/javascript")
            found = {part.split('"')[0] for part in text.split('from "./')[1:]}
            files += sorted(found - seen - set(files))
    assert {"grid.js", "stage.js", "layers.js", "sample.js", "filter.js", "watch.js"} <= seen
    tag = client.request("/static/main.js")[1]["etag"]
    assert client.request("/static/main.js", headers={"If-None-Match": tag})[0] == 304


# ---- what it tells ----


def test_facts(client, opened):
    """What the page shows of the store as a whole."""
    facts = client.json("/api/store")
    assert (facts["name"], facts["samples"], facts["polygons"]) == ("val.ocrs", 12, 18)
    assert facts["fingerprint"] == opened.fingerprint and facts["predictions"] == []
    assert facts["views"][0]["maps"] == ["prob_map", "thresh_map", "prob_mask", "thresh_mask"]
    kinds = {field["name"]: field["kind"] for field in facts["fields"]}
    assert kinds["polygons_count"] == "number" and kinds["texts"] == "texts"


def test_pages(client):
    """Rows come in pages of columns, filtered and sorted."""
    page = client.json("/api/rows", start=4, count=3)
    assert page["rows"] == [4, 5, 6] and page["keys"][0] == "img_04.jpg" and page["total"] == 12
    assert page["polygons_count"] == [0, 1, 2]
    page = client.json(
        "/api/rows", filter="width > 130", sort="weight", descending=1, count=2, start=1
    )
    assert page["rows"] == [8, 6] and page["total"] == 6 and page["value"] == [4.0, 3.0]
    assert client.json("/api/rows", start=99)["rows"] == []
    assert len(client.json("/api/rows", count=999999)["rows"]) == 12
    assert page["sql"] is True
    page = client.json("/api/rows", filter="TOTAL img_1")
    assert page["rows"] == [10, 11] and page["sql"] is False
    error = client.json("/api/rows", status=400, filter="widht > 3")
    assert error["kind"] == "filter" and error["position"] == 0 and "width" in error["error"]
    assert client.json("/api/rows", status=400, filter="", sort="no")["kind"] == "filter"
    assert client.json("/api/rows", status=404, start="x")["kind"] == "missing"


def test_one_sample(client, opened):
    """Everything about a sample, by key or row, and where it stands in a query."""
    sample = client.json("/api/sample", key="img_03.jpg", filter="polygons_count = 3")
    assert (sample["row"], sample["position"], sample["size"]) == (3, 0, [160, 120])
    assert sample["polygons"][0] == QUADS[0] and sample["ignored"] == [False, False, True]
    assert sample["texts"] == ["Total", "12.50", "###"]
    view = sample["views"][0]
    assert view["size"] == [64, 64] and view["layers"]["prob_map"] == "prob_map"
    np.testing.assert_allclose(np.reshape(view["inverse"], (3, 3)), opened["inverse_matrix"][3])
    assert sample["attributes"]["source_hash"] == str(np.iinfo(np.int64).max - 3)
    assert client.json("/api/sample", row=5)["attributes"]["weight"] is None
    assert client.json("/api/sample", row=5, filter="row = 4")["position"] is None
    assert client.json("/api/sample", row=5, filter="(")["position"] is None
    for query in ({"key": "nothing.jpg"}, {"row": 12}, {"row": "-1"}):
        assert client.json("/api/sample", status=404, **query)["kind"] == "missing"


def test_thumbnails_are_cached_by_the_hash_of_the_row(client, opened):
    """The tag is the row's hash; asked again, nothing is sent."""
    status, headers, body = client.request("/thumbnail/2", side=160)
    assert status == 200 and headers["content-type"] == "image/jpeg"
    assert cv2.imdecode(np.frombuffer(body, np.uint8), 1).shape == (48, 64, 3)
    assert f"{int(opened['tensor'].hashes[2]):016x}" in headers["etag"]
    again = {"If-None-Match": headers["etag"]}
    status, headers, body = client.request("/thumbnail/2", side=160, headers=again)
    assert (status, body) == (304, b"") and "max-age" in headers["cache-control"]
    assert client.request("/thumbnail/2", side=160, outlines=1, headers=again)[0] == 200
    assert client.request("/thumbnail/99")[0] == 404


def test_pictures_and_maps(client, opened):
    """Each column that can be shown is, pixel by pixel; others are not."""
    for column in ("image", "tensor"):
        status, headers, body = client.request("/picture/3", column=column)
        assert status == 200 and headers["content-type"] == "image/png"
        pixels = cv2.imdecode(np.frombuffer(body, np.uint8), 1)[..., ::-1]
        np.testing.assert_array_equal(pixels, opened[column][3])
    for column in ("prob_map", "thresh_map", "prob_mask", "thresh_mask"):
        status, headers, body = client.request("/picture/3", column=column)
        assert cv2.imdecode(np.frombuffer(body, np.uint8), -1).shape == (64, 64, 4)
        again = {"If-None-Match": headers["etag"]}
        assert client.request("/picture/3", column=column, headers=again)[0] == 304
    for column in ("inverse_matrix", "nothing", ""):
        assert client.request("/picture/3", column=column)[0] == 404


def test_predictions(start_viewer, shared_store, tmp_path):
    """Hits, misses and false alarms of a sample, and the H-mean to sort by."""
    false = [[120, 90], [150, 90], [150, 110], [120, 110]]
    boxes = {"img_03.jpg": [{"points": false, "score": 0.4}, QUADS[0], QUADS[2]], "img_01.jpg": []}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    client = start_viewer(shared_store, predictions=[tmp_path / "boxes.json"])
    (found,) = client.json("/api/sample", row=3)["predictions"]
    assert found["truths"] == ["hit", "miss", "ignored"]
    assert [box["state"] for box in found["boxes"]] == ["false_alarm", "hit", "left_out"]
    assert found["boxes"][0]["score"] == 0.4 and found["boxes"][1]["truth"] == 0
    assert (found["hits"], found["misses"], found["false_alarms"]) == (1, 1, 1)
    page = client.json("/api/rows", sort="hmean")
    assert page["rows"][:2] == [1, 3] and page["hmean"][:3] == [0.0, 0.5, None]
    assert client.json("/api/rows", filter="hmean < 0.7")["rows"] == [1, 3]
    assert client.json("/api/store")["predictions"][0]["hmean"] == pytest.approx(0.4)
    assert client.json("/api/sample", row=0)["predictions"] == [None]
    assert client.request("/thumbnail/3", outlines=1)[0] == 200


def test_several_sets_of_predictions(start_viewer, shared_store, tmp_path):
    """Each has its own figures and fields; boxes below a score are left out of the matching."""
    false = [[120, 90], [150, 90], [150, 110], [120, 110]]
    scored = [{"points": false, "score": 0.4}, {"points": QUADS[0], "score": 0.9}]
    for name, boxes in (("a", scored), ("b", [])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"img_03.jpg": boxes}))
    client = start_viewer(shared_store, predictions=[tmp_path / "a.json", tmp_path / "b.json"])
    sets = client.json("/api/store")["predictions"]
    assert [(found["name"], found["hmean"]) for found in sets] == [("a.json", 0.5), ("b.json", 0)]
    first, second = client.json("/api/sample", row=3)["predictions"]
    assert (first["false_alarms"], second["misses"]) == (1, 2)
    first, _ = client.json("/api/sample", row=3, min_score=50)["predictions"]
    assert (first["false_alarms"], len(first["boxes"])) == (0, 1)
    assert client.json("/api/rows", filter="hmean > hmean_2")["rows"] == [3]


def test_a_store_beside(start_viewer, shared_store, tmp_path):
    """The other store's sample of the same key, and its pictures."""
    other = write_store(tmp_path / "other.ocrs", samples=3, first=3)
    client = start_viewer(shared_store, beside=other)
    assert client.json("/api/store")["beside"] == "other.ocrs"
    found = client.json("/api/sample", key="img_03.jpg", beside=1)
    assert found["row"] == 0 and client.json("/api/sample", key="img_03.jpg")["row"] == 3
    assert (
        client.request("/picture/0", column="image", beside=1)[2]
        != (client.request("/picture/0", column="image")[2])
    )
    assert client.json("/api/sample", status=404, key="img_11.jpg", beside=1)["kind"] == "missing"


def test_histogram(client):
    """Numbers in ranges, other values by frequency; of the samples that the filter selects."""
    widths = client.json("/api/histogram", sort="width")
    assert (sum(widths["counts"]), widths["edges"][0], widths["edges"][-1]) == (12, 120, 160)
    some = client.json("/api/histogram", sort="width", filter="width > 130")
    assert sum(some["counts"]) == 6
    keys = client.json("/api/histogram", sort="key")
    assert keys["counts"] == [1] * 12 and keys["values"][0] == "img_00.jpg"
    assert client.json("/api/histogram", status=400, sort="nothing")["kind"] == "filter"


def test_the_keys_of_a_selection(client):
    """A key a line, in the order of the page."""
    status, _, body = client.request("/api/keys", filter="row < 3", sort="key", descending=1)
    assert status == 200 and body.decode() == "img_02.jpg\nimg_01.jpg\nimg_00.jpg\n"


def test_tags(start_viewer, tmp_path):
    """They are in a file beside the store, are found by filters, and survive the viewer."""
    path = write_store(tmp_path / "val.ocrs", samples=3)
    before = path.read_bytes()
    client = start_viewer(path)
    origin = {"origin": f"http://127.0.0.1:{client.viewer.port}"}

    def tag(key, *words, status=200):
        query = [("key", key), *(("tag", word) for word in words)]
        url = f"/api/tags?{urlencode(query)}"
        found, _, body = client.request(url, method="POST", headers=origin)
        assert found == status, body
        return json.loads(body)

    assert tag("img_01.jpg", "blurred", " dark ", "blurred")["tags"] == ["blurred", "dark"]
    assert client.json("/api/rows", filter="list_contains(tags, 'dark')")["rows"] == [1]
    assert client.json("/api/rows", filter="len(tags) = 0")["rows"] == [0, 2]
    assert tag("nobody", "x", status=404)["kind"] == "missing"
    assert "at most" in tag("img_01.jpg", "x" * 100, status=422)["error"]
    assert client.json("/api/sample", row=1)["tags"] == ["blurred", "dark"]
    again = start_viewer(path)
    assert again.json("/api/sample", row=1)["tags"] == ["blurred", "dark"]
    tag("img_01.jpg")
    assert json.loads((tmp_path / "val.ocrs.tags.json").read_text()) == {}
    assert path.read_bytes() == before
    (tmp_path / "val.ocrs.tags.json").write_text("[1]")
    with pytest.raises(SourceError, match=r"val\.ocrs\.tags\.json: expected JSON"):
        start_viewer(path)


def test_another_host(start_viewer, shared_store):
    """On all addresses any host name will do, with the token; without it nothing is shown."""
    client = start_viewer(shared_store, host="0.0.0.0")
    assert "0.0.0.0" not in client.viewer.url
    assert client.request("/api/store", headers={"host": "box.example:80"})[0] == 200
    assert client.request("/api/store", cookie=False)[0] == 403


# ---- what it survives ----


def test_many_slow_queries(start_viewer, shared_store, monkeypatch):
    """They end with an answer that says why; pictures, pages and words are served meanwhile."""
    monkeypatch.setattr("ocrstore.viewer.samples.Filter", functools.partial(Filter, seconds=2))
    client = start_viewer(shared_store)
    slow = "(SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range*b.range=3) > 0"
    found = []

    def ask(number):
        status, _, body = client.request("/api/rows", filter=f"{slow} OR row = {number}")
        found.append((status, json.loads(body)["kind"]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(45)]
    for thread in threads:
        thread.start()
    assert client.request("/thumbnail/2")[0] == 200
    assert client.json("/api/rows", filter="img_03")["rows"] == [3]
    assert any(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert set(found) == {(400, "filter"), (503, "busy")}
    assert client.json("/api/rows", filter="row = 3")["rows"] == [3]


def test_a_store_replaced_underneath(start_viewer, tmp_path):
    """The old one is shown until the page asks for the new one; then addresses change."""
    path = write_store(tmp_path / "val.ocrs", samples=4)
    client = start_viewer(path)
    state = client.json("/api/state")
    assert state["news"]["kind"] == "same"
    replace(path, samples=3, first=20)
    news = client.json("/api/state")
    assert news["state"] == state["state"] and news["news"]["kind"] == "replaced"
    assert "3 samples" in news["news"]["message"]
    assert client.json("/api/rows")["keys"][0] == "img_00.jpg"
    assert client.request("/picture/3", column="image")[0] == 200
    own = {"Origin": f"http://127.0.0.1:{client.viewer.port}"}
    facts = client.json("/api/reload", method="POST", headers=own)
    assert facts["samples"] == 3 and facts["state"] != state["state"]
    assert client.json("/api/rows")["keys"][0] == "img_20.jpg"
    assert client.json("/api/state")["news"]["kind"] == "same"


def test_a_store_that_grew(start_viewer, tmp_path):
    """A new generation in the same file is news; a mere touch is not."""
    path = write_store(tmp_path / "val.ocrs", samples=4)
    client = start_viewer(path)
    os.utime(path, ns=(1, 1))
    assert client.json("/api/state")["news"]["kind"] == "same"
    with ocrstore.edit(path) as writer:
        writer.delete("img_01.jpg")
    assert client.json("/api/state")["news"]["kind"] == "grown"


def test_a_store_that_went_away_or_broke(start_viewer, tmp_path):
    """What is mapped is still shown; the news says what is wrong; reloading fails with words."""
    path = write_store(tmp_path / "val.ocrs", samples=4)
    client = start_viewer(path)
    path.rename(tmp_path / "away.ocrs")
    assert client.json("/api/state")["news"]["kind"] == "gone"
    path.write_bytes(b"something else" * 1000)
    assert client.json("/api/state")["news"]["kind"] == "broken"
    own = {"Origin": f"http://127.0.0.1:{client.viewer.port}"}
    assert client.json("/api/reload", method="POST", headers=own, status=422)["error"]
    assert client.json("/api/rows")["total"] == 4
    assert client.request("/thumbnail/2")[0] == 200


def test_a_store_cut_in_place(start_viewer, tmp_path):
    """The file lost its end while mapped: an error that says so, not a killed process."""
    path = write_store(tmp_path / "val.ocrs", samples=4)
    client = start_viewer(path)
    os.truncate(path, 8192)
    assert client.json("/api/sample", row=2, status=409)["kind"] == "changed"
    assert client.request("/thumbnail/2")[0] == 409
    assert client.json("/api/state")["news"]["kind"] == "broken"


def test_an_empty_store_and_one_without_pictures(start_viewer, tmp_path):
    """Neither is an error."""
    with ocrstore.create(tmp_path / "a.ocrs", {"a": ocrstore.Column("int8", (None, 2))}):
        pass
    client = start_viewer(tmp_path / "a.ocrs")
    assert client.json("/api/store")["samples"] == 0
    assert client.json("/api/rows")["total"] == 0
    with ocrstore.create(tmp_path / "b.ocrs", {"a": ocrstore.Column("int8", (2,))}) as writer:
        writer.append("x", {"a": np.zeros(2, np.int8)})
    client = start_viewer(tmp_path / "b.ocrs")
    facts = client.json("/api/store")
    assert facts["thumbnails"] is False and facts["views"] == []
    sample = client.json("/api/sample", key="x")
    assert sample["size"] is None and sample["views"] == [] and sample["polygons"] == []
    assert client.json("/thumbnail/0", status=404)["kind"] == "missing"
