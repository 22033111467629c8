"""Make one shard of a data set of many stores; divide keys into the buckets of shards.

A shard is an ordinary store. Its bucket is the leading bits of the hashes of its keys, so that
pictures which are added change the shards that get them and no others. Its name follows from its
inputs: what is there under that name is done.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ocrstore.annotation import FoundSample
from ocrstore.building.derive import (
    FrameRule,
    SkippedPictureError,
    annotation_hash,
    file_state,
    read_picture,
)
from ocrstore.building.plan import Known, ShardFacts, known_from, plan_shard
from ocrstore.building.run import ATTRIBUTES, Options, execute
from ocrstore.catalog import Shard
from ocrstore.decode import DECODER_FAMILIES, TooManyPixelsError, format_by_name, open_picture
from ocrstore.errors import DecodeError, SchemaError
from ocrstore.format.publish import rename_into_place
from ocrstore.format.row_groups import group_bounds
from ocrstore.keys import hash_of, shown
from ocrstore.metadata import diff_json
from ocrstore.pipeline import permit_modules
from ocrstore.sources import Source
from ocrstore.store import Store
from ocrstore.targets import give_targets
from ocrstore.views import View, stored_columns, views_metadata

SHARD = re.compile(r"(all|[01]{1,64})-[0-9a-f]{16}\.ocrs")
"""The name of a shard: its bucket, and the first digits of its inputs."""
ATTEMPT = re.compile(r"\.{1,2}(all|[01]{1,64})-[0-9a-f]{16}\.attempt\.ocrs(\.partial)?")
"""The name of a shard while it is written, which is of this attempt alone."""
_NAMED = 5


@dataclass(frozen=True, slots=True)
class ShardJob:
    """A shard to be made: all that `build_shard` needs, on any machine that has the same folders.

    It is small when it is pickled: names of pictures and annotations, no pixels.
    """

    folder: str
    bucket: str
    source: Source
    """Its pictures alone."""
    views: tuple[View, ...]
    facts: ShardFacts
    frames: FrameRule
    maps_folder: Path | None
    base: str | None
    """The name of an older shard with pictures of this bucket, to be used again."""
    force: bool
    """Make it although it is there."""
    options: Options
    modules: tuple[str, ...]
    targets: tuple[str, ...]


class Made(NamedTuple):
    """A shard that was made, or was there."""

    shard: Shard
    derived: int = 0
    reused: int = 0


class Failed(NamedTuple):
    """A shard that could not be made, by an engine that goes on with the others."""

    bucket: str
    reason: str


def build_shard(job: ShardJob) -> Made:
    """Make one shard and return what the catalog says of it.

    Several attempts at one shard, on any machines, do not disturb each other: each writes under a
    name of its own and renames at the end. An attempt never deletes what another one made, and
    reads from files only, never from a stream that an earlier attempt may have used up.
    """
    permit_modules(job.modules)
    for name in job.targets:
        give_targets(name)
    folder = Path(job.folder)
    before = _hashes(job)
    there = None if job.force else _find(job, before)
    if there is not None:
        return Made(there)
    attempt = folder / f".{job.bucket or 'all'}-{secrets.token_hex(8)}.attempt.ocrs"
    plan = plan_shard(
        job.source,
        attempt,
        job.views,
        shard=job.facts,
        base=None if job.base is None else folder / job.base,
        maps_folder=job.maps_folder,
        frames=job.frames,
    )
    report = execute(plan, job.options)
    # a picture may have changed since it was hashed: the name is that of what was stored
    stored = {key: (found.hash, found.annotation_hash) for key, found in _known(attempt).items()}
    inputs = _inputs(job, {**before, **stored})
    target = folder / _name(job.bucket, inputs)
    rename_into_place(attempt, target, locks=())
    return Made(describe_shard(target, job, inputs), report.derived, report.reused)


def _name(bucket: str, inputs: str) -> str:
    return f"{bucket or 'all'}-{inputs[:16]}.ocrs"


def find_shard(job: ShardJob) -> Shard | None:
    """Return the shard of a job if it is there.

    Of pictures whose size and time are as in the older shard no byte is read.
    """
    return _find(job, _hashes(job))


def _find(job: ShardJob, hashes: Mapping[str, tuple[int, int]]) -> Shard | None:
    inputs = _inputs(job, hashes)
    path = Path(job.folder) / _name(job.bucket, inputs)
    return describe_shard(path, job, inputs) if path.exists() else None


def _inputs(job: ShardJob, hashes: Mapping[str, tuple[int, int]]) -> str:
    """Hash everything that the content of a shard depends on."""
    formats = {format_by_name(key) for key in hashes}
    own = [field for field in job.facts.schema if field.name not in ATTRIBUTES.names]
    header = {
        "views": views_metadata(job.views),
        "decoders": {
            kind: family
            for kind, family in DECODER_FAMILIES.items()
            if kind in formats or None in formats
        },
        "frames": asdict(job.frames),
        "attributes": [[field.name, str(field.type)] for field in own],
    }
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key in sorted(hashes):
        digest.update(json.dumps([key, *hashes[key]]).encode())
    return digest.hexdigest()


def _hashes(job: ShardJob) -> dict[str, tuple[int, int]]:
    """Return the hashes of each picture and its annotation."""
    known = {} if job.base is None else _known(Path(job.folder) / job.base)
    found = {}
    for sample in job.source:
        picture = _picture_hash(sample, known.get(sample.key), job.options.max_pixels)
        found[sample.key] = (picture, annotation_hash(sample, job.maps_folder))
    return found


def _picture_hash(sample: FoundSample, known: Known | None, max_pixels: int) -> int:
    """Return the hash of a picture's file; 0 if it cannot be read, or is too large."""
    try:
        if known is not None:
            state = file_state(sample.path)
            if (state.nbytes, state.mtime_ns) == (known.nbytes, known.mtime_ns):
                return known.hash
        file = read_picture(sample.path, sample.key)
        open_picture(file.data, max_pixels=max_pixels)
    except (OSError, SkippedPictureError, TooManyPixelsError):
        return 0
    except DecodeError:
        pass
    return file.hash


def _known(path: Path) -> dict[str, Known]:
    with Store(path) as store:
        return known_from(store.index)


def describe_shard(path: Path, job: ShardJob, inputs: str) -> Shard:
    """Return what the catalog says of a shard.

    Raises:
        SchemaError: It is not what the job would make: somebody changed it.
    """
    with Store(path) as store:
        differences = diff_json(
            describe_views(store.columns, store.metadata),
            describe_views(stored_columns(job.views), views_metadata(job.views)),
        )
        strays = [key for key in store.keys if not _bits(key).startswith(job.bucket)]
        differences += [f"{shown(key)} is not of its bucket" for key in strays[:_NAMED]]
        if differences:
            raise SchemaError(
                f"{path}: differs from the other shards of the data set: "
                f"{'; '.join(differences[:_NAMED])}. Shards are changed by `ocrstore build` only; "
                "build with --force to make it again"
            )
        names = list(job.views[0].columns.values()) or list(store.columns)
        nbytes = {name: int(store[name].nbytes.sum()) for name in store.columns}
        largest = store[max(names, key=nbytes.__getitem__)]
        rows = [last - first for first, last in group_bounds(largest.offsets, largest.nbytes)]
        return Shard(
            path.name,
            job.bucket,
            inputs,
            path.stat().st_size,
            len(store),
            store.generation,
            store.fingerprint,
            tuple((len(list(equal)), number) for number, equal in groupby(rows)),
            nbytes,
        )


def describe_views(columns: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all shards of a data set have in common, to be compared."""
    return {
        "columns": {name: column.to_json() for name, column in columns.items()},
        "views": metadata.get("views"),
        "default_view": metadata.get("default_view"),
    }


# --- which pictures are together


def _bits(key: str) -> str:
    return f"{hash_of(key):064b}"


def divide(
    keys: Iterable[str], buckets: Iterable[str], *, most: int | None = None
) -> dict[str, list[str]]:
    """Divide keys into buckets: those that exist, completed so that every key is in one.

    Args:
        keys: The keys.
        buckets: The buckets that exist, none of which is the beginning of another.
        most: A bucket with more keys is split in two; buckets are never joined.

    Returns:
        The keys of each bucket that has some, in the order of the buckets.
    """
    split = {bucket[:length] for bucket in buckets for length in range(len(bucket))}
    waiting: dict[str, list[tuple[str, str]]] = {"": [(_bits(key), key) for key in keys]}
    found = {}
    while waiting:
        bucket, members = waiting.popitem()
        depth = len(bucket)
        if bucket in split or (most is not None and len(members) > most and depth < 64):
            for bit in "01":
                half = [member for member in members if member[0][depth] == bit]
                if half:
                    waiting[bucket + bit] = half
        else:
            found[bucket] = [key for _, key in members]
    return {bucket: found[bucket] for bucket in sorted(found)}
