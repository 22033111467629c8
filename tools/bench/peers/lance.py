"""Lance: fixed-size lists, random access by `take` for whole batches, its fork-safe loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import torch_loader
from tools.bench.prepared import Prepared, pack_polygons, unpack_polygons

TITLE = "Lance"
REQUIREMENTS = ("pylance==14.0.2",)
NOTE = "`take` of a batch's rows, viewed as numpy arrays; workers by spawn, as it is not fork-safe."
ARRAYS = {"images": "uint8", "prob_maps": "float16", "thresh_maps": "float16"}


def build(prepared: Prepared, folder: Path) -> None:
    import lance
    import pyarrow as pa

    kinds = {"uint8": pa.uint8(), "float16": pa.float16()}
    fields = [
        pa.field(name, pa.list_(kinds[dtype], int(np.prod(getattr(prepared, name).shape[1:]))))
        for name, dtype in ARRAYS.items()
    ]
    fields += [pa.field("polygons", pa.binary()), pa.field("image_filename", pa.string())]
    shape = ",".join(str(side) for side in prepared.images.shape[1:])
    schema = pa.schema(fields, metadata={"shape": shape})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(prepared), 16):
            part = slice(start, start + 16)
            columns = []
            for field in schema:
                if field.name in ARRAYS:
                    flat = np.ascontiguousarray(getattr(prepared, field.name)[part]).reshape(-1)
                    columns.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
            columns.append(
                pa.array([pack_polygons(p) for p in prepared.polygons[part]], pa.binary())
            )
            columns.append(pa.array(prepared.keys[part]))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    lance.write_dataset(batches(), str(folder / "samples.lance"), schema=schema)


class Rows(torch.utils.data.Dataset):
    def __init__(self, folder: Path) -> None:
        import lance

        self.path = str(folder / "samples.lance")
        self.samples = None
        opened = lance.dataset(self.path)
        self.count = opened.count_rows()
        side, other, _ = (int(s) for s in opened.schema.metadata[b"shape"].split(b","))
        self.shapes = {"images": (side, other, 3)} | dict.fromkeys(
            ("prob_maps", "thresh_maps"), (side, other)
        )

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, rows: list[int]) -> dict:
        import lance

        if self.samples is None:  # in the process that reads
            self.samples = lance.dataset(self.path)
        table = self.samples.take(rows, columns=[*ARRAYS, "polygons", "image_filename"])
        batch: dict = {}
        for name, dtype in ARRAYS.items():
            parts = [
                part.flatten().to_numpy(zero_copy_only=True).view(dtype)
                for part in table[name].chunks
            ]
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
            batch[name] = torch.from_numpy(joined.reshape(-1, *self.shapes[name]))
        polygons = table["polygons"].to_pylist()
        batch["polygons"] = [unpack_polygons(packed) for packed in polygons]
        batch["image_filename"] = table["image_filename"].to_pylist()
        return batch


def as_it_is(batch: dict) -> dict:
    return batch


def loader(folder: Path, *, prepared: Path, **options):
    import warnings

    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    if options["workers"]:
        options["multiprocessing_context"] = "spawn"
    return torch_loader(Rows(folder), collate_fn=as_it_is, **options)
