"""Objects by URL, against a real S3 server behind a proxy that fails."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from ocrstore.errors import NotAStoreError, RemoteError, StoreChangedError
from ocrstore.remote import objects
from ocrstore.remote.objects import PART_NBYTES, Place, split_url
from tests.remote.servers import Proxy, faulty_proxy

NAME = "a b%20ü.ocrs"


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of each kind that can be written to."""
    if request.param == "file":
        return Place((tmp_path / "pläce %41").as_uri(), create=True)
    return Place(f"{request.getfixturevalue('bucket')}/a folder%20/ü")


def test_what_is_put_is_there(place: Place, tmp_path: Path) -> None:
    """Names, sizes, ranges and lists, also with blanks and percent signs in names."""
    assert place.find(NAME) is None
    etag = place.put(NAME, b"0123456789", replacing=None)
    info = place.head(NAME)
    assert info == (NAME, 10, etag)
    assert bytes(place.get_range(NAME, 2, 5, etag=etag)) == b"234"
    assert bytes(place.get(NAME)[0]) == b"0123456789"
    assert [found.nbytes for found in place.list()] == [10]
    assert place.url.endswith(("/ü", "%2541"))


def test_a_file_goes_up_in_parts(place: Place) -> None:
    """A file of more than one part arrives whole."""
    data = os.urandom(PART_NBYTES + 12345)
    place.put_file("big", io.BytesIO(data), len(data))
    assert bytes(place.get("big")[0]) == data


def test_changed_objects_are_noticed(place: Place) -> None:
    """Reading with the ETag of what was replaced, and past the end, is an error."""
    before = place.put("x", b"0123456789", replacing=None)
    place.put("x", b"9876543210", replacing=place.head("x"))
    with pytest.raises(StoreChangedError, match=r"x: was replaced by somebody else"):
        place.get_range("x", 0, 4, etag=before)
    with pytest.raises(StoreChangedError, match=r"has 10 bytes, expected at least 11"):
        place.get_range("x", 5, 11)


def test_one_of_two_writers_wins(place: Place) -> None:
    """A conditional put fails if the object is there, gone or another one."""
    place.put("x", b"1", replacing=None)
    seen = place.head("x")
    with pytest.raises(StoreChangedError):
        place.put("x", b"2", replacing=None)
    place.put("x", b"3 and more", replacing=seen)
    with pytest.raises(StoreChangedError):
        place.put("x", b"4", replacing=seen)
    assert bytes(place.get("x")[0]) == b"3 and more"


def test_what_is_not_there(place: Place) -> None:
    """Objects that do not exist have an error of their own."""
    for ask in (place.head, place.get):
        with pytest.raises(NotAStoreError, match="nothing: no such object"):
            ask("nothing")
    with pytest.raises(RemoteError, match=r"\.\./x"):
        place.head("../x")


@pytest.mark.parametrize("kind", ["503", "429", "refuse", "cut"])
def test_faults_are_repeated(bucket: str, proxy: Proxy, kind: str) -> None:
    """Throttled, dropped and cut answers are asked for again, until they are right."""
    place = Place(bucket)
    data = os.urandom(1 << 20)
    place.put("x", data, replacing=None)
    proxy.fail(kind, times=2)
    assert bytes(place.get_range("x", 0, len(data))) == data
    assert proxy.faults[0].times == 0


def test_a_changed_object_is_noticed_on_servers_without_conditions(bucket: str) -> None:
    """The ETag of each answer is compared, for servers that ignore If-Match."""
    place = Place(bucket)
    place.put("x", b"0123456789", replacing=None)
    with pytest.raises(StoreChangedError):
        place.get_range("x", 0, 4, etag='W/"weak, so that no If-Match is sent"')


def test_cut_answers_of_a_plain_web_server(tmp_path: Path) -> None:
    """A server without ETags is read as well, and asked again where an answer is cut off."""
    data = os.urandom(1 << 20)
    (tmp_path / "a b.ocrs").write_bytes(data)
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            port = re.search(r"port (\d+)", server.stdout.readline())[1]
            with faulty_proxy(f"http://127.0.0.1:{port}") as proxy:
                place = Place(proxy.url)
                info = place.head("a b.ocrs")
                proxy.fail("cut", times=2)
                found, again = place.get("a b.ocrs")
                assert bytes(found) == data and info == again
        finally:
            server.kill()


def test_faults_that_stay_are_an_error(
    bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that always fails is given up on, with the object in the message."""
    monkeypatch.setitem(objects._RETRIES, "max_retries", 1)
    place = Place(bucket)
    place.put("x", b"123", replacing=None)
    proxy.fail("cut", times=10**6)
    with pytest.raises(RemoteError, match=f"{bucket}/x: "):
        place.get_range("x", 0, 3)
    proxy.fail("403", times=1, method="HEAD")
    with pytest.raises(RemoteError, match=r"access denied.*Set AWS_ACCESS_KEY_ID"):
        place.head("x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "is no URL of an object store: expected one of s3://"),
        ("s3://", "is no URL of an object store"),
        ("https://host/x?signature=1", r"URLs with a query \(\?\.\.\.\) are not read"),
        ("az://container/x", "Account must be specified.*AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_urls_that_cannot_be_used(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what is expected."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(RemoteError, match=message):
        Place(url)


def test_urls_of_objects_are_split() -> None:
    """Names in buckets are taken as they are, those of web servers and files are unquoted."""
    assert split_url("s3://bucket/a%20b/c%20d.ocrs") == ("s3://bucket/a%20b", "c%20d.ocrs")
    assert split_url("https://host/c%20d.ocrs/") == ("https://host", "c d.ocrs")
    with pytest.raises(RemoteError, match="names no object"):
        split_url("s3://bucket/")


def test_profiles(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, region and endpoint come from the profile that AWS_PROFILE names."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    (tmp_path / "config").write_text(
        f"[default]\nregion=x\n[profile team]\nregion=eu-west-1\nendpoint_url={endpoint}\n"
    )
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id=A\naws_secret_access_key=S\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    place = Place(bucket)
    place.put("x", b"1", replacing=None)
    assert place.head("x").nbytes == 1


def test_obstore_is_imported_when_a_place_is_opened() -> None:
    """Importing the module loads no obstore: who only forms URLs may fork."""
    code = "import sys, ocrstore.remote.objects; assert 'obstore' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
