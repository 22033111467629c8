"""`push` and `pull` of stores and data sets, with faults, interruptions and two writers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("obstore")

import ocrstore
from ocrstore.catalog import CATALOG, Catalog, Shard, read_catalog, write_catalog
from ocrstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    RemoteError,
    StoreChangedError,
    WriteError,
)
from ocrstore.remote.objects import PART_NBYTES, Place
from ocrstore.remote.transfer import pull, push
from tests.remote.servers import Proxy
from tests.waiting import wait_until


def write_store(path: Path, *, samples: int = 4, side: int = 64, seed: int = 0) -> Path:
    """Write a store of noise."""
    random = np.random.default_rng([seed, samples])
    with ocrstore.create(path, {"tensor": ocrstore.Column("uint8", (side, side, 3))}) as writer:
        for number in range(samples):
            pixels = random.integers(0, 256, (side, side, 3), np.uint8)
            writer.append(f"{seed}-{number}", {"tensor": pixels})
    return path


def write_data_set(folder: Path, seeds: tuple[int, ...] = (1, 2)) -> Path:
    """Write a data set with one shard for each seed; the number of seeds is a power of two."""
    folder.mkdir(exist_ok=True)
    bits = len(seeds).bit_length() - 1
    shards = []
    for number, seed in enumerate(seeds):
        path = folder / f"shard-{seed}.ocrs"
        if not path.exists():
            write_store(path, seed=seed)
        with ocrstore.open(path) as store:
            sizes = {"tensor": 4 * 64 * 64 * 3}
            bucket = f"{number:0{bits}b}" if bits else ""
            about = (store.generation, store.fingerprint, ((1, 4),), sizes)
            shards.append(Shard(path.name, bucket, "0" * 64, path.stat().st_size, 4, *about))
            columns = dict(store.columns)
    write_catalog(Catalog(str(folder), columns, {}, tuple(shards), {}))
    return folder


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty folder, in a bucket and on disk."""
    if request.param == "file":
        return (tmp_path / "a bucket").as_uri()
    return f"{request.getfixturevalue('bucket')}/a folder"


def test_a_store_goes_there_and_back(url: str, tmp_path: Path) -> None:
    """The same bytes arrive; a second time nothing is transferred."""
    store = write_store(tmp_path / "a.ocrs", samples=150, side=200)
    assert store.stat().st_size > PART_NBYTES
    assert push(store, f"{url}/").sent == ["a.ocrs"]
    again = push(store, f"{url}/a.ocrs")
    assert (again.sent, again.kept, again.nbytes) == ([], ["a.ocrs"], 0)
    assert pull(f"{url}/a.ocrs", tmp_path / "new" / "b.ocrs").sent == ["a.ocrs"]
    assert (tmp_path / "new" / "b.ocrs").read_bytes() == store.read_bytes()
    assert pull(f"{url}/a.ocrs", tmp_path).kept == ["a.ocrs"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b.ocrs"]


def test_a_data_set_goes_there_and_back(url: str, tmp_path: Path) -> None:
    """Only shards that differ are transferred; what went is the sum of their sizes."""
    folder = write_data_set(tmp_path / "train", (1, 2))
    assert sorted(push(folder, url).sent) == [CATALOG, "shard-1.ocrs", "shard-2.ocrs"]
    assert push(folder / CATALOG, f"{url}/{CATALOG}").sent == []
    write_data_set(folder, (1, 3))
    seen: list[tuple[int, int]] = []
    done = push(folder, url, progress=lambda *now: seen.append(now))
    assert (done.sent, done.kept) == (["shard-3.ocrs", CATALOG], ["shard-1.ocrs"])
    assert done.nbytes == (folder / "shard-3.ocrs").stat().st_size
    assert seen[-1][0] == seen[-1][1] == sum(shard.nbytes for shard in read_catalog(folder).shards)
    assert sorted(pull(url, tmp_path / "got").sent) == [CATALOG, "shard-1.ocrs", "shard-3.ocrs"]
    assert pull(f"{url}/{CATALOG}", tmp_path / "got").sent == []
    for name in (CATALOG, "shard-1.ocrs", "shard-3.ocrs"):
        assert (tmp_path / "got" / name).read_bytes() == (folder / name).read_bytes()


def test_a_damaged_copy_is_replaced(bucket: str, tmp_path: Path) -> None:
    """Objects and files of the right size with other bytes are not taken for the same."""
    store = write_store(tmp_path / "a.ocrs")
    wrong = bytearray(store.read_bytes())
    wrong[-1] ^= 1
    Place(bucket).put("a.ocrs", bytes(wrong), replacing=None)
    assert push(store, f"{bucket}/a.ocrs").sent == ["a.ocrs"]
    (tmp_path / "b.ocrs").write_bytes(wrong)
    assert pull(f"{bucket}/a.ocrs", tmp_path / "b.ocrs").sent == ["a.ocrs"]
    assert (tmp_path / "b.ocrs").read_bytes() == store.read_bytes()


def test_one_of_two_writers_wins(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pushes that began with the same catalog the second to finish is told."""
    first, second = (write_data_set(tmp_path / str(seed), (seed,)) for seed in (1, 2))
    push(write_data_set(tmp_path / "0", (0,)), url)
    upload = Place.put_file

    def interrupted(place: Place, name: str, file: object, nbytes: int) -> None:
        upload(place, name, file, nbytes)
        if name == "shard-1.ocrs":
            push(second, url)

    monkeypatch.setattr(Place, "put_file", interrupted)
    with pytest.raises(StoreChangedError, match=r"dataset\.json: was written by somebody else"):
        push(first, url)
    assert pull(url, tmp_path / "got").sent == ["shard-2.ocrs", CATALOG]


@pytest.mark.parametrize("kind", ["503", "refuse", "wrong"])
def test_uploads_through_faults(bucket: str, proxy: Proxy, tmp_path: Path, kind: str) -> None:
    """Throttled and dropped requests are repeated; wrong bytes are found and sent again."""
    store = write_store(tmp_path / "a.ocrs")
    proxy.fail(kind, times=1, method="PUT")
    assert push(store, f"{bucket}/a.ocrs").sent == ["a.ocrs"]
    assert proxy.faults[0].times == 0
    assert bytes(Place(bucket).get("a.ocrs")[0]) == store.read_bytes()


def test_a_server_that_keeps_something_else(bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    """An upload that is wrong again and again is an error, and no catalog is written."""
    proxy.fail("wrong", times=10**6, method="PUT")
    with pytest.raises(RemoteError, match="does not hold what was sent, 3 times"):
        push(write_data_set(tmp_path / "train"), bucket)
    assert Place(bucket).find(CATALOG) is None


@pytest.mark.parametrize("kind", ["503", "refuse", "cut", "wrong"])
def test_downloads_through_faults(bucket: str, proxy: Proxy, tmp_path: Path, kind: str) -> None:
    """Faults are repeated; wrong bytes are found by verification and downloaded again."""
    store = write_store(tmp_path / "a.ocrs")
    push(store, f"{bucket}/a.ocrs")
    proxy.fail(kind, times=1, path="a.ocrs")
    proxy.fail(kind, times=1, path="a.ocrs")
    pull(f"{bucket}/a.ocrs", tmp_path / "b.ocrs")
    assert (tmp_path / "b.ocrs").read_bytes() == store.read_bytes()


def test_a_damaged_object_is_refused(bucket: str, tmp_path: Path) -> None:
    """A store that is damaged in the bucket is not put in place; the message names it."""
    data = bytearray(write_store(tmp_path / "a.ocrs").read_bytes())
    data[len(data) // 2] ^= 1
    Place(bucket).put("a.ocrs", bytes(data), replacing=None)
    with pytest.raises(
        CorruptStoreError,
        match=r"a\.ocrs: damaged, downloaded 3 times: sample 0-\d, column tensor: ",
    ):
        pull(f"{bucket}/a.ocrs", tmp_path / "b.ocrs")
    assert [path.name for path in tmp_path.iterdir()] == ["a.ocrs"]


def test_a_shard_that_is_not_the_catalogs(bucket: str, tmp_path: Path) -> None:
    """A shard with another fingerprint than the catalog's is refused, and no catalog written."""
    folder = write_data_set(tmp_path / "train", (1,))
    push(folder, bucket)
    other = write_store(tmp_path / "x.ocrs", seed=9)
    place = Place(bucket)
    with other.open("rb") as file:
        place.put_file("shard-1.ocrs", file, other.stat().st_size)
    with pytest.raises(CorruptStoreError, match=r"shard-1\.ocrs: .*its fingerprint is"):
        pull(bucket, tmp_path / "got")
    assert not (tmp_path / "got" / CATALOG).exists()


def test_what_cannot_be_pushed_or_pulled(bucket: str, tmp_path: Path) -> None:
    """Files that are no stores, web servers as targets, URLs of nothing, targets that refuse."""
    (tmp_path / "x").write_bytes(b"no store")
    with pytest.raises(NotAStoreError):
        push(tmp_path / "x", f"{bucket}/x")
    store = write_store(tmp_path / "a.ocrs")
    with pytest.raises(RemoteError, match="web servers are only read"):
        push(store, "https://host/a.ocrs")
    with pytest.raises(NotAStoreError, match="nothing: no such object"):
        pull(f"{bucket}/nothing", tmp_path / "y")
    push(store, f"{bucket}/a.ocrs")
    with pytest.raises(WriteError):
        pull(f"{bucket}/a.ocrs", tmp_path / "x" / "y.ocrs")


def run(*words: str) -> subprocess.Popen[str]:
    """Start the command line."""
    command = [sys.executable, "-m", "ocrstore", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_transfer_goes_on(
    bucket: str, proxy: Proxy, tmp_path: Path, end: signal.Signals
) -> None:
    """Shards that were sent are not sent again, and pieces not downloaded again."""
    folder = write_data_set(tmp_path / "train", (1, 2, 3, 4))
    big = write_store(tmp_path / "big.ocrs", samples=250, side=300)

    def interrupt(process: subprocess.Popen[str], when: Callable[[], object]) -> None:
        wait_until(when)
        process.send_signal(end)
        _, said = process.communicate()
        assert process.returncode == (130 if end == signal.SIGINT else -end)
        assert ("interrupted" in said) == (end == signal.SIGINT)
        assert "Traceback" not in said

    proxy.fail("hang", times=1, method="PUT", path="shard-4.ocrs")
    sending = run("push", str(folder), bucket)
    place = Place(bucket)
    interrupt(sending, lambda: proxy.faults[0].times == 0 and place.find("shard-3.ocrs"))
    assert place.find(CATALOG) is None
    proxy.requests.clear()
    assert "shard-4.ocrs" in push(folder, bucket).sent
    assert not [r for r in proxy.requests if r.method == "PUT" and "shard-1.ocrs" in r.path]

    push(big, f"{bucket}/big.ocrs")
    target, pieces = tmp_path / "got.ocrs", 2 * (8 << 20)
    proxy.fail("hang", path=f"bytes={pieces}-")
    receiving = run("pull", f"{bucket}/big.ocrs", str(target))
    partial = ".got.ocrs.*.partial"
    interrupt(
        receiving, lambda: [path.stat().st_size for path in tmp_path.glob(partial)] == [pieces]
    )
    proxy.requests.clear()
    pull(f"{bucket}/big.ocrs", target)
    asked = [r.range for r in proxy.requests if r.method == "GET"]
    assert min(int(found.removeprefix("bytes=").partition("-")[0]) for found in asked) == pieces
    assert target.read_bytes() == big.read_bytes()
    assert not list(tmp_path.glob(partial))


def test_the_commands(bucket: str, tmp_path: Path) -> None:
    """Results in words and as JSON; exit codes."""
    folder = write_data_set(tmp_path / "train")
    for words, code, said in (
        (("push", str(folder), bucket), 0, "3 files sent"),
        (("push", str(folder), bucket), 0, "0 files sent (0 B), 3 up to date"),
        (("pull", bucket, str(tmp_path / "got"), "--json"), 0, '"nbytes": '),
        (("pull", f"{bucket}/x", str(tmp_path)), 1, "x: no such object"),
        (("push", str(tmp_path / "nothing"), bucket), 2, "does not exist"),
        (("push", str(folder), "ftp://host/x"), 1, "is no URL of an object store"),
    ):
        process = run(*words)
        out, err = process.communicate()
        assert (process.returncode, said in out + err) == (code, True), (words, out, err)
        if "--json" in words:
            found = json.loads(out)
            assert sorted(found["sent"]) == sorted(path.name for path in folder.iterdir())
