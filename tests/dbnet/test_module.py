"""The Lightning module: it learns, measures, schedules, and remembers its recipe."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ocrstore.dbnet.callbacks import PredictionPictures, ProgressBar
from ocrstore.dbnet.checkpoint import Provenance
from ocrstore.dbnet.module import DBNetModule, PolynomialSchedule
from ocrstore.dbnet.predict import Detector
from ocrstore.errors import RecipeMismatchError, SchemaError
from ocrstore.evaluation.results import ground_truth_of
from ocrstore.recipe import Recipe
from ocrstore.torch.lightning_bases import L

# Lightning advises more workers, and warns where loaders are shorter than its logging interval
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]

TINY = {"backbone": "resnet10", "width": 16, "inner": 64}


def provenance(**changes):
    """Describe training data of some recipe."""
    recipe = Recipe.make(size=64, **changes)
    return Provenance(store_fingerprint="f" * 32, recipe=recipe.to_json(), view="64").to_json()


def trainer(folder, **changes):
    """Make a quiet trainer on the CPU."""
    options = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "num_sanity_val_steps": 0,
        "gradient_clip_val": 5.0,
    }
    return L.Trainer(**{**options, **changes})


@pytest.fixture(scope="module")
def learned(tmp_path_factory, bars_loader):
    """Train the tiny network on two pictures, once for all tests that look at the result."""
    folder = tmp_path_factory.mktemp("learned")
    torch.manual_seed(0)
    module = DBNetModule(model=TINY, lr=1e-2, provenance=provenance())
    pictures = PredictionPictures(folder / "pictures", every=100, count=2)
    fit = trainer(folder, max_epochs=60, check_val_every_n_epoch=60, callbacks=[pictures])
    fit.fit(module, bars_loader(2), bars_loader(2))
    fit.save_checkpoint(folder / "last.ckpt")
    # tests that use the trainer again replace its metrics
    reached = {name: value.item() for name, value in fit.callback_metrics.items()}
    reached["names"] = sorted(name for name, _ in module.hmean.rows)
    (folder / "reached.json").write_text(json.dumps(reached))
    return fit, module, folder


def test_it_learns_two_pictures(learned):
    """After 60 steps the bars are found: the H-mean over the validation set is 1."""
    reached = json.loads((learned[2] / "reached.json").read_text())
    assert reached["val_hmean"] == reached["val_cleval_recall"] == 1
    assert math.isfinite(reached["val_loss"])
    assert reached["names"] == ["bar-0.jpg", "bar-1.jpg"]


def test_pictures_with_predictions_are_written(learned):
    """The last epoch's sheet is there."""
    assert (learned[2] / "pictures" / "epoch-0059.jpg").stat().st_size > 500


def test_a_checkpoint_has_recipe_and_fingerprint_and_predicts(learned, bars_loader):
    """Loaded without Lightning and without running code, it finds the bar in the picture."""
    detector = Detector.load(learned[2] / "last.ckpt")
    assert detector.provenance.store_fingerprint == "f" * 32
    assert detector.recipe == Recipe.make(size=64)
    batch = next(iter(bars_loader(1)))
    view = batch["images"][0].permute(1, 2, 0).numpy()
    picture = np.ascontiguousarray(view.repeat(2, axis=0).repeat(2, axis=1))
    (found,) = detector.find([picture])
    assert len(found) == 1
    np.testing.assert_allclose(found.polygons[0], batch["polygons"][0][0] * 2, atol=9)


def test_predict_step_gives_detections(learned, bars_loader):
    """Lightning's predict loop returns boxes per batch."""
    fit, module, _ = learned
    (first,) = fit.predict(module, bars_loader(2))
    assert [len(found["polygons"]) for found in first] == [1, 1]


def test_resuming_goes_on(learned, bars_loader, tmp_path):
    """From the checkpoint of epoch 60, one more epoch is trained."""
    module = DBNetModule(model=TINY, lr=1e-2, provenance=provenance())
    fit = trainer(tmp_path, max_epochs=61)
    fit.fit(module, bars_loader(2), bars_loader(2), ckpt_path=learned[2] / "last.ckpt")
    assert fit.current_epoch == 61 and fit.global_step == 61


def test_resuming_with_another_recipe_says_what_differs(learned, bars_loader, tmp_path):
    """A store of another fill colour is refused, by the field's name and both values."""
    module = DBNetModule(model=TINY, provenance=provenance(fill=(1, 2, 3)))
    with pytest.raises(RecipeMismatchError, match=r"fill: \[0, 0, 0\] -> \[1, 2, 3\]"):
        trainer(tmp_path, max_epochs=61).fit(
            module, bars_loader(2), bars_loader(2), ckpt_path=learned[2] / "last.ckpt"
        )


def test_storage_is_no_difference():
    """Other dtypes and codecs of the columns are the same recipe to a network."""
    one = Provenance.from_json(provenance())
    other = Provenance.from_json(provenance(codecs={"prob_map": "zstd"}))
    assert one.differences(other) == []


def test_mixed_precision_trains_without_inf_or_nan(bars_loader, tmp_path):
    """Under bf16-mixed every loss is finite."""

    seen = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            seen.append(outputs["loss"].item())

    module = DBNetModule(model=TINY, lr=1e-2)
    fit = trainer(tmp_path, max_epochs=4, precision="bf16-mixed", callbacks=[Watch()])
    fit.fit(module, bars_loader(4), bars_loader(2))
    assert len(seen) == 8 and np.isfinite(seen).all()
    assert seen[-1] < seen[0]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_optimisers_and_what_they_decay(name, bars_loader, tmp_path):
    """Both optimisers run; norms and biases are not decayed; the rate falls to zero."""
    module = DBNetModule(model=TINY, optimizer=name, lr=1e-3, weight_decay=0.1)
    fit = trainer(tmp_path, max_epochs=2)
    fit.fit(module, bars_loader(2), bars_loader(2))
    decayed, plain = fit.optimizers[0].param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert all(p.ndim > 1 for p in decayed["params"]) and all(p.ndim == 1 for p in plain["params"])
    assert decayed["lr"] == 0


def test_unknown_optimisers_are_refused():
    """The message names the two there are."""
    with pytest.raises(SchemaError, match="'adamw' or 'sgd'"):
        DBNetModule(optimizer="lion")


def test_the_schedule_by_hand():
    """A warm-up over a fifth of ten steps, then (1 - step / 10) ** 0.9."""
    schedule = PolynomialSchedule(10, warmup=0.2, power=0.9)
    assert schedule(0) == pytest.approx(1 / 3)
    assert schedule(1) == pytest.approx(2 / 3 * 0.9**0.9)
    assert schedule(5) == pytest.approx(0.5**0.9)
    assert schedule(10) == 0 and schedule(11) == 0


def test_truths_are_moved_to_picture_coordinates(bars_loader):
    """Polygons of the view, doubled; sizes and names as the batch has them."""
    batch = next(iter(bars_loader(2)))
    truth = ground_truth_of(batch)
    np.testing.assert_allclose(truth.polygons[1][0], batch["polygons"][1][0] * 2)
    assert truth.sizes == [(128, 128)] * 2 and truth.keys == ["bar-0.jpg", "bar-1.jpg"]


def test_a_compiled_network_sees_one_size(bars_loader, tmp_path):
    """The odd last batch of a validation is filled up; its figures are those of a plain one."""
    figures, sizes = [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = DBNetModule(model=TINY)
        module.compiled = compiled  # without the compiler, which takes long
        seen = []
        module.net.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(len(args[0])))
        figures += trainer(tmp_path).validate(module, bars_loader(5), verbose=False)
        sizes.append(seen)
    assert sizes == [[2, 2, 1], [2, 2, 2]]
    assert figures[0] == pytest.approx(figures[1])
    assert "val_cleval_hmean" in figures[0]


def test_cleval_is_counted_every_few_epochs(bars_loader, tmp_path):
    """Every second epoch and the last one; H-mean in every epoch."""
    logged = []

    class Watch(L.Callback):
        def on_validation_end(self, trainer, module):
            logged.append((len(module.hmean.rows), int(module.cleval.truth_characters)))

    module = DBNetModule(model=TINY, cleval_every=2)
    fit = trainer(tmp_path, max_epochs=3, callbacks=[Watch()])
    fit.fit(module, bars_loader(2), bars_loader(2))
    assert logged == [(2, 0), (2, 6), (2, 6)]


def test_the_progress_bar_fetches_only_what_is_logged(monkeypatch):
    """In between it shows the figures of before."""
    fetched = []
    monkeypatch.setattr(
        L.callbacks.RichProgressBar,
        "get_metrics",
        lambda self, trainer, module: fetched.append(trainer.global_step) or {"step": fetched[-1]},
    )
    bar = ProgressBar()
    for step in range(25):
        running = SimpleNamespace(training=True, global_step=step, log_every_n_steps=10)
        assert bar.get_metrics(running, None) == {"step": step // 10 * 10}
    assert fetched == [0, 10, 20]


def test_precision_and_device_of_a_detector(learned):
    """On a CPU `auto` is float32; bf16 is another result, close to it; nonsense is refused."""
    path = learned[2] / "last.ckpt"
    images = torch.randint(0, 255, (1, 3, 64, 64), dtype=torch.uint8)
    auto = Detector.load(path, device="auto", precision="32").probabilities(images).cpu()
    mixed = Detector.load(path, precision="bf16-mixed").probabilities(images)
    assert mixed.dtype == torch.float32 and not torch.equal(mixed, auto)
    torch.testing.assert_close(mixed, auto, atol=0.1, rtol=0)
    with pytest.raises(SchemaError, match="unknown precision '8'"):
        Detector.load(path, precision="8")
