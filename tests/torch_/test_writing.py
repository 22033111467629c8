"""A batch is yours to write on: nobody else ever sees it, and the file never changes."""

import gc
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from making import make_store
from torch.utils.data import DataLoader

import ocrstore
from ocrstore.torch import OCRStoreDataset, _region

STRATEGIES = ["leases", "fresh", "copy"] if _region.supported else ["fresh", "copy"]
SAMPLES = 12
NAMES = ("images", "prob_maps", "inverse_matrix")


@pytest.fixture(scope="module")
def small_path(tmp_path_factory):
    """A store whose pictures are put together by page and whose maps are copied."""
    return make_store(tmp_path_factory.mktemp("small") / "small.ocrs", samples=SAMPLES)


@pytest.mark.parametrize("memory", STRATEGIES)
@pytest.mark.parametrize("workers", [0, 1])
def test_writing_in_place_never_shows_again(small_path, memory, workers):
    """Torch, numpy and C++ operations write over whole epochs; each epoch sees the file."""
    before = small_path.read_bytes()
    dataset = OCRStoreDataset(small_path, memory=memory)
    truth = ocrstore.open(small_path)["tensor"]
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(4):
            loader = DataLoader(dataset, batch_size=5, shuffle=epoch % 2 == 1, num_workers=workers)
            for batch in loader:
                images = batch["images"]
                for row, image in zip(batch["rows"].tolist(), images, strict=True):
                    assert np.array_equal(image.permute(1, 2, 0), truth[row])
                images.numpy()[:, :, ::2] = epoch
                images[:, 0].mul_(2)
                batch["prob_maps"].float()
                torch.nn.functional.relu_(batch["prob_maps"].neg_())
                torch._foreach_add_([batch["inverse_matrix"]], 1.0)
                kept.append((images, images.clone()))  # one tensor, kept for epochs
            del batch, images, image
    assert all(torch.equal(images, was) for images, was in kept)
    assert small_path.read_bytes() == before


def test_the_same_rows_held_twice(small_path):
    """Two holders of one row write without meeting, in samples, batches and slices."""
    dataset = OCRStoreDataset(small_path)
    truth = ocrstore.open(small_path)["tensor"]
    holders = [dataset[2]["image"], dataset[2]["image"], dataset[1:4]["images"][1]]
    holders.append(dataset[[2, 2]]["images"][0])
    for number, tensor in enumerate(holders):
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(holders))
    holders.clear()
    del tensor
    gc.collect()
    assert np.array_equal(dataset[2]["image"].permute(1, 2, 0), truth[2])
    assert all(memory.leased_rows == 0 for memory in dataset.views[0].memory.values())


class Holders(RuleBasedStateMachine):
    """Takes, writes, drops and retakes, against a model of plain arrays."""

    path = None
    memory = None
    held = Bundle("held")

    def __init__(self):
        super().__init__()
        self.dataset = OCRStoreDataset(self.path, memory=self.memory)
        store = self.dataset.views[0].store
        self.truth = {
            "images": np.stack(list(store["tensor"])).transpose(0, 3, 1, 2),
            "prob_maps": np.stack(list(store["prob_map"]))[:, None],
            "inverse_matrix": np.stack(list(store["inverse_matrix"])),
        }
        self.living = {}
        self.count = 0

    def _hold(self, record, model):
        self.count += 1
        self.living[self.count] = (record, model)
        return self.count

    @rule(target=held, first=st.integers(0, SAMPLES - 1), length=st.integers(1, 6))
    def take_run(self, first, length):
        """Take adjoining rows."""
        rows = list(range(first, min(SAMPLES, first + length)))
        batch = self.dataset[rows]
        return self._hold(dict(batch), {name: self.truth[name][rows].copy() for name in NAMES})

    @rule(target=held, rows=st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=5))
    def take_rows(self, rows):
        """Take rows in any order, some repeated."""
        batch = self.dataset[rows]
        return self._hold(dict(batch), {name: self.truth[name][rows].copy() for name in NAMES})

    @rule(target=held, row=st.integers(0, SAMPLES - 1))
    def take_sample(self, row):
        """Take one sample."""
        sample = self.dataset[row]
        record = {
            "images": sample["image"][None],
            "prob_maps": sample["prob_map"][None],
            "inverse_matrix": sample["inverse_matrix"][None],
        }
        return self._hold(record, {name: self.truth[name][[row]].copy() for name in NAMES})

    @rule(
        which=held,
        name=st.sampled_from(NAMES),
        value=st.integers(0, 50),
        step=st.sampled_from([1, 3, 97]),
        by_numpy=st.booleans(),
    )
    def write(self, which, name, value, step, by_numpy):
        """Write to one tensor of a holder."""
        record, model = self.living[which]
        if name in record:
            target = record[name].numpy() if by_numpy else record[name]
            target[-1, 0, ::step] = value
            model[name][-1, 0, ::step] = value

    @rule(which=held, name=st.sampled_from(NAMES))
    def keep_one_tensor(self, which, name):
        """Forget all but one tensor."""
        record, model = self.living[which]
        if name in record:
            self.living[which] = ({name: record[name]}, {name: model[name]})

    @rule(which=held, name=st.sampled_from(NAMES))
    def keep_a_view(self, which, name):
        """Forget a tensor but for a slice of it."""
        record, model = self.living[which]
        if name in record:
            self.living[which] = ({name: record[name][-1:]}, {name: model[name][-1:]})

    @rule(which=consumes(held))
    def drop(self, which):
        """Let go of a holder."""
        del self.living[which]

    @invariant()
    def everyone_sees_what_they_wrote(self):
        """Each holder's tensors are the file's rows with the holder's own writing."""
        for record, model in self.living.values():
            for name, tensor in record.items():
                if name in model:
                    assert np.array_equal(tensor.numpy(), model[name])

    def teardown(self):
        """A new taker sees the file."""
        self.living.clear()
        gc.collect()
        for rows in (list(range(SAMPLES)), [7, 1, 1, 9]):
            batch = self.dataset[rows]
            assert np.array_equal(batch["images"].numpy(), self.truth["images"][rows])


@pytest.mark.parametrize("memory", STRATEGIES)
def test_any_sequence_of_takes_writes_and_drops(small_path, memory):
    """The state machine, under every strategy."""
    machine = type("Machine", (Holders,), {"path": small_path, "memory": memory})
    machine.TestCase.settings = settings(
        max_examples=6,
        stateful_step_count=25,
        suppress_health_check=list(HealthCheck),
    )
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=machine.TestCase.settings)
