"""Convert stores: change codecs, merge several, take a part; no picture is read from its file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from ocrstore.building.build import StrPath
from ocrstore.building.plan import known_from, other_decoders, why_not
from ocrstore.building.run import build_fingerprint, discarded
from ocrstore.decode import DECODER_FAMILIES
from ocrstore.errors import (
    CorruptStoreError,
    OCRStoreError,
    RecipeMismatchError,
    SchemaError,
    UnknownColumnError,
    UnknownSampleError,
)
from ocrstore.format.attributes import unify
from ocrstore.format.codecs import encode_row
from ocrstore.format.columns import Column, Encoded
from ocrstore.format.layout import MAX_ROW_NBYTES
from ocrstore.format.resume import find_unfinished
from ocrstore.format.writer import Writer, create
from ocrstore.keys import shown
from ocrstore.machine import usable_cpus
from ocrstore.metadata import build_record, diff_json
from ocrstore.recipe import preset_codec, recipe_fingerprint
from ocrstore.schema import COLUMNS, IMAGE
from ocrstore.store import Store, StoredColumn
from ocrstore.stored_rows import decode_stored
from ocrstore.views import stored_views

_AT_ONCE = 32
"""Samples whose attributes are read, and that are encoded by threads, together."""


@dataclass(slots=True)
class Converted:
    """The result of a conversion."""

    store: str
    samples: int = 0
    resumed: int = 0
    """Samples that come from an interrupted run."""
    discarded: str = ""
    """What of an interrupted run was discarded, and why."""
    copied: list[str] = field(default_factory=list)
    """Columns whose stored bytes were copied as they are; all others were encoded again."""
    columns: dict[str, int] = field(default_factory=dict)
    """Stored bytes of each column."""
    nbytes_before: int = 0
    """Of the files that were read."""
    nbytes: int = 0
    """Of the new file."""
    fingerprint: str = ""
    seconds: float = 0.0


def convert(
    stores: StrPath | Sequence[StrPath],
    out: StrPath,
    *,
    preset: str | None = None,
    codecs: Mapping[str, str] | None = None,
    keys: Collection[str] | None = None,
    where: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write a store with other codecs, from one store or several of the same recipe.

    Every array stays the same, bit by bit: rows whose codec stays are copied as they are, all
    others are decoded again and compared before they are written. Every row that is read is
    compared with its hash. If the call is interrupted, the same call resumes.

    Args:
        stores: The store or stores; samples keep their order.
        out: The store to make; it may be one of `stores` if `overwrite` is set.
        preset: "fast", "balanced" or "small", as in `build`. Without it, and for columns that are
            not of a view, columns keep the codec they have in the first store.
        codecs: Column of the store to codec, if not the preset's.
        keys: Take only these samples.
        where: Take only samples that fulfil this SQL condition, as in the viewer; needs duckdb.
        overwrite: Replace a store that exists.
        progress: Called with (done, total) after each sample.

    Raises:
        RecipeMismatchError: The stores have different columns or recipes.
        SchemaError: Two stores have a sample of one key.
        UnknownSampleError: No store has one of `keys`.
        CorruptStoreError: A row that was read is damaged; nothing is published.
        StoreExistsError: `out` exists.
    """
    started = time.perf_counter()
    paths = [stores] if isinstance(stores, (str, os.PathLike)) else list(stores)
    if not paths:
        raise SchemaError("convert needs at least one store")
    with ExitStack() as stack:
        # their rows passed the limits of those who wrote them
        inputs = [stack.enter_context(Store(path, max_row_nbytes=MAX_ROW_NBYTES)) for path in paths]
        _require_same_recipe(inputs)
        columns = _target_columns(inputs, preset, codecs or {})
        _require_same_decoders(inputs, columns)
        chosen = _select(inputs, keys, where)
        token = _name_work(inputs, columns, chosen)
        result = Converted(str(out), nbytes_before=sum(Path(path).stat().st_size for path in paths))
        result.copied = [
            name
            for name, column in columns.items()
            if all(_is_copied(store.columns[name], column) for store in inputs)
        ]
        found = find_unfinished(out)
        if found is not None:
            reason = why_not(found, token, in_place=False)
            result.discarded = discarded(found.samples, reason)
        with create(
            out,
            columns,
            attributes=_common_schema(inputs),
            metadata=_metadata(inputs, columns, chosen),
            overwrite=overwrite,
            resume=token,
            action="convert",
        ) as writer:
            result.resumed = writer.resumed
            _write(writer, inputs, chosen, progress)
    with Store(out) as made:
        result.samples = len(made)
        result.columns = {name: int(made[name].nbytes.sum()) for name in made.columns}
        result.nbytes = made.snapshot.mapping.nbytes
        result.fingerprint = made.fingerprint
    result.seconds = time.perf_counter() - started
    return result


# --- what the stores have in common


def _require_same_recipe(inputs: Sequence[Store]) -> None:
    """Raise RecipeMismatchError unless views and columns are the same, except for codecs."""
    first = _described(inputs[0])
    for other in inputs[1:]:
        lines = diff_json(first, _described(other))
        if lines:
            raise RecipeMismatchError(
                f"{inputs[0].path} and {other.path} cannot be merged: "
                f"{shown('; '.join(lines[:3]))}. Stores of one recipe can; build one of them again."
            )


def _described(store: Store) -> dict[str, Any]:
    columns = {name: replace(c, codec="raw").to_json() for name, c in store.columns.items()}
    views = {view.name: _recipe_with(view.recipe_json, {}) for view in stored_views(store)}
    return {"columns": columns, "views": views}


def _recipe_with(recipe: Mapping[str, Any], codecs: Mapping[str, str]) -> dict[str, Any]:
    """Return a recipe in JSON form with other codecs; raw where none is given."""
    columns = {
        name: {**column, "codec": codecs.get(name, "raw")}
        for name, column in recipe["columns"].items()
    }
    return {**recipe, "columns": columns}


def _target_columns(
    inputs: Sequence[Store], preset: str | None, told: Mapping[str, str]
) -> dict[str, Column]:
    first = inputs[0].columns
    for name in told:
        if name not in first:
            raise UnknownColumnError(
                f"{inputs[0].path}: no column {name!r}; it has {', '.join(first)}."
            )
    of_views = {IMAGE} if stored_views(inputs[0]) else set()
    for view in stored_views(inputs[0]):
        of_views |= set(view.columns.values())
    columns = {}
    for name, column in first.items():
        codec = column.codec
        if preset is not None:
            logical = name.rpartition("/")[2]
            known = name in of_views and logical in COLUMNS
            codec = preset_codec(preset, logical) if known else codec
        elif codec == "jpeg" and any(store.columns[name].codec != "jpeg" for store in inputs):
            codec = "file"  # which also takes what the other stores have
        columns[name] = replace(column, codec=told.get(name, codec))
    if "jpeg" in told.values():
        raise SchemaError("codec jpeg is only read; codec file stores the files of all formats")
    return columns


def _require_same_decoders(inputs: Sequence[Store], columns: Mapping[str, Column]) -> None:
    """Raise RecipeMismatchError if pixels would come from other decoders than they did so far."""
    families: dict[str, str] = {}
    for store in inputs:
        recorded = build_record(store).get("decoders", {})
        for kind, family in recorded.items():
            if families.setdefault(kind, family) != family:
                raise RecipeMismatchError(
                    f"{store.path} cannot be merged: its {shown(kind)} pictures were decoded by "
                    f"{shown(family)}, those of another store by {shown(families[kind])}. Build "
                    "one of them again."
                )
        decodes = IMAGE in columns and store.columns[IMAGE].holds_files
        if recorded and decodes and not columns[IMAGE].holds_files:
            reasons = other_decoders(store, DECODER_FAMILIES)
            if reasons:
                raise RecipeMismatchError(
                    f"{store.path}: {shown('; '.join(reasons))}, so `{IMAGE}` would get other "
                    "pixels than the views were made of. Keep its codec, or build the store again."
                )


def _common_schema(inputs: Sequence[Store]) -> pa.Schema:
    names = [store.snapshot.index.attributes.names for store in inputs]
    tables = [store.snapshot.index.table for store in inputs]  # with the names of the file
    empty = [table.select(own).slice(0, 0) for table, own in zip(tables, names, strict=True)]
    return unify(empty, None).schema


# --- which samples


def _select(
    inputs: Sequence[Store], keys: Collection[str] | None, where: str | None
) -> list[list[int]]:
    """Return the rows to take of each store, ascending."""
    wanted = None if keys is None else set(keys)
    chosen = []
    owner: dict[str, Store] = {}
    for store in inputs:
        rows = range(len(store)) if where is None else _fulfilling(store, where)
        own = store.keys
        taken = [row for row in rows if wanted is None or own[row] in wanted]
        for row in taken:
            if owner.setdefault(own[row], store) is not store:
                raise SchemaError(
                    f"{owner[own[row]].path} and {store.path} both have sample "
                    f"{shown(own[row])!r}. Take it from one of them only (keys)."
                )
        chosen.append(taken)
    if wanted is not None:
        unknown = sorted(wanted - {key for store in inputs for key in store.keys})
        if unknown:
            raise UnknownSampleError(
                f"{', '.join(store.path for store in inputs)}: no sample {shown(unknown[0])!r}"
                + (f", nor {len(unknown) - 1} others" if len(unknown) > 1 else "")
                + " of the given keys."
            )
    return chosen


def _fulfilling(store: Store, condition: str) -> list[int]:
    from ocrstore.viewer.samples import rows_where

    return rows_where(store, condition)


# --- the manifest of the new store


def _name_work(
    inputs: Sequence[Store], columns: Mapping[str, Column], chosen: Sequence[list[int]]
) -> str:
    """Return a token of everything that the result depends on."""
    taken = xxhash.xxh3_128_hexdigest(json.dumps(list(chosen)).encode())
    described = {
        "work": "convert",
        "inputs": [store.fingerprint for store in inputs],
        "codecs": {name: column.codec for name, column in columns.items()},
        "samples": taken,
    }
    return json.dumps(described, sort_keys=True)


def _metadata(
    inputs: Sequence[Store], columns: Mapping[str, Column], chosen: Sequence[list[int]]
) -> dict[str, Any]:
    """Return what all stores agree on, with the new codecs in the views' recipes.

    What a build recorded about its source holds for the whole of one store only.
    """
    first = inputs[0]
    metadata = {
        name: value
        for name, value in first.metadata.items()
        if all(store.metadata.get(name) == value for store in inputs[1:])
    }
    views = stored_views(first)
    if not views:
        return metadata
    recorded = dict(build_record(first))
    if len(inputs) > 1 or len(chosen[0]) < len(first):
        for name in ("source", "problems"):
            recorded.pop(name, None)
        metadata.pop("upper_bounds", None)
    entries: dict[str, Any] = {}
    for view in views:
        own = {logical: columns[name].codec for logical, name in view.columns.items()}
        if IMAGE in columns:
            own[IMAGE] = columns[IMAGE].codec
        recipe = _recipe_with(view.recipe_json, own)
        entries[view.name] = {
            **first.metadata["views"][view.name],
            "recipe": recipe,
            "fingerprint": recipe_fingerprint(recipe),
        }
    if recorded:
        recorded["decoders"] = {
            kind: family
            for store in inputs
            for kind, family in build_record(store).get("decoders", {}).items()
        }
        recipes = [entries[view.name]["fingerprint"] for view in views]
        sources = {
            store.keys[row]: (known.hash, known.annotation_hash)
            for store, rows in zip(inputs, chosen, strict=True)
            for row, known in _known(store, rows)
        }
        recorded["fingerprint"] = build_fingerprint(recipes, recorded["decoders"], sources)
        metadata["build"] = recorded
    return {**metadata, "views": entries, "default_view": first.metadata["default_view"]}


def _known(store: Store, rows: list[int]) -> Iterator[tuple[int, Any]]:
    by_row = {known.row: known for known in known_from(store.index).values()}
    return ((row, by_row[row]) for row in rows if row in by_row)


# --- rows


def _write(
    writer: Writer,
    inputs: Sequence[Store],
    chosen: Sequence[list[int]],
    progress: Callable[[int, int], None] | None,
) -> None:
    total, done = sum(map(len, chosen)), 0
    with ThreadPoolExecutor(usable_cpus()) as pool:
        for store, rows in zip(inputs, chosen, strict=True):
            names = store.snapshot.index.attributes.names
            for start in range(0, len(rows), _AT_ONCE):
                taken = rows[start : start + _AT_ONCE]
                left = [row for row in taken if store.keys[row] not in writer]
                table = store.snapshot.index.table.select(names)
                records = table.take(pa.array(left, pa.int64())).to_pylist() if names else []
                made = pool.map(lambda row, own=store: _convert(own, row, writer.columns), left)
                for position, (row, arrays) in enumerate(zip(left, made, strict=True)):
                    attributes = records[position] if records else None
                    writer.append(store.keys[row], arrays, attributes=attributes)
                done += len(taken)
                if progress is not None:
                    progress(done, total)


def _is_copied(old: Column, new: Column) -> bool:
    """Return whether rows of one column are rows of another as they are."""
    return old.codec == new.codec or (old.codec, new.codec) == ("jpeg", "file")


def _convert(store: Store, row: int, columns: Mapping[str, Column]) -> dict[str, Encoded]:
    return {name: _convert_row(store, store[name], row, spec) for name, spec in columns.items()}


def _convert_row(store: Store, column: StoredColumn[Any], row: int, spec: Column) -> Encoded:
    """Return a row in another codec; compared with its hash before, and with itself after."""
    where = f"{column.path}: sample {store.keys[row]!r}, column {column.name!r}"
    # damage must not be given a new, matching hash
    if xxhash.xxh3_64_intdigest(column.stored(row)) != int(column.hashes[row]):
        raise CorruptStoreError(
            f"{where}: its bytes do not match their hash. Nothing was converted; run `ocrstore "
            "verify`, and restore the file from a copy or leave the sample out."
        )
    if _is_copied(column.spec, spec):
        return column.encoded(row)
    array = column[row]
    stored = encode_row(spec, array)
    if not spec.is_raw:
        again = decode_stored(spec, stored.data, array.shape, where=where, limit=MAX_ROW_NBYTES)
        if again.tobytes() != array.tobytes():
            raise OCRStoreError(
                f"{where}: codec {spec.codec} does not give back what was encoded, so nothing was "
                "converted. Memory or a library is faulty; please report it."
            )
    return Encoded(stored.data, array.shape, trusted=True)
