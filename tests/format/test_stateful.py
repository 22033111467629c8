"""Any sequence of changes against a plain dict: append, replace, delete, add columns, compact."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import ocrstore
from ocrstore.format.lmdb_update import drop_unfinished
from tests.strategies import keys, same

SPEC = {
    "image": ocrstore.Column("uint8", (None, 2)),
    "map": ocrstore.Column("float16", (3,)),
    "text": ocrstore.Column("int32", (None,), codec="zstd"),
}


def arrays(seed):
    """Arrays that follow from a number."""
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 255, (seed % 4, 2), np.uint8),
        "map": rng.random(3).astype(np.float16),
        "text": rng.integers(0, 9, seed % 3).astype(np.int32),
    }


class StoreMachine(RuleBasedStateMachine):
    """The store under test beside a model of every generation."""

    @initialize()
    def start(self):
        """Begin with an empty store."""
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(dir=parent)
        self.path = Path(self.folder.name) / "a.ocrs"
        self.columns = dict(SPEC)
        with ocrstore.create(self.path, SPEC, group_rows=3) as writer:
            assert len(writer) == 0
        self.model = {}
        self.past = {1: {}}
        self.reached = {}
        self.reader = ocrstore.open(self.path)

    def publish(self):
        """Note a new generation in the model."""
        self.past[max(self.past) + 1] = dict(self.model)

    @rule(changes=st.lists(st.tuples(st.sampled_from("ard"), keys, st.integers(0, 99)), max_size=6))
    def change(self, changes):
        """Append, replace or delete some samples in one go."""
        before = dict(self.model)
        touched = False
        with ocrstore.edit(self.path) as writer:
            for action, key, seed in changes:
                sample = {n: a for n, a in arrays(seed).items() if n in self.columns}
                for name in self.columns:
                    sample.setdefault(name, np.full(2, seed, np.int8))
                if action == "a" and key not in self.model:
                    writer.append(key, sample, attributes=None)
                    self.model[key] = sample
                elif action == "r" and key in self.model:
                    writer.replace(key, sample)
                    self.model[key] = sample
                elif action == "d" and key in self.model:
                    writer.delete(key)
                    del self.model[key]
                else:
                    continue
                touched = True
        if touched:
            self.publish()
        else:
            assert before == self.model

    @rule(changes=st.lists(st.tuples(keys, st.integers(0, 99)), min_size=1, max_size=4))
    def fail(self, changes):
        """A block that raises changes nothing."""
        with pytest.raises(ZeroDivisionError), ocrstore.edit(self.path) as writer:
            for key, seed in changes:
                if key not in writer and set(self.columns) == set(SPEC):
                    writer.append(key, arrays(seed))
            raise ZeroDivisionError

    @rule(
        puts=st.dictionaries(keys, st.integers(0, 99), min_size=1, max_size=6),
        stop=st.integers(0, 6),
        goes_on=st.booleans(),
    )
    def interrupted(self, puts, stop, goes_on):
        """Work that is given up changes nothing; the same work goes on where it stopped."""
        samples = {key: arrays(seed) for key, seed in puts.items()}
        for key, sample in samples.items():
            for name in self.columns:
                sample.setdefault(name, np.full(2, puts[key], np.int8))
        work = repr(puts)
        for end in (stop, len(puts)) if goes_on else (stop,):
            writer = ocrstore.edit(self.path, resume=work, group_rows=2)
            done = writer.resumed_attributes()["key"].to_pylist()
            assert done == list(puts)[: len(done)]
            assert len(done) <= max(stop, self.reached.get(work, 0))
            self.reached[work] = max(stop, len(done))
            for key in list(puts)[len(done) : end]:
                write = writer.replace if key in writer else writer.append
                write(key, samples[key])
            if end == len(puts) and goes_on:
                writer.close()
                self.model |= samples
                self.publish()
                return
            writer.abort()
            assert ocrstore.verify(self.path).findings == []

    @precondition(lambda self: len(self.columns) < 5)
    @rule(seed=st.integers(0, 99))
    def add_column(self, seed):
        """A new column for all samples, without touching the others."""
        name = f"extra{len(self.columns)}"
        rows = [np.full(2, seed + row, np.int8) for row in range(len(self.model))]
        ocrstore.add_column(self.path, name, ocrstore.Column("int8", (2,)), rows)
        self.columns[name] = ocrstore.Column("int8", (2,))
        self.model = {
            key: {**sample, name: row} for (key, sample), row in zip(self.model.items(), rows)
        }
        self.publish()

    @rule()
    def compact(self):
        """Compaction keeps the newest generation and its fingerprint."""
        fingerprint = ocrstore.open(self.path).fingerprint
        ocrstore.compact(self.path)
        newest = max(self.past) + 1
        self.past = {newest: dict(self.model)}
        assert ocrstore.open(self.path).fingerprint == fingerprint
        assert ocrstore.open(self.path).generations == [newest]

    @rule()
    def refresh(self):
        """A reader that refreshes sees the newest generation."""
        self.reader.refresh()
        assert self.reader.generation == max(self.past)

    @invariant()
    def every_generation_reads_as_it_was(self):
        """All generations, by the model."""
        if not hasattr(self, "path"):
            return
        for generation, model in self.past.items():
            store = ocrstore.open(self.path, generation=generation)
            assert store.keys == tuple(model)
            for row, sample in enumerate(model.values()):
                assert set(sample) == set(store.columns)
                for name, array in sample.items():
                    assert same(store[name][row], array)

    def teardown(self):
        """Every byte is accounted for, and nothing lies beside the store."""
        if hasattr(self, "path"):
            assert ocrstore.verify(self.path).findings == []
            drop_unfinished(self.path)
            assert [p.name for p in self.path.parent.iterdir()] == ["a.ocrs"]
            self.reader.close()
            self.folder.cleanup()


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=12)
TestStore = StoreMachine.TestCase
