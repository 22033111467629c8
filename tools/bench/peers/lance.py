"""Lance: binary columns, random access by `take` for whole batches, workers by spawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tools.bench.peers.base import ARRAYS, as_it_is, batch_of_table, torch_loader
from tools.bench.prepared import Prepared, pack_polygons

TITLE = "Lance"
REQUIREMENTS = ("pylance==14.0.2",)
NOTE = (
    "Large binary columns with its default compression (fixed-size lists took four times as long), "
    "`take` of a batch's rows, viewed as arrays; workers by spawn, as it is not fork-safe."
)


def build(prepared: Prepared, folder: Path) -> None:
    import lance
    import pyarrow as pa

    fields = [pa.field(name, pa.large_binary()) for name in ARRAYS]
    fields += [pa.field("polygons", pa.binary()), pa.field("image_filename", pa.string())]
    shape = ",".join(str(side) for side in prepared.images.shape[1:])
    schema = pa.schema(fields, metadata={"shape": shape})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(prepared), 16):
            part = slice(start, start + 16)
            columns = [
                pa.array(
                    [row.tobytes() for row in getattr(prepared, name)[part]], pa.large_binary()
                )
                for name in ARRAYS
            ]
            polygons = [pack_polygons(p) for p in prepared.polygons[part]]
            columns.append(pa.array(polygons, pa.binary()))
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
        return batch_of_table(table, self._view)

    def _view(self, part, name: str, dtype: str) -> np.ndarray:
        """Return the rows' bytes, which follow each other in one buffer, as one numpy array."""
        _, offsets, values = part.buffers()
        start = int(np.frombuffer(offsets, np.int64)[part.offset])
        count = len(part) * int(np.prod(self.shapes[name]))
        first = np.frombuffer(values, np.uint8)[start:].view(dtype)
        return first[:count].reshape(-1, *self.shapes[name])


def loader(folder: Path, *, prepared: Path, **options):
    if options["workers"]:
        options["multiprocessing_context"] = "spawn"
    return torch_loader(Rows(folder), collate_fn=as_it_is, **options)
