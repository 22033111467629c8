# ruff: noqa: D103  # the names of the functions that spoil files say what they do
"""What a reader must reject before it has an index: rules R1 to R28 of docs/FORMAT.md 11.

Each row of the table makes a wrong file out of a good one and names the error and the words it
must carry.
"""

from __future__ import annotations

import os
import shutil
import struct

import lmdb
import pytest

import ocrstore
from ocrstore import CorruptStoreError, NotAStoreError, UnknownGenerationError
from ocrstore import UnsupportedFormatError as UnsupportedError
from tests.format.rejecting import (
    COLUMNS,
    REMEDY,
    Case,
    Cases,
    check_refusal,
    edit_fields,
    write_store,
)
from tools import crafting as craft
from tools.crafting import INDEX, MANIFEST

CASES = Cases()

# --- the file -------------------------------------------------------------------------------


@CASES.add("R1", NotAStoreError, "no such file")
def missing(path):
    path.unlink()


@CASES.add("R1", NotAStoreError, "is a directory")
def directory(path):
    path.unlink()
    path.mkdir()


if hasattr(os, "mkfifo"):

    @CASES.add("R1", NotAStoreError, "not a regular file")
    def named_pipe(path):
        path.unlink()
        os.mkfifo(path)

    @CASES.add("R1", NotAStoreError, "not a regular file")
    def device(path):
        path.unlink()
        path.symlink_to("/dev/zero")


CASES.add_all(
    "R2", NotAStoreError, "empty|too few",
    empty_file=lambda path: path.write_bytes(b""),
    one_byte=lambda path: path.write_bytes(b"O"),
    half_a_meta_page=lambda path: os.truncate(path, 100),
)  # fmt: skip
CASES.add_all(
    "R2", CorruptStoreError, "cut off",
    one_meta_page=lambda path: os.truncate(path, 4096),
    meta_page_and_a_half=lambda path: os.truncate(path, 6000),
)  # fmt: skip
CASES.add_all(
    "R3", NotAStoreError, "no LMDB magic",
    text_file=lambda path: path.write_text("not a store\n" * 1000),
    zeros=lambda path: path.write_bytes(bytes(20000)),
    wrong_magic=lambda path: craft.patch(path, 16, b"\xdf"),
    zip_file=lambda path: path.write_bytes(b"PK\x03\x04" + os.urandom(9000)),
)  # fmt: skip


@CASES.add("R4", UnsupportedError, "LMDB data version 7")
def other_data_version(path):
    craft.patch(path, 20, struct.pack("<I", 7))


if craft.ENGINE:

    @CASES.add("R4", UnsupportedError, "LMDB 1.0")
    def lmdb_1_0(path):
        path.unlink()
        craft.environment(path, lib_version=1).close()


CASES.add_all(
    "R5", CorruptStoreError, "meta page|page size",
    meta_page_number=lambda path: craft.patch(path, 4096, b"\x07"),
    meta_page_flags=lambda path: craft.patch(path, 10, b"\x02"),
    map_address=lambda path: craft.patch(path, 24, b"\x01"),
    second_meta_magic=lambda path: craft.patch(path, 4096 + 16, b"\0\0\0\0"),
    page_size_zero=lambda path: craft.patch(path, 40, struct.pack("<I", 0)),
    page_size_absurd=lambda path: craft.patch(path, 40, struct.pack("<I", 2**31)),
    page_sizes_differ=lambda path: craft.patch(path, 4096 + 40, struct.pack("<I", 8192)),
    depth_absurd=lambda path: craft.patch(path, 94, struct.pack("<H", 60000)),
)  # fmt: skip
CASES.add_all(
    "R5", NotAStoreError, "of another kind",
    main_tree_flags=lambda path: craft.patch(path, 92, struct.pack("<H", 4)),
    free_tree_flags=lambda path: craft.patch(path, 44, struct.pack("<H", 0x4004)),
)  # fmt: skip


@CASES.add("R5", NotAStoreError, "of another kind")
def data_file_of_an_lmdb_folder(path):
    folder = path.with_suffix(".folder")
    with lmdb.open(str(folder), **craft.ENGINE) as env, env.begin(write=True) as transaction:
        transaction.put(b"key", b"value")
    shutil.copy(folder / "data.mdb", path)


# --- pages ----------------------------------------------------------------------------------


def set_meta(path, offset, data):
    craft.patch(path, craft.newest_meta(path)["start"] + offset, data)


def set_root(path, offset, data):
    craft.patch(path, craft.root_page(path) + offset, data)


def set_child(path, page):
    """Let the last key's node point at another page."""
    start = craft.node(path)
    nbytes = len(MANIFEST)
    craft.patch(path, start + 8 + nbytes, struct.pack("<Q", page))


CASES.add_all(
    "R6", CorruptStoreError, "refers to page",
    root_behind_the_end=lambda path: set_meta(path, 128, struct.pack("<Q", 10**9)),
    root_is_a_meta_page=lambda path: set_meta(path, 128, struct.pack("<Q", 1)),
    root_is_negative=lambda path: set_meta(path, 128, struct.pack("<q", -2)),
    value_behind_the_end=lambda path: set_child(path, 10**6),
    value_page_absurd=lambda path: set_child(path, 2**63),
    value_of_4_gib=lambda path: craft.patch(path, craft.node(path), b"\xff\xff\xff\xff"),
    last_page_too_small=lambda path: set_meta(path, 136, struct.pack("<Q", 3)),
)  # fmt: skip
CASES.add_all(
    "R7", CorruptStoreError, "not a tree page|bounds|leaves the page|order|overlap|unknown kind",
    page_number=lambda path: set_root(path, 0, b"\x77"),
    page_flags=lambda path: set_root(path, 10, b"\x22"),
    root_is_a_value=lambda path: set_root(path, 10, b"\x04"),
    lower_too_large=lambda path: set_root(path, 12, struct.pack("<H", 5000)),
    lower_odd=lambda path: set_root(path, 12, struct.pack("<H", 19)),
    no_nodes=lambda path: set_root(path, 12, struct.pack("<H", 16)),
    upper_too_large=lambda path: set_root(path, 14, struct.pack("<H", 65535)),
    node_outside=lambda path: set_root(path, 16, struct.pack("<H", 4095)),
    node_in_the_header=lambda path: set_root(path, 16, struct.pack("<H", 2)),
    key_leaves_the_page=lambda path: craft.patch(path, craft.node(path) + 6, b"\xff\xff"),
    keys_out_of_order=lambda path: craft.patch(path, craft.node(path) + 8, b"a"),
    nodes_overlap=lambda path: set_root(
        path, 16, path.read_bytes()[craft.root_page(path) + 18 :][:2]
    ),
    node_of_unknown_kind=lambda path: craft.patch(path, craft.node(path) + 4, b"\x81"),
)  # fmt: skip


@CASES.add("R8", CorruptStoreError, "deeper than 32")
def tree_that_is_its_own_child(path):
    craft.tree_file(path, [craft.branch_page(2, [(b"", 2)])], depth=5)


@CASES.add("R8", CorruptStoreError, "deeper than 32")
def tree_too_deep(path):
    chain = [craft.branch_page(n, [(b"", n + 1)]) for n in range(2, 1200)]
    leaf = craft.leaf_page(1200, [(MANIFEST, b"x")])
    craft.tree_file(path, [*chain, leaf], depth=32)


@CASES.add(
    "R8", CorruptStoreError, "two ways", action=lambda path: ocrstore.open(path, generation=7)
)
def tree_with_two_ways_to_every_page(path):
    chain = [craft.branch_page(n, [(b"", n + 1), (b"manifest/0", n + 1)]) for n in range(2, 30)]
    leaf = craft.leaf_page(30, [(MANIFEST, b"x")])
    craft.tree_file(path, [*chain, leaf], depth=29)


CASES.add_all(
    "R9", CorruptStoreError, "the page header says",
    value_page_number=lambda path: craft.patch(path, craft.value_page(path), b"\xee"),
    value_page_flags=lambda path: craft.patch(path, craft.value_page(path) + 10, b"\x02"),
    value_page_count=lambda path: craft.patch(path, craft.value_page(path) + 12, b"\x09"),
    value_is_another_page=lambda path: set_child(path, 3),
)  # fmt: skip


@CASES.add("R10", CorruptStoreError, "inside a tree page")
def manifest_inside_a_tree_page(path):
    craft.put(path, MANIFEST, b"small")


@CASES.add("R10", CorruptStoreError, "inside a tree page")
def index_inside_a_tree_page(path):
    craft.put(path, INDEX, b"")


# --- which records there are ----------------------------------------------------------------


def other_lmdb(path, put, **options):
    path.unlink()
    with craft.environment(path, max_dbs=4, **options) as env:
        put(env)


def put_plain(env):
    with env.begin(write=True) as transaction:
        for number in range(500):
            transaction.put(b"%d" % number, bytes(number * 20))


def put_named(env):
    with env.begin(db=env.open_db(b"zoo"), write=True) as transaction:
        transaction.put(b"key", b"value")


CASES.add_all(
    "R11", NotAStoreError, "no manifest",
    lmdb_file=lambda path: other_lmdb(path, put_plain),
    lmdb_file_with_databases=lambda path: other_lmdb(path, put_named),
    lmdb_file_without_keys=lambda path: other_lmdb(path, lambda env: None),
    manifest_removed=lambda path: craft.put(path, MANIFEST, None),
    key_behind_the_manifest=lambda path: craft.put(path, b"zzz", bytes(5000)),
    manifest_number_not_a_number=lambda path: craft.put(path, b"manifest/0000000x", bytes(5000)),
)  # fmt: skip


@CASES.add("R12", NotAStoreError, "unfinished build")
def unfinished_build(path):
    path.unlink()
    writer = ocrstore.create(path, COLUMNS, resume="work")
    writer.abort()
    (path.parent / f".{path.name}.partial").rename(path)


for number in (0, 2, 99, -1, 10**9, True + 1.0, "1"):
    CASES.append(
        Case(
            "R13",
            f"generation_{number!r}",
            lambda path: None,
            UnknownGenerationError,
            "has no generation",
            lambda path, number=number: ocrstore.open(path, generation=number),
        )
    )


# --- records --------------------------------------------------------------------------------


def wrong_blob(key, **wrong):
    return lambda path: craft.put_payload(path, key, craft.payload_of(path, key), **wrong)


for key, kind in ((MANIFEST, "manifest"), (INDEX, "index")):
    CASES.add_all("R14", CorruptStoreError, "starts with",
          **{f"{kind}_magic": wrong_blob(key, magic=b"OCRSXXX1")})  # fmt: skip
    CASES.add_all(
        "R14", CorruptStoreError, "reserved", **{f"{kind}_reserved": wrong_blob(key, zero=1)}
    )
    CASES.add_all("R15", CorruptStoreError, "header's hash",
          **{f"{kind}_header_hash": wrong_blob(key, header_digest=1)})  # fmt: skip
    CASES.add_all("R16", CorruptStoreError, "says it is number",
          **{f"{kind}_number": wrong_blob(key, number=2)})  # fmt: skip
    CASES.add_all("R17", CorruptStoreError, "claims",
          **{f"{kind}_too_long": wrong_blob(key, nbytes=10**6),
             f"{kind}_absurdly_long": wrong_blob(key, nbytes=2**64 - 1)})  # fmt: skip
    CASES.add_all("R18", CorruptStoreError, "do not match their hash",
          **{f"{kind}_hash": wrong_blob(key, digest=0),
             f"{kind}_empty": wrong_blob(key, nbytes=0)})  # fmt: skip
    CASES.add_all("R19", CorruptStoreError, "padding",
          **{f"{kind}_padding": wrong_blob(key, padding=b"\0" * 4000 + b"\1"),
             f"{kind}_padding_too_long": wrong_blob(key, padding=bytes(10**6))})  # fmt: skip


# --- the manifest ---------------------------------------------------------------------------


def manifest(payload):
    return lambda path: craft.put_payload(path, MANIFEST, payload)


def column(**changes):
    return lambda path: craft.edit_manifest(path, lambda r: r["columns"][1].update(changes))


@CASES.add("R20", CorruptStoreError, "too many")
def manifest_of_65_mib(path):
    craft.put_payload(path, MANIFEST, b" " * (65 * 2**20))


CASES.add_all(
    "R21", CorruptStoreError, "JSON",
    manifest_of_nothing=manifest(b""),
    manifest_not_json=manifest(b"\x00\x01\x02"),
    manifest_not_utf8=manifest(b'{"a":"\xff"}'),
    manifest_cut=lambda path: craft.put_payload(
        path, MANIFEST, craft.payload_of(path, MANIFEST)[:-3]
    ),
    manifest_is_a_list=manifest(b"[]"),
    manifest_is_a_number=manifest(b"1e999"),
    manifest_with_nan=manifest(b'{"metadata":NaN}'),
    manifest_with_a_name_twice=manifest(b'{"format":1,"format":2}'),
    manifest_with_a_huge_number=manifest(b'{"samples":' + b"9" * 10**6 + b"}"),
    manifest_deeper_than_the_parser=manifest(b'{"a":' * 10**5 + b"1" + b"}" * 10**5),
)  # fmt: skip
CASES.add_all(
    "R22", CorruptStoreError, "nested deeper|not JSON",
    metadata_too_deep=manifest(b'{"metadata":' + b"[" * 100 + b"]" * 100 + b"}"),
    metadata_far_too_deep=manifest(b'{"metadata":' + b"[" * 900 + b"]" * 900 + b"}"),
)  # fmt: skip
CASES.add_all(
    "R23", UnsupportedError, "this ocrstore reads format 1",
    major_2=edit_fields(format={"major": 2, "minor": 0}, columns="changed", samples=None),
    major_0=edit_fields(format={"major": 0, "minor": 9}),
)  # fmt: skip
CASES.add_all(
    "R24", UnsupportedError, "needs the feature",
    unknown_feature=edit_fields(required_features=["encryption"]),
    feature_that_is_no_text=edit_fields(required_features=[3]),
)  # fmt: skip
CASES.add_all(
    "R25", CorruptStoreError, "field|history",
    format_missing=edit_fields(format=None),
    format_a_text=edit_fields(format="1.0"),
    major_a_text=edit_fields(format={"major": "1", "minor": 0}),
    minor_missing=edit_fields(format={"major": 1}),
    minor_negative=edit_fields(format={"major": 1, "minor": -1}),
    features_missing=edit_fields(required_features=None),
    samples_negative=edit_fields(samples=-1),
    samples_a_bool=edit_fields(samples=True),
    samples_a_float=edit_fields(samples=5.0),
    samples_absurd=edit_fields(samples=2**31),
    groups_a_text=edit_fields(groups="1"),
    columns_an_object=edit_fields(columns={}),
    history_an_object=edit_fields(history={}),
    history_of_numbers=edit_fields(history=[1]),
    metadata_a_list=edit_fields(metadata=[]),
)  # fmt: skip
CASES.add_all(
    "R26", CorruptStoreError, "says generation", other_generation=edit_fields(generation=3)
)
CASES.add_all(
    "R27", CorruptStoreError, "hexadecimal",
    fingerprint_short=edit_fields(fingerprint="abc"),
    fingerprint_upper_case=edit_fields(fingerprint="A" * 64),
)  # fmt: skip
CASES.add_all(
    "R27",
    CorruptStoreError,
    "'fingerprint' is missing",
    fingerprint_number=edit_fields(fingerprint=1),
)
CASES.add_all(
    "R28", CorruptStoreError, "column",
    column_a_text=edit_fields(columns=["image"]),
    column_without_name=column(name=None),
    column_named_key=column(name="key"),
    column_named_twice=column(name="image"),
    column_with_odd_name=column(name="a b"),
    column_with_long_name=column(name="a" * 64),
    column_of_objects=column(dtype="object"),
    column_dtype_a_list=column(dtype=["uint8"]),
    column_dtype_alias=column(dtype="<f2"),
    column_shape_missing=column(shape=None),
    column_shape_negative=column(shape=[-1, 48]),
    column_shape_fraction=column(shape=[1.5]),
    column_shape_texts=column(shape=["48"]),
    column_shape_bool=column(shape=[True]),
    column_shape_absurd=column(shape=[2**31, 1]),
    column_shape_too_large=column(shape=[2**31 - 1, 2**31 - 1]),
    column_shape_empty_but_absurd=column(shape=[0, 2**31 - 1, 2**31 - 1, 2**31 - 1]),
    column_of_9_dimensions=column(shape=[1] * 9),
    column_codec_unknown=column(codec="brotli"),
    column_codec_missing=column(codec=None),
    column_jpeg_of_floats=column(codec="jpeg"),
    column_file_of_floats=column(codec="file"),
    column_codec_without_its_feature=edit_fields(required_features=[]),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=CASES.names)
def test_wrong_files_are_refused_with_a_remedy(case, tmp_path):
    """Each wrong file gives the right error, which names the file and says what to do."""
    check_refusal(case, tmp_path / "wrong.ocrs")


def test_a_newer_minor_version_is_read(tmp_path):
    """A newer minor version only adds what may be ignored (rule "R23")."""
    path = tmp_path / "newer.ocrs"
    write_store(path)
    newer = {"format": {"major": 1, "minor": 7, "patch": 3}, "invented": {"later": [1]}}
    craft.edit_manifest(path, lambda record: record.update(newer))
    craft.edit_manifest(path, lambda record: record["columns"][0].update(unit="pixels"))
    store = ocrstore.open(path)
    assert store.snapshot.manifest.version == (1, 7)
    assert store["one"][:].tolist() == [0, 1, 2, 3, 4]


def test_crafting_alone_does_no_harm(tmp_path):
    """Values rewritten without a change make a store that opens: the table tests the change."""
    path = tmp_path / "same.ocrs"
    write_store(path)
    craft.edit_manifest(path, lambda record: None)
    craft.put_table(path, craft.index_table(path))
    craft.edit_place(path, "image", 2)
    store = ocrstore.open(path)
    assert store["image"][3].shape == (30, 53, 3)
    assert store.attributes(4)["text"] == "word 4"


def test_files_cut_at_any_length(tmp_path):
    """A file cut anywhere is refused, or nothing that is read was in the part that is gone."""
    path = tmp_path / "cut.ocrs"
    write_store(path)
    data = path.read_bytes()
    whole = ocrstore.open(path)
    wanted = {name: [a.tobytes() for a in whole[name]] for name in whole.columns}
    pages = range(0, len(data), 4096)
    lengths = {max(0, page + step) for page in pages for step in (-1, 0, 1, 16, 17, 64, 100)}
    for length in sorted(lengths - {len(data)}):
        path.unlink()  # a mapped file must not be cut in place
        path.write_bytes(data[:length])
        try:
            store = ocrstore.open(path)
        except (CorruptStoreError, NotAStoreError) as exc:
            assert REMEDY.search(str(exc)), exc
            continue
        # only pages of the free list were cut off: no reader needs them, and verify says so
        assert not ocrstore.verify(path).ok
        assert {name: [a.tobytes() for a in store[name]] for name in store.columns} == wanted
