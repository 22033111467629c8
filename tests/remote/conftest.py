"""Servers for the tests of object storage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.local_copies import fetchers, make_large, upload
from tests.remote.servers import (
    SETTINGS,
    Proxy,
    faulty_proxy,
    find_moto,
    make_bucket,
    moto_server,
)

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of a running S3 server."""
    if find_moto() is None:
        pytest.skip("needs moto_server: pip install 'moto[s3]' flask flask-cors")
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of the S3 server, which the environment names as the endpoint."""
    with faulty_proxy(s3_server) as running:
        for name, value in (*SETTINGS.items(), ("AWS_ENDPOINT_URL", running.url)):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        yield running


@pytest.fixture
def bucket(s3_server: str, proxy: Proxy) -> str:
    """The URL of a new bucket, `s3://NAME`, behind the proxy."""
    name = f"bucket-{next(_NUMBERS)}"
    make_bucket(s3_server, name)
    return f"s3://{name}"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder; its fetcher is ended after the test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OCRSTORE_CACHE", str(folder))
    yield folder
    for fetcher in fetchers(folder):
        fetcher.kill()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store of some 6 MB."""
    return make_large(tmp_path / "train.ocrs")


@pytest.fixture
def url(s3_server: str, bucket: str, source: Path) -> str:
    """The URL of the same store in a bucket."""
    return upload(s3_server, f"{bucket}/train.ocrs", source)
