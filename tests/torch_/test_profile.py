"""The costs of a training sample by a clock that only counts, the advice, and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import ocrstore
from ocrstore import cli
from ocrstore.errors import SchemaError
from ocrstore.pipeline import compose
from ocrstore.pipeline_json import read_pipeline, to_json
from ocrstore.stopwatch import lap, measuring
from ocrstore.torch import profile as profiling
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.profile import (
    Cost,
    StepList,
    advise,
    profile_store,
    write_split,
)
from tests.drawn import bare_store, build_drawn, write_source

A = pytest.importorskip("albumentations")

PIPELINE = A.Compose([A.Resize(64, 64), A.HorizontalFlip(p=0.5), A.RandomBrightnessContrast(p=1.0)])
MIXED = A.Compose(
    [
        A.LongestMaxSize(64),
        A.Sequential([A.ToGray(p=1.0), A.VerticalFlip(p=1.0)], p=1.0),
        A.OneOf([A.GaussianBlur(), A.MotionBlur()], p=1.0),
        A.VerticalFlip(p=1.0),
        A.Normalize(),
    ]
)


class CountingClock:
    """Each reading is 1 ms later."""

    def __init__(self):
        self.readings = 0

    def __call__(self):
        """Read it."""
        self.readings += 1
        return self.readings * 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a store of six samples, its source, and a saved pipeline."""
    root = tmp_path_factory.mktemp("profile")
    build_drawn(root)
    A.save(PIPELINE, root / "pipeline.yaml", data_format="yaml")
    return root


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line as the shell would; returns exit code, standard output and error."""

    threads = torch.get_num_threads()

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ocrstore", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        torch.set_num_threads(threads)
        return caught.value.code, captured.out, captured.err

    return run


def counted(folder, pipeline=PIPELINE, **options):
    """Profile the drawn store by the counting clock."""
    given = {"samples": 4, "repeats": 2, "batch_size": 2, "clock": CountingClock(), **options}
    return profile_store(folder / "val.ocrs", transform=to_json(pipeline), **given)


def costs_of(**spent):
    """Costs by name, in milliseconds."""
    return [Cost(name, "", ms) for name, ms in spent.items()]


def test_every_step_has_its_laps(folder):
    """With a clock that counts readings a step costs as many milliseconds as it has laps."""
    profile = counted(folder)
    found = {cost.name: cost.cpu_ms for cost in profile.costs}
    assert list(found) == [
        *profiling.BEFORE,
        "Resize",
        "HorizontalFlip",
        "RandomBrightnessContrast",
        *profiling.AFTER,
    ]
    for name in ("picture", "map drawing", "float16"):
        assert found[name] == 1.0, name
    assert found["collation"] == 0.5  # two samples share one
    assert found["Resize"] >= 1.0  # it runs itself; the others are planned, then drawn
    assert found["RandomBrightnessContrast"] >= 2.0
    assert profile.sum_cpu_ms == pytest.approx(sum(found.values()))
    assert (profile.measured, profile.samples, profile.batch_size) == (4, 6, 2)


def test_no_time_is_lost_or_counted_twice(folder, monkeypatch):
    """The laps of a batch add up to the readings of the clock, whatever the steps are."""
    clock = CountingClock()
    measured = []
    original = profiling._spend

    def spend(dataset, names, batches, *others):
        before = clock.readings
        spent = original(dataset, names, batches, *others)
        # the first reading of each run starts the stopwatch, each further one ends a lap of 1 ms
        laps = clock.readings - before - 2 * len(batches)
        measured.append((sum(spent.values()), laps * 1_000_000))
        return spent

    monkeypatch.setattr(profiling, "_spend", spend)
    counted(folder, MIXED, batch_size=1, clock=clock)
    assert len(measured) == 3  # two repeats and the warm-up
    assert all(spent == elapsed for spent, elapsed in measured)


def test_the_loader_itself_runs_without_laps(folder):
    """The loader's cost is two readings for each batch: the stopwatch is off."""
    profile = counted(folder)
    assert profile.loader.cpu_ms == 0.5
    assert profile.deviation == pytest.approx(profile.sum_cpu_ms / 0.5 - 1)


def test_laps_change_no_sample(folder):
    """The same seed gives the same batch with the stopwatch on."""
    batches = []
    for on in (False, True):
        dataset = OCRStoreDataset(folder / "val.ocrs", transform=PIPELINE)
        torch.manual_seed(7)
        if on:
            with measuring(lambda what: None):
                batches.append(dataset[[0, 1, 2]])
        else:
            batches.append(dataset[[0, 1, 2]])
    for name in ("images", "prob_maps", "thresh_maps"):
        torch.testing.assert_close(batches[0][name], batches[1][name], rtol=0, atol=0)


def test_the_stopwatch_stops_when_the_measurement_fails():
    """After an error nobody listens any more."""
    heard = []
    with pytest.raises(ZeroDivisionError), measuring(heard.append):
        lap("one")
        raise ZeroDivisionError
    lap("two")
    assert heard == ["one"]


def test_a_batch_is_handed_over_by_a_real_worker(folder):
    """The worker reads the clock once for each batch of two, the parent at both ends."""
    profile = counted(folder)
    batches = profiling._HANDED_OVER - profiling._WARM_UP
    assert profile.handover.cpu_ms == pytest.approx((1 / batches + 1) / 2)
    collation = next(cost for cost in profile.costs if cost.name == "collation")
    expected = profile.sum_cpu_ms - collation.cpu_ms + profile.handover.cpu_ms
    assert profile.worker_cpu_ms == pytest.approx(expected)


def test_the_transforms_of_a_choice_are_one_row(folder):
    """What runs inside OneOf counts for OneOf; the second of two equal names has a number."""
    profile = counted(folder, MIXED, batch_size=1)
    found = {cost.name: cost for cost in profile.costs}
    assert found["OneOf(GaussianBlur | MotionBlur)"].cpu_ms >= 1.0
    assert found["VerticalFlip #2"].kind == "fixed"


def test_the_first_random_step_ends_what_can_be_baked():
    """Sequences are taken apart; what follows a random step is fixed at best."""
    steps = StepList(to_json(MIXED))
    assert {step.name: step.kind for step in steps.steps} == {
        "LongestMaxSize": "bakeable",
        "ToGray": "bakeable",
        "VerticalFlip": "bakeable",
        "OneOf(GaussianBlur | MotionBlur)": "random",
        "VerticalFlip #2": "fixed",
        "Normalize": "unfit",
    }
    assert [step.name for step in steps.leading] == ["LongestMaxSize", "ToGray", "VerticalFlip"]


def test_a_sequence_that_may_not_run_is_one_random_step():
    """A composition with a probability is not taken apart."""
    steps = StepList(to_json(A.Compose([A.Sequential([A.VerticalFlip(p=1.0)], p=0.5)])))
    assert [(step.name, step.kind) for step in steps.steps] == [
        ("Sequential(VerticalFlip)", "random")
    ]


def test_a_leading_step_is_advised_with_its_price():
    """Baking saves what the step costs and takes three bytes for each pixel it leaves."""
    steps = StepList(to_json(PIPELINE))
    spent = costs_of(Resize=4, HorizontalFlip=1, RandomBrightnessContrast=2)
    baked, stays = advise(spent, steps, samples=1000, pixels=64 * 64)
    assert (baked.verdict, baked.saves_cpu_ms, baked.costs_nbytes) == (
        "bake",
        4,
        1000 * 64 * 64 * 3,
    )
    assert "--split" in baked.how
    assert (
        stays.text == "HorizontalFlip, RandomBrightnessContrast: random, 3.00 ms or 43% of a sample"
    )


def test_a_deterministic_pipeline_is_stored_as_a_view():
    """Everything but the collation is saved, for nine bytes a pixel."""
    steps = StepList(to_json(A.Compose([A.Resize(64, 64), A.VerticalFlip(p=1.0)])))
    spent = costs_of(Resize=4, VerticalFlip=1, collation=0.5)
    (advice,) = advise(spent, steps, samples=10, pixels=64 * 64)
    assert (advice.saves_cpu_ms, advice.costs_nbytes) == (5, 10 * 64 * 64 * 9)
    assert "add-view" in advice.how


def test_a_cheap_step_is_not_worth_a_file():
    """Below two percent of a sample nothing is advised."""
    steps = StepList(to_json(A.Compose([A.Transpose(p=1.0), A.ColorJitter(p=1.0)])))
    found = list(advise(costs_of(Transpose=0.1, ColorJitter=20), steps, samples=9, pixels=100))
    assert [one.verdict for one in found] == ["keep", "keep"]
    assert "saves 0.10 ms only" in found[0].text


def test_unfit_steps_and_decoding():
    """Normalize makes what no view can hold; pictures could be stored raw."""
    steps = StepList(to_json(A.Compose([A.ColorJitter(p=1.0), A.Normalize()])))
    spent = costs_of(picture=5, ColorJitter=1, Normalize=2)
    raw, random, unfit = advise(spent, steps, samples=9, pixels=0)
    assert "--codec image=raw" in raw.text and raw.saves_cpu_ms == 5
    assert random.text.startswith("ColorJitter: random, 1.00 ms")
    assert "Normalize cannot be baked" in unfit.text


def test_the_baked_size_is_that_of_the_steps_that_lead(folder):
    """The price on disk follows from the pictures after the leading steps."""
    (baked,) = [one for one in counted(folder).advice if one.verdict != "keep"][:1]
    assert baked.costs_nbytes == 6 * 64 * 64 * 3


def test_pictures_of_several_sizes_are_measured_one_by_one(folder):
    """A pipeline that leaves sizes as they are cannot be batched."""
    profile = counted(folder, A.Compose([A.VerticalFlip(p=0.5)]), samples=6, batch_size=4)
    assert profile.batch_size == 1
    assert next(cost.cpu_ms for cost in profile.costs if cost.name == "collation") == 1.0


def test_the_baked_part_and_the_rest_are_the_pipeline(tmp_path):
    """A store built from bake.yaml holds what the leading steps make; rest.yaml is the others."""
    steps = StepList(to_json(MIXED))
    bake, rest = write_split(steps, tmp_path / "split")
    source = write_source(tmp_path)
    options = {"annotations": source / "gt", "workers": 0}
    ocrstore.build(source / "images", tmp_path / "b.ocrs", recipe=bake, **options)
    ocrstore.build(source / "images", tmp_path / "a.ocrs", size=64, **options)
    leading = compose([step.transform for step in steps.leading])
    with ocrstore.open(tmp_path / "a.ocrs") as whole, ocrstore.open(tmp_path / "b.ocrs") as baked:
        assert set(baked.columns) == {"tensor", "inverse_matrix"}
        for row in range(len(whole)):
            made = leading(image=whole["image"][row].copy(), keypoints=np.zeros((0, 2)))["image"]
            np.testing.assert_array_equal(baked["tensor"][row], made)
    others = [step.name for step in StepList(read_pipeline(rest)).steps]
    assert others == ["OneOf(GaussianBlur | MotionBlur)", "VerticalFlip", "Normalize"]


def test_the_command_on_a_drawn_store(folder, run, tmp_path):
    """Table, comparison with the loader, advice and the split pipeline, by the real clock."""
    split = tmp_path / "split"
    code, out, _ = run(
        *("profile", folder / "val.ocrs", "--transform", folder / "pipeline.yaml"),
        *("--samples", 4, "--repeats", 2, "--split", split),
    )
    assert code == 0, out
    for words in ("Resize", "bakeable", "HorizontalFlip", "map drawing", "random"):
        assert words in out, words
    assert "median of 2 repeats of 4 samples" in out
    assert "the loader itself" in out and "differs from the loader" in out and "with workers" in out
    assert (split / "bake.yaml").exists() and (split / "rest.yaml").exists()


def test_json_for_programs(folder, run):
    """Costs, sum, the loader's cost and the advice; the pipeline of `train` by default."""
    code, out, _ = run("profile", folder / "val.ocrs", "--samples", 3, "--repeats", 1, "--json")
    record = json.loads(out)
    assert code == 0 and record["pipeline"] == "the pipeline of train --augment"
    names = [row["name"] for row in record["costs"]]
    assert "warp" in names and "colour" in names
    assert record["sum_cpu_ms"] == pytest.approx(sum(row["cpu_ms"] for row in record["costs"]))
    assert record["loader"]["cpu_ms"] > 0 and record["advice"] and record["written"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--transform", "no.yaml"], "does not exist"),
        (["--view", "nope"], "no view 'nope'"),
    ],
)
def test_wrong_use(folder, run, arguments, words):
    """Wrong use is exit code 2 and one message."""
    found, _, err = run("profile", folder / "val.ocrs", *arguments)
    assert found == 2 and words in err.replace("\n", " ")


def test_the_pipeline_of_train_is_not_split(folder, run, tmp_path):
    """It is one random warp: nobody is told to split it, and --split asks for another pipeline."""
    given = ("profile", folder / "val.ocrs", "--samples", 3, "--repeats", 1)
    code, out, _ = run(*given)
    assert code == 0 and "warp, colour: random" in out and "--split" not in out
    code, _, err = run(*given, "--split", tmp_path / "baked")
    assert code == 2 and "--split needs --transform" in err
    assert not (tmp_path / "baked").exists()


def test_nothing_to_split():
    """A pipeline that begins at random has no file to write."""
    with pytest.raises(SchemaError, match="nothing can be baked"):
        write_split(StepList(to_json(A.Compose([A.ColorJitter()]))), None)


def test_stores_without_pictures_are_refused(run, tmp_path):
    """The message names the columns there are."""
    code, _, err = run("profile", bare_store(tmp_path / "bare.ocrs"))
    assert code == 1 and "neither pictures" in err and "numbers" in err
    code, _, err = run("profile", bare_store(tmp_path / "empty.ocrs", samples=0))
    assert code == 1 and "has no samples" in err
