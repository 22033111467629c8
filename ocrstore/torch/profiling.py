"""Owns the measurement of a sample's way, from the stored picture to the parent's batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.halves import to_float16
from ocrstore.machine import usable_cpus
from ocrstore.maps import MAX_POINTS, MapParams, draw_maps
from ocrstore.pipeline import compose, to_json
from ocrstore.profiling.clock import Clock, Progress, Spent, Tally, system_clock
from ocrstore.profiling.decoding import DECODE, find_files, time_decoding
from ocrstore.profiling.records import BY_REFERENCE, COMPACT, STOCK, Cost, Profile, Step
from ocrstore.profiling.steps import StepList
from ocrstore.profiling.timers import Observed, timing
from ocrstore.torch.collate import Computed, ComputedList, stack_computed
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.handover import measure_handover
from ocrstore.torch.view import PICTURE, TENSOR, StoreView

MAPS, FLOAT16 = "map drawing", "float16"
REST = "picture and copies"
COLLATION = "collation, no workers"
_WHOLE = "\0whole sample"
_MAPS = ("prob_map", "thresh_map")
_HANDED_OVER = 8
"""Batches per repeat and way."""


def profile_store(
    path: str | os.PathLike[str],
    *,
    transform: str | None = None,
    name: str = "",
    view: str | None = None,
    source: Path | None = None,
    samples: int = 32,
    repeats: int = 3,
    seed: int = 0,
    workers: int = 2,
    batch_size: int = 16,
    clock: Clock = system_clock,
    progress: Progress | None = None,
) -> Profile:
    """Time every step of the way that a training sample takes.

    `transform` is a pipeline in canonical JSON (`ocrstore.pipeline.to_json`); without one it is the
    pipeline of `ocrstore train --augment`. The random numbers follow from `seed`, in every repeat
    the same, so that repeats differ by the machine alone.
    """
    stored = OCRStoreDataset(path, view=view)
    opened = stored.views[0]
    if not len(stored):
        raise OCRStoreError(f"{opened.path}: has no samples, so there is nothing to time.")
    if PICTURE not in opened.store.columns and TENSOR not in opened.columns:
        raise OCRStoreError(
            f"{opened.path}: has neither pictures (`image`) nor a view (`tensor`) to transform; "
            f"it has {', '.join(opened.store.columns)}."
        )
    _import_torch_transforms()
    steps = StepList(transform or default_pipeline(opened))
    rows = _choose(len(stored), samples, seed)
    run = _Run(opened.path, view, steps, count=len(rows), seed=seed, clock=clock)
    files, note = find_files(opened.store, rows, source=source)
    run.note(note)
    total = repeats * len(rows) + 1

    def tell(done: int, _: int) -> None:
        if progress is not None:
            progress(done, total)

    run.warm_up(rows[0])
    for _ in range(repeats):
        run.repeat(rows, files, tell)
        run.end_repeat(batch_size, len(files))
    batch = run.batch(batch_size)
    handed = measure_handover(
        batch,
        stored=(stored, rows[:batch_size]) if TENSOR in opened.columns else None,
        repeats=repeats,
        batches=_HANDED_OVER,
        clock=clock,
    )
    tell(total, total)
    return Profile(
        store=opened.path,
        pipeline=name or ("a pipeline" if transform else "the default training path"),
        samples=len(stored),
        measured=len(rows),
        repeats=repeats,
        seed=seed,
        workers=workers,
        cpus=usable_cpus(),
        batch_size=len(batch),
        steps=run.steps(),
        others=run.others(handed, workers=workers),
        picture_nbytes=float(np.mean(run.picture.nbytes)),
        output_size=next(iter(run.sizes)) if len(run.sizes) == 1 else None,
        from_whole_pictures=PICTURE in opened.store.columns,
        picture_codec=run.picture.spec.codec,
        notes=tuple(run.notes),
    )


def default_pipeline(view: StoreView) -> str:
    """Return what `ocrstore train --augment` does to the pictures of a view, in canonical JSON."""
    from ocrstore.torch.dbnet.augmentation import default_augmentation

    height, width = 640, 640
    if TENSOR in view.columns:
        shape = view.column(TENSOR).spec.shape
        if shape[0] is None or shape[1] is None:
            raise SchemaError(
                f"{view.path}: its view has no one size, so there is no default pipeline; name one "
                "with --transform"
            )
        height, width = shape[0], shape[1]
    return to_json(default_augmentation(height, width))


def _import_torch_transforms() -> None:
    """Let pipelines name ToTensorV2, which albumentations knows only when asked for it."""
    try:
        import albumentations.pytorch  # noqa: F401
    except ImportError:
        return  # whoever makes the pipeline says what is missing


def _choose(count: int, wanted: int, seed: int) -> list[int]:
    """Choose rows at random, in the order of the file."""
    if wanted >= count:
        return list(range(count))
    chosen = np.random.default_rng(seed).choice(count, wanted, replace=False)
    return sorted(int(row) for row in chosen)


class _Run:
    """The samples of one measurement, and what they have cost so far."""

    def __init__(
        self,
        path: str,
        view: str | None,
        steps: StepList,
        *,
        count: int,
        seed: int,
        clock: Clock,
    ) -> None:
        self.tally = Tally(clock)
        self.notes: list[str] = []
        self.sizes: set[tuple[int, int]] = set()
        self._steps = steps
        self._count = count
        self._seed = seed
        # a composition of its own, so that one transform alone is a pipeline as well; step by step,
        # because planned together they have no times of their own
        pipeline = compose([steps.transform])
        self._dataset = OCRStoreDataset(path, view=view, transform=pipeline, fuse=False)
        opened = self._dataset.views[0]
        record = (opened.recipe or {}).get("recipe", {})
        self._params = MapParams(**record.get("maps", {}))
        whole = PICTURE in opened.store.columns
        self.picture = opened.store[PICTURE] if whole else opened.column(TENSOR)
        self._seen: dict[str, Observed] = {}
        self._repeats: list[dict[str, Spent]] = []
        self._last: list[Computed] = []

    def note(self, text: str) -> None:
        """Keep what a user should know, once."""
        if text and text not in self.notes:
            self.notes.append(text)

    def warm_up(self, row: int) -> None:
        """Do everything once, unmeasured: caches fill, libraries load."""
        with torch.random.fork_rng(devices=[]):
            self._dataset[row]

    def repeat(self, rows: Sequence[int], files: Sequence[Path], progress: Progress | None) -> None:
        """Take all samples the whole way once."""
        self._last = []
        named = {step.name: step.transform for step in self._steps.steps}
        for number, row in enumerate(rows):
            # the timers are on for the pipeline alone
            with torch.random.fork_rng(devices=[]), timing(named, self.tally) as seen:
                torch.manual_seed(self._seed * 1_000_003 + number)
                with self.tally.measure(_WHOLE):
                    listed = self._dataset.__getitems__([row])
            assert isinstance(listed, ComputedList)
            self._observe(seen)
            sample = listed.computed[0]
            self._draw(sample)
            self._last.append(sample)
            if number < len(files):
                self.note(time_decoding(files[number], self.tally))
            if progress is not None:
                progress(len(self._repeats) * len(rows) + number + 1, 0)

    def end_repeat(self, batch_size: int, decoded: int) -> None:
        """Collate what the repeat made, and share out what it took."""
        batch = self.batch(batch_size)
        with self.tally.measure(COLLATION):
            stack_computed(batch)
        counts = {COLLATION: len(batch), DECODE: decoded}
        taken = self.tally.take()
        self._repeats.append(
            {name: spent.per(counts.get(name) or self._count) for name, spent in taken.items()}
        )

    def batch(self, batch_size: int) -> list[Computed]:
        """Return the first samples of the last repeat; one only if their sizes differ."""
        if len(self.sizes) > 1:
            self.note(
                "the pipeline makes pictures of different sizes, which no batch can hold: collation"
                " and hand-over were timed with one sample"
            )
            return self._last[:1]
        return self._last[:batch_size]

    def _observe(self, seen: dict[str, Observed]) -> None:
        for name, one in seen.items():
            self._seen.setdefault(name, Observed()).merge(one)

    def _draw(self, sample: Computed) -> None:
        """Draw the maps again, on their own, as the data set did."""
        height, width = sample["image"].shape[:2]
        self.sizes.add((height, width))
        kept = [
            (polygon, ignored)
            for polygon, ignored in zip(sample["polygons"], sample["ignored"], strict=True)
            if len(polygon) <= MAX_POINTS
        ]
        with self.tally.measure(MAPS):
            maps = draw_maps(
                [polygon for polygon, _ in kept],
                [ignored for _, ignored in kept],
                height,
                width,
                params=self._params,
            )
        with self.tally.measure(FLOAT16):
            for name in _MAPS:
                to_float16(getattr(maps, name))

    def _over_repeats(self, name: str) -> list[Spent]:
        return [repeat.get(name, Spent()) for repeat in self._repeats]

    def steps(self) -> tuple[Step, ...]:
        """Return the transforms with what they cost and did."""
        made = []
        for planned in self._steps.steps:
            seen = self._seen[planned.name]
            calls = max(seen.calls, 1)
            made.append(
                Step(
                    planned.name,
                    planned.kind,
                    planned.reason,
                    Cost.of(planned.name, "transform", self._over_repeats(planned.name)),
                    applied=seen.changed / calls,
                    moves_points=seen.moved,
                    pixels_in=seen.pixels_in / calls,
                    pixels_out=seen.pixels_out / calls,
                    makes_floats=seen.makes_floats,
                )
            )
        return tuple(made)

    def others(self, handed: dict[str, list[Spent]], *, workers: int) -> tuple[Cost, ...]:
        """Return what is no transform; what a sample's way does not touch is there to compare."""
        named = [step.name for step in self._steps.steps]
        rest = []
        for repeat in self._repeats:
            inside = [repeat.get(name, Spent()) for name in (*named, MAPS, FLOAT16)]
            rest.append((repeat[_WHOLE] - sum(inside, Spent())).floored)
        costs = [
            Cost.of(REST, "rest", rest),
            Cost.of(MAPS, "maps", self._over_repeats(MAPS)),
            Cost.of(FLOAT16, "float16", self._over_repeats(FLOAT16)),
            Cost.of(COLLATION, "collation", self._over_repeats(COLLATION), in_path=not workers),
        ]
        if any(DECODE in repeat for repeat in self._repeats):
            decoded = self._over_repeats(DECODE)
            costs.append(Cost.of(DECODE, "decode", decoded, in_path=False))
        used = COMPACT if COMPACT in handed else STOCK
        for name in (COMPACT, STOCK, BY_REFERENCE):
            if name in handed:
                on_way = bool(workers) and name == used
                costs.append(Cost.of(name, "hand-over", handed[name], in_path=on_way))
        return tuple(costs)
