"""Read and write the objects of a bucket, a web server or a folder, given by URL.

The only module that uses obstore. A process that has used it must not fork: obstore hangs in the
child. It is therefore used by the fetcher and by commands, never by a process that trains.
"""

from __future__ import annotations

import configparser
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from ocrstore.errors import NotAStoreError, RemoteError, StoreChangedError, WriteError, needs

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "http", "https", "file")
_LITERAL = ("s3", "gs", "az", "abfs", "abfss")
"""Their URLs are names of objects as they are; in those of the others %20 stands for a space."""

PART_NBYTES = 16 << 20
_PARTS_AT_ONCE = 4
_MOST_PARTS = 5_000  # S3 allows 10,000
_PAUSES = (0.2, 0.8, 3.2)
"""Seconds before an answer that was cut off is asked for again."""

_TIMEOUTS = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=30),  # without a single byte
    "timeout": timedelta(minutes=10),
}
_RETRIES = {
    "max_retries": 10,
    "retry_timeout": timedelta(minutes=1),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=10)},
}


class ObjectInfo(NamedTuple):
    """What a server says of an object."""

    name: str
    nbytes: int
    etag: str
    """Changes with the content. Time and size where the server has no ETag."""


def split_url(url: str) -> tuple[str, str]:
    """Split the URL of an object: that of its folder, and its name there.

    Raises:
        RemoteError: It is not the URL of an object.
    """
    folder, _, name = url.rstrip("/").rpartition("/")
    scheme = _scheme(url)
    if not name or folder.endswith(("/", ":")):
        raise RemoteError(f"{url}: names no object: expected {scheme}://.../NAME")
    return folder, name if scheme in _LITERAL else unquote(name)


def part_nbytes(nbytes: int) -> int:
    """Return the bytes of each part in which a file of this size is uploaded."""
    part = PART_NBYTES
    while part * _MOST_PARTS < nbytes:
        part *= 2
    return part


class Place:
    """The objects below a URL. Usable by several threads; not picklable, not after a fork.

    Requests that fail by the network or with 429 and 5xx are repeated with growing pauses, for at
    most a minute.

    Args:
        url: `s3://bucket/train`, `gs://bucket/train`, `az://container/train`, `https://host/train`
            or `file:///folder/train`. Credentials, region and endpoint come from the environment
            (AWS_*, GOOGLE_*, AZURE_*), from AWS profiles and from the machine's own role.

    Raises:
        MissingPackageError: obstore is not installed.
        RemoteError: The URL is of no known kind, or settings are missing.
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        scheme = _scheme(url)
        with needs("remote"):
            from obstore.store import from_url
        self.url = url.rstrip("/")
        if scheme == "file":
            options: dict[str, Any] = {"mkdir": create}
        else:
            options = {"client_options": dict(_TIMEOUTS), "retry_config": _RETRIES}
            options |= _profile() if scheme == "s3" else {}
            endpoint = options.get("config", {}).get("endpoint", "")
            if url.startswith("http://") or endpoint.startswith("http://"):
                options["client_options"]["allow_http"] = True
        if scheme in _LITERAL:
            head, _, path = self.url.partition("://")
            url = f"{head}://{quote(path, safe='/@:')}"
        with self._translated(""):
            self._store: ObjectStore = from_url(url, **options)

    def head(self, name: str) -> ObjectInfo:
        """Return size and ETag of an object.

        Raises:
            NotAStoreError: There is no such object.
            RemoteError: The server cannot be reached, or refuses.
        """
        with self._translated(name):
            return _info(self._store.head(name))

    def find(self, name: str) -> ObjectInfo | None:
        """Return size and ETag of an object, None if there is none."""
        try:
            return self.head(name)
        except NotAStoreError:
            return None

    def get_range(self, name: str, start: int, stop: int, *, etag: str | None = None) -> memoryview:
        """Return bytes of an object, without a copy.

        Args:
            etag: Of the object as it has to be; None if any will do.

        Raises:
            StoreChangedError: The object has another ETag, or ends before `stop`.
            NotAStoreError: There is no such object.
            RemoteError: The server cannot be reached, or refuses.
        """
        data, found = self._get(name, {"range": (start, stop)}, etag)
        if len(data) != stop - start:
            raise StoreChangedError(
                f"{self.url}/{name}: has {found.nbytes:,} bytes, expected at least {stop:,}. "
                "It was replaced; open it again"
            )
        return data

    def get(self, name: str) -> tuple[memoryview, ObjectInfo]:
        """Return a small object whole, with its ETag.

        Raises:
            NotAStoreError: There is no such object.
            RemoteError: The server cannot be reached, or refuses.
        """
        return self._get(name, {}, None)

    def put(self, name: str, data: bytes, *, replacing: ObjectInfo | None) -> str:
        """Write a small object if nobody else has written it in the meantime; return its ETag.

        Args:
            replacing: What `find` returned for the object that is replaced; None if there was none.

        Raises:
            StoreChangedError: It was written by somebody else.
            RemoteError: The server cannot be reached, or refuses.
        """
        from obstore.exceptions import NotSupportedError

        mode: Any = "create" if replacing is None else {"e_tag": replacing.etag}
        with self._translated(name):
            try:
                return self._store.put(name, data, mode=mode)["e_tag"] or ""
            except (NotSupportedError, NotImplementedError):
                pass  # file:// and https:// have no such condition: look, then write
        if self.find(name) != replacing:
            raise _changed(f"{self.url}/{name}")
        with self._translated(name):
            return self._store.put(name, data, mode="overwrite")["e_tag"] or ""

    def put_file(self, name: str, file: IO[bytes], nbytes: int) -> None:
        """Write an object from a file, large ones in parts; it appears whole or not at all.

        Raises:
            RemoteError: The server cannot be reached, or refuses.
        """
        part = part_nbytes(nbytes)
        data = file if nbytes > part else file.read()
        with self._translated(name):
            self._store.put(name, data, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)

    def list(self) -> Iterator[ObjectInfo]:
        """Yield all objects below the place, in no particular order.

        Raises:
            RemoteError: The server cannot be reached, refuses, or has no lists (https://).
        """
        with self._translated(""):
            for found in self._store.list():
                yield from map(_info, found)

    def _get(
        self, name: str, options: GetOptions, etag: str | None
    ) -> tuple[memoryview, ObjectInfo]:
        from obstore.exceptions import GenericError

        if etag is not None and etag.startswith('"'):  # a weak one never matches
            options["if_match"] = etag
        for pause in (*_PAUSES, None):
            with self._translated(name):
                try:
                    answer = self._store.get(name, options=options)
                    found = _info(answer.meta)
                    if etag is not None and found.etag != etag:  # not every server heeds If-Match
                        raise _changed(f"{self.url}/{name}")
                    return memoryview(answer.bytes()), found
                except GenericError as exc:
                    # an answer that was cut off: obstore repeats all other requests by itself
                    if pause is None or "body error" not in str(exc):
                        raise
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """Turn obstore's errors into ours."""
        from obstore import exceptions

        where = f"{self.url}/{name}".rstrip("/")
        try:
            yield
        except FileNotFoundError as exc:
            raise NotAStoreError(f"{where}: no such object, or no such bucket") from exc
        except (exceptions.PreconditionError, exceptions.AlreadyExistsError) as exc:
            raise _changed(where) from exc
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as exc:
            raise RemoteError(f"{where}: access denied: {_reason(exc)}. {_CREDENTIALS}") from exc
        except (exceptions.BaseError, ValueError, NotImplementedError) as exc:
            reason = _reason(exc)
            remedy = _CREDENTIALS if _lacks_credentials(reason) else "Check the URL and the network"
            raise RemoteError(f"{where}: {reason}. {remedy}") from exc
        except OSError as exc:
            if isinstance(exc, RemoteError | WriteError):
                raise
            raise RemoteError(f"{where}: {exc}") from exc


_CREDENTIALS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS"
    " or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; AWS_SKIP_SIGNATURE=true for "
    "public buckets"
)


def _lacks_credentials(reason: str) -> bool:
    return any(word in reason for word in ("169.254.169.254", "metadata.google", "Account must be"))


def _changed(where: str) -> StoreChangedError:
    return StoreChangedError(f"{where}: was replaced by somebody else in the meantime")


def _reason(exc: Exception) -> str:
    """Return the first paragraph of obstore's message; the rest is for its developers."""
    return " ".join(str(exc).partition("\n\nDebug source")[0].split()).rstrip(".")


def _info(meta: Any) -> ObjectInfo:
    nbytes = int(meta["size"])
    etag = meta["e_tag"] or f"{meta['last_modified'].timestamp()}-{nbytes}"
    return ObjectInfo(str(meta["path"]), nbytes, str(etag))


def _scheme(url: str) -> str:
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES or not rest.strip("/"):
        kinds = ", ".join(f"{name}://" for name in SCHEMES)
        raise RemoteError(f"{url}: is no URL of an object store: expected one of {kinds}")
    if scheme in ("http", "https") and "?" in url:
        raise RemoteError(f"{url}: URLs with a query (?...) are not read; leave it out")
    return scheme


def _profile() -> dict[str, Any]:
    """Return the settings of the AWS profile, which obstore does not read.

    What the environment says comes first, as for every program of AWS.
    """
    name = os.environ.get("AWS_PROFILE", "default")
    files = configparser.ConfigParser(interpolation=None)
    home = Path.home() / ".aws"
    with suppress(configparser.Error):
        files.read(os.environ.get("AWS_CONFIG_FILE", home / "config"), "utf-8")
        files.read(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), "utf-8")
    found: dict[str, str] = {}
    for section in (f"profile {name}", name):
        if files.has_section(section):
            found |= files[section]
    keys = {key: found.get(f"aws_{key}") for key in ("access_key_id", "secret_access_key")}
    keys["session_token"] = found.get("aws_session_token")
    if "AWS_ACCESS_KEY_ID" in os.environ:
        keys = {}
    elif "AWS_PROFILE" in os.environ and keys["access_key_id"] is None:
        return {"credential_provider": _boto3_credentials(name)}
    config = {
        **keys,
        "region": os.environ.get("AWS_REGION", found.get("region")),
        "endpoint": os.environ.get("AWS_ENDPOINT_URL", found.get("endpoint_url")),
    }
    return {"config": {key: value for key, value in config.items() if value is not None}}


def _boto3_credentials(profile: str) -> Any:
    """Return credentials of a profile without keys: single sign-on, assumed roles, programs."""
    try:
        from boto3.session import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as exc:
        raise RemoteError(
            f"AWS profile {profile!r} has no access key, and boto3 is not installed, which is "
            "needed for other kinds of profiles: pip install boto3"
        ) from exc
    return Boto3CredentialProvider(Session(profile_name=profile))
