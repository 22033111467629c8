"""Manifests and attributes changed at random, with right hashes, through all that reads them.

Whatever a store says, only ocrstore's errors leave its readers.
"""

from __future__ import annotations

import copy
import json
import math
import random
import shutil
from contextlib import suppress

import pyarrow as pa
import pytest

pytest.importorskip("torch")

from torch.utils.data import DataLoader

import ocrstore
from ocrstore.cli.inspect import print_difference, print_facts, print_sample
from ocrstore.errors import OCRStoreError
from ocrstore.evaluation.upper_bound import upper_bound
from ocrstore.inspection.difference import compare_stores
from ocrstore.inspection.facts import gather_facts
from ocrstore.inspection.sample_facts import sample_facts
from ocrstore.report import make_report
from ocrstore.torch import OCRStoreDataset
from ocrstore.viewer.samples import Catalog, plain
from tests.drawn import build_drawn
from tools import crafting as craft

QUICK, LONG = 200, 10_000
EVIL = "\x1b[31m\u202e<b>\0"
VALUES = [
    None, True, 0, -1, 1.5, 2**31, 2**63, 10**400, 1e308, -1e308, "", "x", EVIL, "a" * 5000, [],
    {}, [None], [[[]]], {"a": {"a": 1}}, {EVIL: EVIL}, [1, 2], [1e300, 2], ["tensor"],
    {"tensor": "image"}, {"transform": {"transforms": [{"__class_fullname__": "os.system"}]}},
    {"__class_fullname__": "Compose", "transforms": [3]},
]  # fmt: skip
TYPES = [
    pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.string(), pa.large_string(),
    pa.binary(), pa.list_(pa.bool_()), pa.list_(pa.float64()), pa.list_(pa.string()),
    pa.large_list(pa.string()), pa.list_(pa.list_(pa.float32())), pa.list_(pa.list_(pa.int64())),
    pa.large_list(pa.large_list(pa.float64())), pa.list_(pa.list_(pa.float64(), 8)),
    pa.list_(pa.list_(pa.string())), pa.struct([("a", pa.list_(pa.binary()))]),
    pa.list_(pa.int32(), 3),
]  # fmt: skip
NUMBERS = [0, 1, -1, 127, 2**31, 2**63 - 1, 0.5, math.nan, math.inf, -1e30, 1e300]


def places(value, path=()):
    """Yield the path of every value inside a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in items:
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, name))
        else:
            yield (*path, name)


def change_json(rng, value):
    """Replace, remove, add or rename something inside a JSON value."""
    *outer, last = rng.choice(list(places(value)))
    inner = value
    for name in outer:
        inner = inner[name]
    kind = rng.randrange(6)
    if kind == 0:
        del inner[last]
    elif kind == 1 and isinstance(inner, dict):
        inner[rng.choice([EVIL, "x", "image"])] = inner.pop(last)
    elif kind == 2 and isinstance(inner, dict):
        inner[rng.choice(["x", EVIL, "tensor"])] = copy.deepcopy(rng.choice(VALUES))
    else:
        inner[last] = copy.deepcopy(rng.choice(VALUES))


def any_value(rng, kind):
    """Return a random value of an Arrow type, or None."""
    if rng.random() < 0.15:
        return None
    if pa.types.is_struct(kind):
        return {field.name: any_value(rng, field.type) for field in kind}
    if pa.types.is_fixed_size_list(kind):
        return [any_value(rng, kind.value_type) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [any_value(rng, kind.value_type) for _ in range(rng.choice([0, 1, 2, 3, 6, 8]))]
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return rng.choice(["", "x", EVIL, "kind: message", "mislabelled: \x07"])
    if pa.types.is_binary(kind):
        return b"\xff\0"
    number = rng.choice(NUMBERS)
    if pa.types.is_floating(kind):
        return float(number)
    signed = pa.types.is_signed_integer(kind)
    high = 2 ** (kind.bit_width - signed) - 1
    low = -high - 1 if signed else 0
    return int(min(max(number, low), high)) if math.isfinite(number) else low


def change_table(rng, table, columns):
    """Give an attribute another type or other values, remove it, or take one of its values away."""
    names = [name for name in table.column_names if name not in ("key", *columns)]
    name = rng.choice(names)
    position = table.schema.get_field_index(name)
    if rng.random() < 0.1:
        return table.remove_column(position)
    kind = table.schema.field(name).type if rng.random() < 0.5 else rng.choice(TYPES)
    values = [any_value(rng, kind) for _ in range(table.num_rows)]
    if kind == table.schema.field(name).type:
        kept = table[name].to_pylist()
        values = [new if rng.random() < 0.3 else old for new, old in zip(values, kept)]
    return table.set_column(position, pa.field(name, kind), pa.array(values, kind))


def show(store, good):
    """Read what `inspect` does."""
    facts = gather_facts(store)
    json.dumps(facts.to_json(), allow_nan=False)
    print_facts(facts, None)
    for key in store.keys:
        found = sample_facts(store, key)
        json.dumps(found.to_json(), allow_nan=False)
        print_sample(store, found, picture=True)
    for pair in ((store, good), (good, store)):
        print_difference(compare_stores(*pair))


def report(store, _good):
    """Make a report."""
    make_report(store, samples=2)


def train(store, _good):
    """Read all batches and annotations."""
    dataset = OCRStoreDataset(store.path)
    for batch in DataLoader(dataset, batch_size=3):
        for name in list(batch):
            batch[name]
    _ = dataset.annotations


def view(store, _good):
    """Describe every sample for the page."""
    catalog = Catalog(store)
    try:
        json.dumps(plain(catalog.facts()), allow_nan=False)
        for row in range(len(store)):
            json.dumps(catalog.sample(row), allow_nan=False)
            catalog.thumbnails.make(row, 160, catalog.outlines(row))
    finally:
        catalog.close()


def evaluate(store, _good):
    """Take the maps through post-processing."""
    upper_bound(store)


def build(store, _good):
    """Plan the next build, and do it."""
    root = store.path.rpartition("/")[0]
    ocrstore.build(f"{root}/images", store.path, annotations=f"{root}/gt", size=32, workers=0)


def check(store, _good):
    """Compare with the source."""
    root = store.path.rpartition("/")[0]
    ocrstore.verify(store.path, source=f"{root}/images", annotations=f"{root}/gt", workers=0)


def extend(store, _good):
    """Add a view."""
    ocrstore.add_view(store.path, size=16, columns=["tensor", "prob_map"], workers=0)


READERS = (show, report, train, view, evaluate, build, check, extend)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A store as `build` makes it."""
    return build_drawn(tmp_path_factory.mktemp("hostile"), size=32)


def run(good, numbers):
    """Change the store once for each number, and let a reader at it; the number is the seed."""
    path = good.with_name("changed.ocrs")
    manifest = json.loads(craft.payload_of(good, craft.MANIFEST))
    table = craft.index_table(good)
    columns = [column["name"] for column in manifest["columns"]]
    with ocrstore.open(good) as unchanged:
        for number in numbers:
            rng = random.Random(number)
            shutil.copy(good, path)
            if rng.random() < 0.6:
                record = copy.deepcopy(manifest)
                for _ in range(rng.choice([1, 1, 2])):
                    part = rng.choice(["metadata", "metadata", "metadata", "history"])
                    if record[part]:
                        change_json(rng, record[part])
                craft.put_payload(path, craft.MANIFEST, json.dumps(record).encode())
            else:
                craft.put_table(path, change_table(rng, table, columns))
            reader = READERS[number % len(READERS)]
            try:
                with suppress(OCRStoreError), ocrstore.open(path) as store:
                    reader(store, unchanged)
            except Exception as exc:
                pytest.fail(f"seed {number}, {reader.__name__}: {type(exc).__name__}: {exc}")


def test_some_changes(good, capsys):
    """A few of the changes, quickly."""
    run(good, range(QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_changes(good, capsys, part):
    """Ten thousand of them."""
    run(good, range(part * LONG // 10, (part + 1) * LONG // 10))
