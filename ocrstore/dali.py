"""Load batches through NVIDIA DALI, which decodes, warps and recolours the pictures.

The host does the rest, in a DataLoader and its workers: it draws a random matrix for each picture,
moves the polygons by it and draws the maps. DALI gets the matrix beside the picture, and the
picture where it lies in the file, or as the stored JPEG file. It counts coordinates from the outer
corner of the first pixel, as `ocrstore.geometry` does, so it takes the matrix as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.augment import BasicAugmentation
from ocrstore.augment.basic import move_points
from ocrstore.decode import open_picture
from ocrstore.errors import CorruptStoreError, DecodeError, SchemaError, needs
from ocrstore.format.codecs import check_row_nbytes, row_limit
from ocrstore.schema import INVERSE_MATRIX
from ocrstore.store import StoredColumn

with needs("torch"):
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.dlpack import from_dlpack

    from ocrstore.torch.augmented import Augmenter
    from ocrstore.torch.batch import Batch
    from ocrstore.torch.collate import Computed, plural_of
    from ocrstore.torch.dataset import OCRStoreDataset
    from ocrstore.torch.samplers import ResumableSampler
    from ocrstore.torch.store_view import StoreView

with needs("dali"):
    from nvidia.dali import Pipeline, fn, types

__all__ = ["DALILoader", "pipeline"]

_FACTORS = "colour_factors"
"""In batches of the host: the factors of brightness, contrast and saturation."""
_JPEG = b"\xff\xd8\xff"
"""The first bytes of a JPEG file."""


class DALILoader:
    """Yields the batches of a data set, with the pixels computed by DALI.

    Takes the place of a DataLoader for `OCRStoreDataset(..., transform=BasicAugmentation(...))`:
    batches have the same keys, shapes and dtypes; with a GPU, their pictures and maps are there.
    Each pass is one epoch of the sampler, with the last batch as large as what is left, so ranks
    are dealt their shares and an epoch is resumed as with any `ResumableSampler`. A Lightning
    Trainer takes it as a loader, and saves its state.

    You own the tensors of a batch: DALI does not use their memory again while they are referenced.
    Random numbers are drawn as by the data set. One pass at a time; not thread-safe.
    """

    def __init__(
        self,
        dataset: OCRStoreDataset,
        *,
        batch_size: int,
        sampler: ResumableSampler | None = None,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
        num_threads: int = 2,
        prefetch: int = 2,
        **workers: Any,
    ) -> None:
        """Prepare loading; nothing is started before the first batch.

        Args:
            dataset: With a `BasicAugmentation` as its transform.
            batch_size: Samples in a batch.
            sampler: The order; a shuffled `ResumableSampler` if not given.
            drop_last: Leave out the last batch if it is smaller.
            device: `"cpu"`, or the GPU on which DALI runs.
            num_threads: Threads of DALI.
            prefetch: Batches that DALI has under way, at least 2.
            **workers: Passed to the DataLoader of the host's part: `num_workers=2`, ...

        Raises:
            SchemaError: The data set has another transform, no samples, or hands out float32 or
                numpy arrays.
        """
        if prefetch < 2:
            raise ValueError(f"prefetch={prefetch}: expected at least 2")
        self.dataset = dataset
        self.sampler = ResumableSampler(dataset) if sampler is None else sampler
        self.batch_size = batch_size
        self.device = torch.device(device)
        self._host = _HostDataset.of(dataset)
        self._loader: DataLoader[Any] = DataLoader(
            self._host, batch_size, sampler=self.sampler, drop_last=drop_last, **workers
        )
        self._num_threads, self._prefetch = num_threads, prefetch
        self._unused: list[tuple[_Source, Pipeline]] = []
        self._consumed: int | None = None
        """Samples of the epoch that were handed out; None between epochs."""

    def __len__(self) -> int:
        """Return the batches of a whole epoch of this rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        """Load an epoch, or the rest of one that is resumed."""
        # a generator: nothing starts before the first batch, and a pipeline that has prefetched
        # batches of a pass that was broken off is not used again
        source, pipe = self._unused.pop() if self._unused else self.build()
        self._consumed = self.sampler.start
        while True:
            try:
                outputs = pipe.run()
            except StopIteration:  # of an epoch without samples
                return
            except RuntimeError as exc:
                if source.sent:
                    exc.add_note(f"in a batch of {source.sent[0]['image_filename']}")
                raise
            batch = source.complete(outputs)
            self._consumed += batch.batch_size
            if not source.at_end:
                yield batch
                continue
            # before the last batch is handed out, because Lightning does not ask for more
            pipe.reset()
            self._unused.append((source, pipe))
            self._consumed = None
            yield batch
            return

    def build(self) -> tuple[_Source, Pipeline]:
        """Return a new pipeline and what it reads from."""
        source = _Source(self._host, self._loader, ahead=self._prefetch)
        on_gpu = self.device.type == "cuda"
        number = self.device.index
        if self.device == torch.device("cuda"):  # no number is given
            number = torch.cuda.current_device()
        pipe = Pipeline(
            batch_size=self.batch_size,
            num_threads=self._num_threads,
            device_id=number,
            prefetch_queue_depth=self._prefetch,
        )
        with pipe:
            pipe.set_outputs(*_graph(source, self._host, on_gpu=on_gpu))
        pipe.build()
        return source, pipe

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch that was handed out."""
        return self.sampler.state_dict(consumed=self._consumed)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state: the next pass loads the rest of that epoch."""
        self.sampler.load_state_dict(state)
        self._consumed = None


def pipeline(dataset: OCRStoreDataset, **options: Any) -> Pipeline:
    """Return a built DALI pipeline over a data set, for loops and iterators of DALI's own.

    Its outputs are the pictures (H, W, 3), `inverse_matrix`, `rows`, and the maps in the order of
    the view's columns. At the end of an epoch `run()` raises StopIteration; `reset()` starts the
    next one.

    Args:
        dataset: With a `BasicAugmentation` as its transform.
        **options: Those of `DALILoader`.
    """
    return DALILoader(dataset, **options).build()[1]


def _graph(source: _Source, host: _HostDataset, *, on_gpu: bool) -> list[Any]:
    """Define the operators of the current pipeline; return its outputs."""
    names = host.targets
    pictures, matrices, factors, rows, *targets = fn.external_source(
        source=source,
        num_outputs=4 + len(names),
        layout=["" if host.encoded else "HWC", *[""] * (3 + len(names))],
        no_copy=True,
    )
    if host.encoded:
        pictures = fn.decoders.image(
            pictures, device="mixed" if on_gpu else "cpu", output_type=types.RGB
        )
    elif on_gpu:
        pictures = pictures.gpu()
    # the matrix leads from the result to the picture, which is what `inverse_map` expects
    images = fn.warp_affine(
        pictures,
        matrix=fn.cast(matrices[:2], dtype=types.FLOAT),
        inverse_map=True,
        size=host.size,
        fill_value=0,
    )
    images = fn.color_twist(
        images, brightness=factors[0], contrast=factors[1], saturation=factors[2]
    )
    return [images, matrices, rows, *(target.gpu() if on_gpu else target for target in targets)]


class _Source:
    """Gives DALI the inputs of one batch after another; raises StopIteration after each epoch."""

    def __init__(self, host: _HostDataset, loader: DataLoader[Any], *, ahead: int) -> None:
        self._host = host
        self._loader = loader
        self._batches: Iterator[Batch] | None = None
        self.sent: deque[Batch] = deque(maxlen=ahead + 2)
        """Batches of the host whose pixels are not there yet."""
        # DALI reads the arrays in place: until their outputs are used, on a GPU a little longer
        self._kept: deque[list[Any]] = deque(maxlen=ahead + 2)

    def __call__(self) -> list[Any]:
        if self._batches is None:
            self._batches = iter(self._loader)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches = None
            raise
        arrays = [
            [self._host.picture(row) for row in batch["rows"].tolist()],
            batch[INVERSE_MATRIX].numpy(),
            batch.pop(_FACTORS).numpy(),
            batch["rows"].numpy(),
            *(batch.pop(plural_of(name)).numpy() for name in self._host.targets),
        ]
        self.sent.append(batch)
        self._kept.append(arrays)
        return arrays

    @property
    def at_end(self) -> bool:
        """Return whether all batches of the epoch were completed."""
        return self._batches is None and not self.sent

    def complete(self, outputs: Any) -> Batch:
        """Return the oldest batch with the outputs of the pipeline in it."""
        batch = self.sent.popleft()
        images, _, _, *targets = (from_dlpack(output.as_tensor()) for output in outputs)
        batch["images"] = images.permute(0, 3, 1, 2)
        for name, target in zip(self._host.targets, targets, strict=True):
            batch[plural_of(name)] = target
        return batch


class _HostDataset(OCRStoreDataset):
    """Computes all of a sample but its pixels."""

    targets: Sequence[str] = ()
    """Names of the maps, or of what else is drawn; not known in workers, which do not need them."""

    @classmethod
    def of(cls, dataset: OCRStoreDataset) -> _HostDataset:
        """Return the host's part of a data set."""
        if not isinstance(dataset.transform, BasicAugmentation):
            raise SchemaError(
                f"{dataset!r}: its transform is {type(dataset.transform).__name__}; DALI computes"
                " that of OCRStoreDataset(..., transform=BasicAugmentation(height, width)) only."
            )
        if any(view.ref.normalize or view.ref.numpy for view in dataset.views.sets):
            raise SchemaError(
                f"{dataset!r}: DALI hands out uint8 tensors; leave out normalize= and numpy=, and"
                " normalise on the device."
            )
        if not len(dataset):
            raise SchemaError(f"{dataset!r}: there is nothing to load.")
        host = cls.__new__(cls)
        host.__setstate__(dataset.__getstate__())
        with torch.random.fork_rng(devices=[]):
            first = host._compute(0)
        host.targets = [
            name
            for name, value in first.items()
            if isinstance(value, np.ndarray) and name not in (INVERSE_MATRIX, _FACTORS)
        ]
        return host

    def _prepare(self) -> None:
        super()._prepare()
        transform = self.transform
        assert isinstance(transform, BasicAugmentation)
        self.size = transform.size
        sets = self.views.sets
        self._augmenter = _HostAugmenter(
            sets, _PointsOnly(transform), self._map_params, targets=self._targets
        )
        (name,) = self._augmenter.reads
        pictures = [one.all_columns[one.columns.get(name, name)] for one in sets]
        self.encoded = all(column.codec in ("jpeg", "file") for column in pictures)
        """Whether pictures are handed out as files, for DALI to decode."""

    def picture(self, row: int) -> npt.NDArray[np.uint8]:
        """Return a picture or, if they are `encoded`, its file; in place where that is stored."""
        assert self._augmenter is not None
        view, row = self._locate(row)
        column = self._augmenter.pictures(view)
        view.check()
        if not self.encoded:
            return np.asarray(column[row])
        data = column.stored(row)
        if bytes(data[:3]) == _JPEG:
            _check_header(view, column, row)
            return np.frombuffer(data, np.uint8)
        # of other formats, and pixels without a file, DALI would not make the same picture
        pixels = np.asarray(column[row])
        header = b"P6 %d %d 255\n" % (pixels.shape[1], pixels.shape[0])
        return np.concatenate([np.frombuffer(header, np.uint8), pixels.reshape(-1)])


def _check_header(view: StoreView, column: StoredColumn[Any], row: int) -> None:
    """Raise an error if a JPEG is not of the recorded size, or is larger than allowed."""
    where = f"{view.path}: sample {view.key(row)!r} (row {row}), column {column.name!r}"
    height, width, _ = shape = tuple(column.shapes[row].tolist())
    check_row_nbytes(column.spec, shape, row_limit(view.ref.max_row_nbytes), where=where)
    try:
        found = open_picture(bytes(column.stored(row)), max_pixels=height * width)
    except DecodeError as exc:
        raise type(exc)(f"{where}: {exc}") from exc
    upright = found.size if found.orientation <= 4 else found.size[::-1]
    if upright != (width, height):
        raise CorruptStoreError(
            f"{where}: its header promises {upright[0]} x {upright[1]} pixels, recorded are"
            f" {width} x {height}."
        )


class _HostAugmenter(Augmenter):
    """Computes all of a sample but its pixels."""

    def compute(self, view: StoreView, row: int, number: int) -> Computed:
        computed = super().compute(view, row, number)
        del computed["image"]
        computed[_FACTORS] = np.array(self._augment.transform.factors, np.float32)
        return computed

    def _picture(self, view: StoreView, row: int) -> npt.NDArray[np.uint8]:
        return _blank(tuple(self.pictures(view).shapes[row].tolist()))


class _PointsOnly:
    """The geometry of an augmentation, for points; the pixels that it returns are blank."""

    writes = False

    def __init__(self, augmentation: BasicAugmentation) -> None:
        self._augmentation = augmentation
        self.random_generator = augmentation.random_generator
        self.factors = (1.0, 1.0, 1.0)
        """What happens to the colours of the last picture."""

    def __call__(
        self, *, image: npt.NDArray[np.uint8], keypoints: npt.NDArray[Any]
    ) -> dict[str, Any]:
        size = (image.shape[0], image.shape[1])
        matrix, factors = self._augmentation.draw(size, self.random_generator)
        self.factors = (1.0, 1.0, 1.0) if factors is None else factors
        blank = _blank((*self._augmentation.size, 3))
        return {"image": blank, "keypoints": move_points(keypoints, matrix)}


def _blank(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return a read-only picture that takes one byte of memory."""
    return np.broadcast_to(np.uint8(0), shape)
