"""Pipelines taken apart: names, kinds, and what goes into which file."""

from __future__ import annotations

import json

import albumentations as A
import numpy as np
import pytest

import ocrstore
from ocrstore.errors import SchemaError
from ocrstore.pipeline import compose, to_json
from ocrstore.profiling.clock import Tally
from ocrstore.profiling.steps import StepList, classify, read_steps, write_split
from ocrstore.profiling.timers import timing
from tests.drawn import write_source
from tests.profiling.making import CountingClock

MIXED = A.Compose(
    [
        A.LongestMaxSize(64),
        A.Sequential([A.ToGray(p=1.0), A.VerticalFlip(p=1.0)], p=1.0),
        A.OneOf([A.GaussianBlur(), A.MotionBlur()], p=1.0),
        A.VerticalFlip(p=1.0),
        A.Rotate(5, p=0.0),
        A.Normalize(),
    ]
)


def kinds(steps):
    """Names to kinds."""
    return {step.name: step.kind for step in steps.steps}


def test_the_first_random_step_ends_what_can_be_baked():
    """Sequences are taken apart, what chooses is one step, equal names are numbered."""
    steps = StepList(to_json(MIXED))
    assert kinds(steps) == {
        "LongestMaxSize": "bakeable",
        "ToGray": "bakeable",
        "VerticalFlip": "bakeable",
        "OneOf(GaussianBlur | MotionBlur)": "random",
        "VerticalFlip (2)": "deterministic",
        "Rotate": "deterministic",
        "Normalize": "unfit",
    }
    assert steps.bakeable == 3
    assert "chooses" in steps.steps[3].reason


@pytest.mark.parametrize(
    ("transform", "kind"),
    [
        (A.Resize(32, 32), "bakeable"),
        (A.HorizontalFlip(p=1.0), "bakeable"),
        (A.HorizontalFlip(p=0.5), "random"),
        (A.ColorJitter(p=1.0), "random"),
        (A.RandomCrop(32, 32), "random"),
        (A.CenterCrop(32, 32), "bakeable"),
        (A.Normalize(), "unfit"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_kinds(transform, kind):
    """Geometry and colours count alike: only chance ends baking, and what no view can hold."""
    tree = json.loads(to_json(transform))
    assert classify([tree])[0][0] == kind


def test_a_sequence_that_may_not_run_is_one_random_step():
    """A composition with a probability is not taken apart."""
    steps = StepList(to_json(A.Compose([A.Sequential([A.VerticalFlip(p=1.0)], p=0.5)])))
    assert kinds(steps) == {"Sequential(VerticalFlip)": "random"}


def test_pipelines_are_read_from_pipeline_and_recipe_files(tmp_path):
    """YAML, JSON, a recipe with a pipeline in it, and one that names a file."""
    A.save(MIXED, tmp_path / "a.yaml", data_format="yaml")
    A.save(MIXED, tmp_path / "a.json", data_format="json")
    (tmp_path / "recipe.json").write_text(json.dumps({"pipeline": json.loads(to_json(MIXED))}))
    (tmp_path / "names.yaml").write_text("pipeline: a.yaml\n")
    for name in ("a.yaml", "a.json", "recipe.json", "names.yaml"):
        assert read_steps(tmp_path / name) == to_json(MIXED), name


@pytest.mark.parametrize("content", ["size: 640\n", "[1, 2]\n", "pipeline: 3\n", ": :"])
def test_files_without_a_pipeline_are_refused(tmp_path, content):
    """The message names the file and says how to write one."""
    path = tmp_path / "a.yaml"
    path.write_text(content)
    with pytest.raises(SchemaError, match=r"a\.yaml: (holds no|not a readable)"):
        read_steps(path)


def test_the_baked_part_and_the_rest_are_the_pipeline(tmp_path):
    """A store built from bake.yaml holds what the leading steps make; rest.yaml is the others."""
    steps = StepList(to_json(MIXED))
    bake, rest = write_split(steps, tmp_path / "split")
    source = write_source(tmp_path)
    ocrstore.build(
        source / "images", tmp_path / "b.ocrs", annotations=source / "gt", recipe=bake, workers=0
    )
    ocrstore.build(
        source / "images", tmp_path / "a.ocrs", annotations=source / "gt", size=64, workers=0
    )
    leading = compose([step.transform for step in steps.steps[:3]])
    with ocrstore.open(tmp_path / "a.ocrs") as whole, ocrstore.open(tmp_path / "b.ocrs") as baked:
        assert set(baked.columns) == {"tensor", "inverse_matrix"}
        for row in range(len(whole)):
            made = leading(image=whole["image"][row].copy(), keypoints=np.zeros((0, 2)))["image"]
            np.testing.assert_array_equal(baked["tensor"][row], made)
    others = [step.name for step in StepList(read_steps(rest)).steps]
    assert others == ["OneOf(GaussianBlur | MotionBlur)", "VerticalFlip", "Rotate", "Normalize"]


def test_nothing_to_split(tmp_path):
    """A pipeline that begins at random has no file to write."""
    with pytest.raises(SchemaError, match="nothing to split"):
        write_split(StepList(to_json(A.Compose([A.ColorJitter()]))), tmp_path)


def test_only_named_transforms_are_timed():
    """Each call is counted where it runs, others pass through; classes are left as found."""
    first, second, other = A.HorizontalFlip(p=1.0), A.CenterCrop(4, 4), A.HorizontalFlip(p=1.0)
    calls = (A.HorizontalFlip.__call__, A.CenterCrop.__call__)
    assert "__call__" not in vars(A.HorizontalFlip)
    clock = CountingClock()
    tally = Tally(clock)
    pipeline = compose([first, second, other])
    points = np.array([[1.0, 2.0]], np.float32)
    with timing({"flip": first, "crop": second}, tally) as seen:
        for _ in range(3):
            pipeline(image=np.zeros((8, 8, 3), np.uint8), keypoints=points)
    spent = tally.take()
    assert {name: (s.clock_ms, s.cpu_ms) for name, s in spent.items()} == {
        "flip": (6.0, 3.0),
        "crop": (6.0, 3.0),
    }
    assert clock.readings == 12
    assert (seen["crop"].calls, seen["crop"].pixels_in, seen["crop"].pixels_out) == (3, 192, 48)
    assert seen["flip"].moved and seen["flip"].changed == 3 and not seen["flip"].makes_floats
    assert (A.HorizontalFlip.__call__, A.CenterCrop.__call__) == calls
    assert "__call__" not in vars(A.HorizontalFlip)


def test_a_failing_transform_leaves_no_timer_behind():
    """The classes are restored, and an overriding method that calls its parent counts once."""

    class Twice(A.HorizontalFlip):
        def __call__(self, *args, **data):
            return super().__call__(*args, **data)

    own = Twice.__dict__["__call__"]
    tally = Tally(CountingClock())
    parts = {"twice": Twice(p=1.0), "plain": A.HorizontalFlip(p=1.0)}
    with timing(parts, tally):
        parts["twice"](image=np.zeros((4, 4, 3), np.uint8))
        with pytest.raises(KeyError):
            parts["plain"](3)
    assert tally.take()["twice"].clock_ms == 2.0
    assert Twice.__dict__["__call__"] is own
    assert "__call__" not in vars(A.HorizontalFlip)
