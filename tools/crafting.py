"""Tools that make wrong stores: whole values rewritten with right hashes, or single bytes changed.

They follow docs/FORMAT.md and use nothing of `ocrstore.format`, so that what they craft does not
depend on what is tested with it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import xxhash

PAGE = 4096
ENGINE: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
MANIFEST, INDEX = b"manifest/00000001", b"index/00000001"
MAGIC = {MANIFEST: b"OCRSMAN1", INDEX: b"OCRSIDX1"}


def environment(path: Path, **options: Any) -> lmdb.Environment:
    """Open a file for writing through liblmdb."""
    options = {"map_size": 2**28, **ENGINE, **options}
    return lmdb.open(str(path), subdir=False, lock=False, sync=False, **options)


def put(path: Path, key: bytes, value: bytes | None) -> None:
    """Replace or remove one value."""
    with environment(path) as env, env.begin(write=True) as transaction:
        if value is None:
            transaction.delete(key)
        else:
            transaction.put(key, value)


def get(path: Path, key: bytes) -> bytes:
    """Return one value."""
    with environment(path) as env, env.begin() as transaction:
        return bytes(transaction.get(key))


def blob(own_magic: bytes, payload: bytes, **wrong: Any) -> bytes:
    """Wrap a payload (FORMAT.md 4); `wrong` overrides fields, before or after the hashes."""
    fields = {
        "magic": own_magic,
        "nbytes": len(payload),
        "digest": xxhash.xxh3_64_intdigest(payload),
        "number": 1,
        "zero": 0,
        **wrong,
    }
    padding = fields.pop("padding", bytes(max(0, PAGE - 16 - 48 - len(payload))))
    header_digest = fields.pop("header_digest", None)
    header = struct.pack("<8sQQQQ", *fields.values())
    if header_digest is None:
        header_digest = xxhash.xxh3_64_intdigest(header)
    return header + struct.pack("<Q", header_digest) + payload + padding


def payload_of(path: Path, key: bytes) -> bytes:
    """Unwrap a value."""
    value = get(path, key)
    return value[48 : 48 + struct.unpack_from("<Q", value, 8)[0]]


def put_payload(path: Path, key: bytes, payload: bytes, **wrong: Any) -> None:
    """Replace the payload of the manifest or the index; hashes are right unless said otherwise."""
    put(path, key, blob(MAGIC[key], payload, **wrong))


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest's JSON in place."""
    record = json.loads(payload_of(path, MANIFEST))
    change(record)
    put_payload(path, MANIFEST, json.dumps(record).encode())


def index_table(path: Path) -> pa.Table:
    """Return the index, in memory of its own."""
    return pa.ipc.open_file(payload_of(path, INDEX)).read_all()


def arrow_file(*tables: pa.Table, **options: Any) -> bytes:
    """Encode tables of one schema as an Arrow IPC file, one record batch each."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, tables[0].schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        for table in tables:
            writer.write_table(table)
    return sink.getvalue().to_pybytes()


def put_table(path: Path, *tables: pa.Table, **options: Any) -> None:
    """Replace the index."""
    put_payload(path, INDEX, arrow_file(*tables, **options))


def edit_place(path: Path, column: str, row: int, **parts: Any) -> None:
    """Change offset, nbytes, shape or hash of one row in the index."""
    table = index_table(path)
    places = table[column].to_pylist()
    places[row].update(parts)
    position = table.schema.get_field_index(column)
    field = table.schema.field(position)
    put_table(path, table.set_column(position, field, pa.array(places, field.type)))


def rows_of(path: Path, column: str) -> list[dict[str, Any]]:
    """Return a column's places."""
    return index_table(path)[column].to_pylist()


def patch(path: Path, offset: int, data: bytes) -> None:
    """Change bytes of the file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def metas(path: Path) -> list[dict[str, int]]:
    """Read both meta pages (FORMAT.md 3.2)."""
    data = path.read_bytes()
    found = []
    for start in (0, PAGE):
        depth = struct.unpack_from("<H", data, start + 94)[0]
        root, last, transaction = struct.unpack_from("<QQQ", data, start + 128)
        found.append({
            "start": start, "depth": depth, "root": root, "last": last, "transaction": transaction,
        })  # fmt: skip
    return found


def newest_meta(path: Path) -> dict[str, int]:
    """Return the meta page that counts."""
    return max(metas(path), key=lambda meta: meta["transaction"])


def root_page(path: Path) -> int:
    """Return the file offset of the main tree's root page."""
    return newest_meta(path)["root"] * PAGE


def node(path: Path, number: int = -1) -> int:
    """Return the file offset of a node of the root page; the last one by default."""
    data, start = path.read_bytes(), root_page(path)
    count = (struct.unpack_from("<H", data, start + 12)[0] - 16) // 2
    return start + struct.unpack_from("<H", data, start + 16 + 2 * (number % count))[0]


def value_page(path: Path, number: int = -1) -> int:
    """Return the file offset of the first page of a node's value."""
    data, start = path.read_bytes(), node(path, number)
    key_nbytes = struct.unpack_from("<H", data, start + 6)[0]
    return struct.unpack_from("<Q", data, start + 8 + key_nbytes)[0] * PAGE


def meta_page(slot: int, *, root: int, depth: int, last: int, transaction: int) -> bytes:
    """Make a meta page of a store-like LMDB file."""
    none = 2**64 - 1
    page = struct.pack("<QHHHH", slot, 0, 8, 0, 0)
    page += struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 2**20)
    page += struct.pack("<IHHQQQQQ", PAGE, 0x4008, 0, 0, 0, 0, 0, none)
    page += struct.pack("<IHHQQQQQ", 0, 0, depth, 0, 1, 0, 1, root)
    page += struct.pack("<QQ", last, transaction)
    return page.ljust(PAGE, b"\0")


def branch_page(number: int, children: list[tuple[bytes, int]]) -> bytes:
    """Make a branch page."""
    return _tree_page(number, 1, [
        struct.pack("<HHHH", child & 0xFFFF, child >> 16 & 0xFFFF, child >> 32, len(key)) + key
        for key, child in children
    ])  # fmt: skip


def leaf_page(number: int, items: list[tuple[bytes, bytes]]) -> bytes:
    """Make a leaf page with inline values."""
    return _tree_page(number, 2, [
        struct.pack("<HHHH", len(value), 0, 0, len(key)) + key + value for key, value in items
    ])  # fmt: skip


def _tree_page(number: int, flags: int, nodes: list[bytes]) -> bytes:
    body, pointers = b"", []
    for item in reversed(nodes):
        body = item + bytes(len(item) % 2) + body
        pointers.insert(0, PAGE - len(body))
    lower = 16 + 2 * len(nodes)
    head = struct.pack("<QHHHH", number, 0, flags, lower, PAGE - len(body))
    head += struct.pack(f"<{len(nodes)}H", *pointers)
    return head + bytes(PAGE - len(head) - len(body)) + body


def tree_file(path: Path, pages: list[bytes], *, depth: int) -> None:
    """Write a file of two meta pages and these pages, the first of which is the root."""
    last = len(pages) + 1
    head = [meta_page(s, root=2, depth=depth, last=last, transaction=s) for s in (0, 1)]
    path.write_bytes(b"".join(head + pages))
