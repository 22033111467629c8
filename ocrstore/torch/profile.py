"""Measure what a training sample costs, step by step, and say what could be baked into the store.

The data set itself runs, as in a DataLoader, and reports its laps (`ocrstore.stopwatch`). Runs with
and without the stopwatch alternate, so that the sum of the steps can be compared with the loader's
own cost.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, default_collate

from ocrstore.augment import BasicAugmentation
from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.pipeline import (
    CHOOSING,
    SEQUENCES,
    compose,
    judge,
    make_transform,
    parts_of,
    short_name,
)
from ocrstore.stopwatch import measuring
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.whole_file import write_whole

Clock = Callable[[], int]
"""Returns nanoseconds of processor time; the clock on the wall says more of other processes."""
Kind = Literal["", "bakeable", "fixed", "random", "unfit"]
"""`bakeable` transforms lead the pipeline and always do the same; `fixed` ones do, too, but follow
a random one; `unfit` ones make what no view can hold. Empty for what is no transform."""
Tree = Mapping[str, Any]

BEFORE, AFTER = ("annotations", "picture", "keypoints"), ("map drawing", "float16", "collation")
"""Names of the laps that are no transforms, in the order of the table."""
NEGLIGIBLE = 0.02
"""A saving below this share of a sample's cost is not worth another file."""
_VIEW_NBYTES_PER_PIXEL = 3 + 2 * 2 + 2
"""A view's tensor, two float16 maps, two masks."""
_HANDED_OVER, _WARM_UP = 24, 8
"""Batches sent by the worker, and how many of them are not counted."""
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of processor time per sample, the median over the repeats."""

    name: str
    kind: Kind
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Advice:
    """One conclusion."""

    verdict: Literal["bake", "keep"]
    text: str
    saves_cpu_ms: float = 0.0
    """Per sample."""
    costs_nbytes: int = 0
    """On disk, for the whole store."""
    how: str = ""
    """What to type."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured, and what follows from it."""

    store: str
    pipeline: str
    samples: int
    measured: int
    repeats: int
    batch_size: int
    costs: tuple[Cost, ...]
    """The steps in the order they run, up to the collated batch."""
    loader: Cost
    """The same samples through the data set and torch's collation, without a stopwatch."""
    handover: Cost
    """Stacking a batch into shared memory, sending it to the parent and reading it there; replaces
    the collation where there are workers."""
    advice: tuple[Advice, ...]

    @property
    def sum_cpu_ms(self) -> float:
        """Return the processor time of all steps."""
        return sum(cost.cpu_ms for cost in self.costs)

    @property
    def deviation(self) -> float:
        """Return by which part the sum of the steps differs from the loader's own cost."""
        return self.sum_cpu_ms / self.loader.cpu_ms - 1

    @property
    def worker_cpu_ms(self) -> float:
        """Return what a sample costs where workers compute it."""
        collation = sum(cost.cpu_ms for cost in self.costs if cost.name == "collation")
        return self.sum_cpu_ms - collation + self.handover.cpu_ms

    def to_json(self) -> dict[str, Any]:
        """Return all of it in JSON types."""
        return {**asdict(self), "sum_cpu_ms": self.sum_cpu_ms, "deviation": self.deviation}


def profile_store(
    path: str | os.PathLike[str],
    *,
    transform: str | None = None,
    name: str = "",
    view: str | None = None,
    samples: int = 64,
    repeats: int = 5,
    batch_size: int = 16,
    seed: int = 0,
    clock: Clock = time.process_time_ns,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measure the steps of training samples of a store.

    Args:
        transform: a pipeline in canonical JSON (`ocrstore.pipeline_json.to_json`); by default that
            of `ocrstore train --augment`.
        name: what to call the pipeline.
        view: the view whose columns and map parameters are used.
        samples: how many samples to measure, chosen at random by `seed`.
        repeats: how often each is measured; the random numbers are the same each time.
        progress: called with (batches done, batches in all).
    """
    stored = OCRStoreDataset(path, view=view)
    if not len(stored):
        raise OCRStoreError(f"{os.fspath(path)}: the store has no samples to measure.")
    outline = stored.views.sets[0]
    if "image" not in outline.all_columns and "tensor" not in outline.columns:
        raise OCRStoreError(
            f"{os.fspath(path)}: neither pictures (`image`) nor a view (`tensor`) to transform; "
            f"columns found: {', '.join(outline.all_columns)}."
        )
    steps = StepList(transform or default_augmentation(stored))
    dataset = OCRStoreDataset(path, view=view, transform=steps.composition)
    rows = sorted(np.random.default_rng(seed).permutation(len(stored))[:samples].tolist())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a loader's worker
    try:
        with torch.random.fork_rng(devices=[]):
            items: Any = dataset.__getitems__(rows[:batch_size])
            shown = [items[number] for number in range(len(items))]
            if len({sample["image"].shape for sample in shown}) > 1:  # no batch can hold them
                batch_size, shown = 1, shown[:1]
            batches = [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]
            passes: list[Counter[str]] = []
            for number in range(repeats + 1):
                passes.append(_spend(dataset, steps.names(), batches, clock, seed))
                if progress is not None:
                    progress(number, repeats + 1)
            handover = _measure_handover(shown, clock)
    finally:
        torch.set_num_threads(threads)
    if progress is not None:
        progress(repeats + 1, repeats + 1)

    def cost(name: str, kind: Kind = "") -> Cost:
        each = [spent[name] for spent in passes[1:]]  # the first one warmed up
        return Cost(name, kind, statistics.median(each) / len(rows) / 1e6)

    kinds: dict[str, Kind] = dict.fromkeys(BEFORE, "")
    kinds |= {step.name: step.kind for step in steps.steps}
    kinds |= dict.fromkeys(AFTER, "")
    costs = tuple(cost(name, kind) for name, kind in kinds.items())
    return Profile(
        store=os.fspath(path),
        pipeline=name or ("a pipeline" if transform else "the pipeline of train --augment"),
        samples=len(stored),
        measured=len(rows),
        repeats=repeats,
        batch_size=batch_size,
        costs=costs,
        loader=cost("loader"),
        handover=handover,
        advice=tuple(advise(costs, steps, len(stored), _pixels(dataset, steps, rows))),
    )


def default_augmentation(dataset: OCRStoreDataset) -> BasicAugmentation:
    """Return what `ocrstore train --augment` does to the pictures of a view."""
    specs = dataset.views.sets[0].specs
    height, width = (640, 640)
    if "tensor" in specs:
        height, width = (side or 640 for side in specs["tensor"].shape[:2])
    return BasicAugmentation(height, width)


@dataclass(frozen=True, slots=True)
class Step:
    """One transform of a pipeline, or several of which one is chosen."""

    name: str
    tree: Tree
    transform: Any
    kind: Kind
    reason: str
    """Why it cannot be baked; empty if it can."""


class StepList:
    """The steps of a pipeline: names, transforms, and which could be baked."""

    def __init__(self, described: str | BasicAugmentation) -> None:
        """Take a pipeline in canonical JSON, or the built-in one."""
        self.composition: Any = described
        self.steps: list[Step] = []
        if not isinstance(described, str):
            self.steps = [Step(name, {}, described, "random", "") for name in ("warp", "colour")]
            return
        with suppress(ImportError):  # make_transform says what to install
            import albumentations.pytorch  # noqa: F401  # registers ToTensorV2
        tree = json.loads(described)
        made = make_transform(tree)
        self.composition = compose([made])
        for one, transform in _flatten(tree, made):
            name = _name(one)
            number = 1 + sum(step.name.partition(" #")[0] == name for step in self.steps)
            kind, reason = self._judge(one)
            unique = name if number == 1 else f"{name} #{number}"
            self.steps.append(Step(unique, one, transform, kind, reason))

    def _judge(self, tree: Tree) -> tuple[Kind, str]:
        before = [step.tree for step in self.steps]
        leads = all(step.kind == "bakeable" for step in self.steps)
        try:
            verdict = judge(compose_json([tree]))
            if verdict.kind == "unfit" and leads and before:
                # alone it may fail: a crop that needs what a resize left
                verdict = judge(compose_json([*before, tree]))
        except Exception as exc:  # a transform of somebody else's may raise anything
            return "unfit", f"it failed on a probe picture: {exc}"
        if verdict.kind == "deterministic":
            return ("bakeable" if leads else "fixed"), ""
        return verdict.kind, verdict.reason

    @property
    def leading(self) -> list[Step]:
        """Return the steps that could be baked."""
        return [step for step in self.steps if step.kind == "bakeable"]

    def names(self) -> dict[int, str]:
        """Return id of a transform -> name of its step."""
        return {id(part): step.name for step in self.steps for part in parts_of(step.transform)}


def write_split(steps: StepList, folder: Path) -> tuple[Path, Path]:
    """Write what can be baked as a recipe, and the rest as a pipeline for `transform=`."""
    import yaml

    leading = steps.leading
    if not leading:
        raise SchemaError("the pipeline begins with a random transform: nothing can be baked")
    rest = steps.steps[len(leading) :]
    recipe: dict[str, Any] = {"pipeline": json.loads(compose_json([s.tree for s in leading]))}
    if rest:  # maps cannot be drawn before the random steps have moved the polygons
        recipe["columns"] = ["tensor", "inverse_matrix"]
    others = {"transform": json.loads(compose_json([step.tree for step in rest]))}
    paths = folder / "bake.yaml", folder / "rest.yaml"
    for path, content in zip(paths, (recipe, others), strict=True):
        write_whole(path, yaml.safe_dump(content, sort_keys=False).encode())
    return paths


def compose_json(trees: Sequence[Tree]) -> str:
    """Describe steps as one pipeline, in canonical JSON."""
    composed = {"__class_fullname__": "Compose", "p": 1.0, "transforms": [dict(t) for t in trees]}
    return json.dumps(composed, sort_keys=True)


def _flatten(tree: Tree, made: Any) -> Iterator[tuple[Tree, Any]]:
    """Yield the steps in the order they run; one that chooses, or may be left out, is one step."""
    if short_name(tree) in SEQUENCES and float(tree.get("p", 1.0)) >= 1.0:
        for child, inner in zip(tree.get("transforms") or (), made.transforms, strict=True):
            yield from _flatten(child, inner)
    else:
        yield tree, made


def _name(tree: Tree) -> str:
    inner = [_name(child) for child in tree.get("transforms") or ()]
    between = " | " if short_name(tree) in CHOOSING else ", "
    return f"{short_name(tree)}({between.join(inner)})" if inner else short_name(tree)


def _spend(
    dataset: OCRStoreDataset,
    names: Mapping[int, str],
    batches: Sequence[list[int]],
    clock: Clock,
    seed: int,
) -> Counter[str]:
    """Take all batches through the data set twice, with laps and without; return nanoseconds."""
    spent: Counter[str] = Counter()
    last = 0

    def lap(what: object) -> None:
        nonlocal last
        now = clock()
        spent[what if isinstance(what, str) else names.get(id(what), "keypoints")] += now - last
        last = now

    for number, rows in enumerate(batches):
        for with_laps in (True, False) if number % 2 else (False, True):
            torch.manual_seed(seed * 1_000_003 + number)
            last = clock()
            with measuring(lap) if with_laps else nullcontext():
                items: Any = dataset.__getitems__(rows)
                if with_laps:
                    lap("annotations")
                default_collate(items)
            lap("collation" if with_laps else "loader")
    return spent


class _SameBatch(Dataset[Any]):
    """Returns the same samples for each index, and notes what the worker has spent by then."""

    def __init__(self, samples: list[Any], clock: Clock) -> None:
        self._samples = samples
        self._clock = clock
        context = torch.multiprocessing.get_context()
        self.stamps = context.Array("q", _HANDED_OVER, lock=False)

    def __len__(self) -> int:
        return _HANDED_OVER

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.stamps[indices[0]] = self._clock()
        return self._samples


def _measure_handover(samples: list[Any], clock: Clock) -> Cost:
    """Return what it costs per sample to bring a finished batch from a worker to its parent.

    The worker computes nothing, so that all it spends is stacking and sending. The parent reads a
    byte of each page of the batch.
    """
    dataset = _SameBatch(samples, clock)
    before = 0
    for number, batch in enumerate(DataLoader(dataset, batch_size=1, num_workers=1)):
        if number == _WARM_UP:  # by then the slots of shared memory have been made
            before = clock()
        for value in batch.values():
            if isinstance(value, torch.Tensor) and value.ndim:
                nbytes = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
                nbytes[::_PAGE].sum()
    batches = _HANDED_OVER - 1 - _WARM_UP
    parent = (clock() - before) / (batches + 1)
    worker = (dataset.stamps[_HANDED_OVER - 1] - dataset.stamps[_WARM_UP]) / batches
    return Cost("worker to parent", "", (parent + worker) / len(samples) / 1e6)


def _pixels(dataset: OCRStoreDataset, steps: StepList, rows: Sequence[int]) -> float:
    """Return how many pixels a picture has after the steps that can be baked."""
    if not steps.leading:
        return 0.0
    leading = compose([step.transform for step in steps.leading])
    ref = dataset.views.sets[0].ref
    baked = OCRStoreDataset(ref.path, view=ref.view, columns=(), transform=leading)
    shapes = [baked[row]["image"].shape for row in rows]
    return float(np.mean([shape[-2] * shape[-1] for shape in shapes]))


def advise(costs: Sequence[Cost], steps: StepList, samples: int, pixels: float) -> Iterator[Advice]:
    """Say what to bake and what stays.

    Args:
        costs: what the steps cost, by name.
        samples: how many samples the store has.
        pixels: of a picture after the steps that can be baked.
    """
    spent = {cost.name: cost.cpu_ms for cost in costs}
    total = sum(spent.values())
    leading = steps.leading
    names = ", ".join(step.name for step in leading)
    if leading and len(leading) == len(steps.steps):
        yield Advice(
            "bake",
            "nothing in the pipeline is random: store its result and the maps as a view. Batches "
            "are then references to stored rows",
            total - spent.get("collation", 0.0),
            round(samples * pixels * _VIEW_NBYTES_PER_PIXEL),
            "ocrstore add-view STORE --recipe PIPELINE --view NAME",
        )
        return
    saved = sum(spent[step.name] for step in leading)
    if leading and saved >= NEGLIGIBLE * total:
        yield Advice(
            "bake",
            f"{names}: the same every time. Build a training store of these pictures and give the "
            "rest of the pipeline to `transform=`",
            saved,
            round(samples * pixels * 3),
            "ocrstore profile STORE --transform PIPELINE --split DIR && "
            "ocrstore build IMAGES --out NEW --recipe DIR/bake.yaml",
        )
    elif leading:
        yield Advice("keep", f"{names}: could be baked, but saves {saved:.2f} ms only")
    if spent.get("picture", 0.0) >= NEGLIGIBLE * total:
        text = "pictures are decoded for every sample: store them raw (`--codec image=raw`)"
        yield Advice("bake", text, spent["picture"])
    random = [step.name for step in steps.steps if step.kind == "random"]
    if random:
        stays = sum(spent[name] for name in random)
        yield Advice(
            "keep",
            f"{', '.join(random)}: random, {stays:.2f} ms or {stays / total:.0%} of a sample",
        )
    for step in steps.steps:
        if step.kind == "unfit":
            yield Advice("keep", f"{step.name} cannot be baked: {step.reason}")
