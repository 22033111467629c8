"""Compare a store with its source: derive every sample again and compare all bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.annotation import FoundSample, Problem
from ocrstore.building.build import StrPath
from ocrstore.building.derive import Derived, Job, Task, largest_picture
from ocrstore.building.frames import recorded_rule
from ocrstore.building.mistaken_source import lost_annotations, not_its_folder
from ocrstore.building.run import deriver
from ocrstore.decode import DEFAULT_MAX_PIXELS, decode
from ocrstore.errors import SchemaError, SourceError
from ocrstore.format.codecs import is_picture_file
from ocrstore.format.columns import Encoded
from ocrstore.metadata import readable_build
from ocrstore.pipeline import albumentations_version, permit_modules
from ocrstore.problems import loses
from ocrstore.sources import Source
from ocrstore.sources.given import SourceSample, open_or_collect
from ocrstore.store import Store
from ocrstore.targets import TargetFunction, give_targets
from ocrstore.verification import Finding
from ocrstore.views import IMPORTED, View, built_views

Pictures = StrPath | Iterable[SourceSample]
"""A folder, an archive, a list, a table; or samples from Python."""

# the modification time of a file is not part of its content
_NOT_COMPARED = {"source_mtime_ns"}


@dataclass(slots=True)
class SourceCheck:
    """The result: the store matches its source if `findings` is empty."""

    path: str
    source: str
    samples: int = 0
    """Number of samples that were compared."""
    of: int = 0
    """Number of samples in the store."""
    compared_nbytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no difference was found."""
        return not self.findings


def check_source(
    path: StrPath,
    images: Pictures,
    *,
    annotations: StrPath | None = None,
    format: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    columns_map: Mapping[str, str] | None = None,
    maps: StrPath | None = None,
    targets: str | TargetFunction | None = None,
    allow_modules: Sequence[str] = (),
    stored_only: bool = False,
    sample: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SourceCheck:
    """Derive the samples of a store from their source again and compare all bits.

    Pictures that are not in the store are findings, too, unless they cannot be used; with `sample`
    or `stored_only` they are not checked. A folder that has none of the store's samples is one
    finding, and so are annotations that were not found.

    Args:
        path: The store.
        images: The source, or the samples from Python, whose bytes and arrays are kept in the
            folder for temporary files meanwhile; `annotations`, `format`, `include`, `exclude`,
            `columns_map`, `maps`, `targets`, `allow_modules` and `workers` as in `build`.
        stored_only: Pictures of the source that are not in the store are no findings.
        sample: Compare only so many samples, chosen at random, the same each time.
        progress: Called with (done, total) after each sample.

    Raises:
        SchemaError: The store was not built from pictures.
        SourceError: The source cannot be opened, or `maps` is missing.
    """
    if sample is not None and sample < 1:
        raise SchemaError(f"sample has to be 1 or more, not {sample}")
    permit_modules(allow_modules)
    if targets is not None:
        give_targets(targets)
    with Store(path) as store, TemporaryDirectory(prefix="ocrstore-") as spool:
        views = built_views(store)
        if not views:
            raise SchemaError(f"{path} was not built from pictures; it has no source")
        imported = any(v.recipe.map_algorithm.startswith(IMPORTED) for v in views)
        if imported and maps is None:
            raise SourceError(f"{path} was built with map files; give their folder with --maps")
        source = open_or_collect(
            images,
            Path(spool) / "samples",
            annotations=annotations,
            format=format,
            include=include,
            exclude=exclude,
            columns_map=columns_map,
        )
        result = SourceCheck(str(path), source.description, of=len(store))
        limit = max(DEFAULT_MAX_PIXELS, largest_picture(store))
        folder = Path(maps) if maps is not None else None
        result.notes += _other_versions(views)
        job = Job(views, max_pixels=limit, maps_folder=folder, frames=recorded_rule(store))
        there = set(source.keys)
        missing = [key for key in store.keys if key not in there]
        if missing and len(missing) == len(store):
            # one finding, not one for every sample: it is probably the wrong folder
            place = source.images or "these samples"
            result.findings.append(Finding(not_its_folder(len(store), place)))
            return result
        lost = lost_annotations([store], source, readable_build(store)[0])
        if lost:  # no difference between two states of a source: its annotations were not found
            result.findings.append(Finding(lost))
            return result
        result.findings += [
            Finding("its picture is not in the source", sample=key) for key in missing
        ]
        known = set(store.keys)
        keys = [key for key in source.keys if key in known]
        if sample is None and not stored_only:
            keys = list(source.keys)
        elif sample is not None and sample < len(keys):
            keys = sorted(random.Random(0).sample(keys, sample))
        with deriver(job, len(keys), workers) as pool:
            outcomes = pool.derive_all(_tasks(source, keys))
            for count, (task, outcome) in enumerate(outcomes, 1):
                _note_problems(task.sample, result)
                _compare(store, task.sample.key, outcome, task.sample.key in known, result)
                if progress is not None:
                    progress(count, len(keys))
    return result


def _other_versions(views: tuple[View, ...]) -> list[str]:
    """Note the views that another version of albumentations made: it may explain differences."""
    made = [view for view in views if view.recipe.made_with is not None]
    here = albumentations_version() if made else ""
    return [
        f"view {view.name} was made with {view.recipe.made_with}, here is {here}"
        for view in made
        if view.recipe.made_with != here
    ]


def _tasks(source: Source, keys: list[str]) -> Iterator[Task]:
    for key in keys:
        yield Task(source[key])


def _note_problems(sample: FoundSample, result: SourceCheck) -> None:
    """Note what a build leaves out of the annotation; it is not in the store to be compared."""
    result.notes += [
        f"{sample.key}: {problem.message} ({problem.kind})"
        for problem in sample.problems
        if loses(problem)
    ]


def _compare(
    store: Store, key: str, outcome: Derived | Problem, known: bool, result: SourceCheck
) -> None:
    if isinstance(outcome, Problem):
        if known:
            message = f"the picture cannot be used any more: {outcome.message} ({outcome.kind})"
            result.findings.append(Finding(message, sample=key))
        else:
            result.notes.append(f"{key} is not in the store: {outcome.message} ({outcome.kind})")
        return
    if not known:
        message = "not in the store; `ocrstore build` adds it"
        result.findings.append(Finding(message, sample=key))
        return
    row = store.row(key)
    result.samples += 1
    recorded = store.attributes(row, as_stored=True)
    for name, value in recorded.items():
        if name in outcome.attributes and name not in _NOT_COMPARED:
            derived = _plain(outcome.attributes[name])
            if derived != value:
                message = f"attribute {name} is {_short(value)}, the source gives {_short(derived)}"
                result.findings.append(Finding(message, sample=key))
    for name, live in outcome.columns.items():
        if not isinstance(live, Encoded):
            stored = store[name][row]
        elif is_picture_file(store.columns[name], store[name].stored(row)):
            stored = np.frombuffer(store[name].stored(row), np.uint8)
            live = np.frombuffer(live.data, np.uint8)
        else:  # a converted store: it had the pixels and not the file
            stored = store[name][row]
            live = decode(bytes(live.data), max_pixels=live.shape[0] * live.shape[1]).pixels
        result.compared_nbytes += live.nbytes
        message = _difference(stored, live)
        if message:
            result.findings.append(Finding(message, sample=key, column=name))


def _difference(stored: npt.NDArray[Any], live: npt.NDArray[Any]) -> str:
    """Describe how two arrays differ; empty if all bits are equal."""
    if stored.shape != live.shape or stored.dtype != live.dtype:
        return f"is {stored.dtype} {stored.shape}, the source gives {live.dtype} {live.shape}"
    width = stored.dtype.itemsize
    one = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    other = np.ascontiguousarray(live).reshape(-1).view(np.uint8)
    if np.array_equal(one, other):
        return ""
    differing = np.flatnonzero((one != other).reshape(-1, width).any(axis=1))
    first = tuple(int(i) for i in np.unravel_index(int(differing[0]), stored.shape))
    return (
        f"{len(differing)} of {stored.size} values differ, the first at {first}: "
        f"{stored[first]} stored, {live[first]} from the source"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
