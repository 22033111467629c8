"""Owns one store as training reads it: whole pictures through a transform, maps drawn after it."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from ocrstore.errors import OCRStoreError, StoreChangedError
from ocrstore.stopwatch import lap
from ocrstore.torch._rows import AnyArray, IntArray, RowLayout
from ocrstore.torch.annotations import polygons_in_view, raw_size
from ocrstore.torch.assembly import map_fresh
from ocrstore.torch.augment import Augmentation, Transform, explain
from ocrstore.torch.collate import Computed
from ocrstore.torch.memory import best_strategy
from ocrstore.torch.recorded import Annotation
from ocrstore.torch.recycling import keep, keep_half
from ocrstore.torch.view import PICTURE, TENSOR, StoreView

if TYPE_CHECKING:
    from ocrstore.maps import MapParams

_MAPS = ("prob_map", "thresh_map", "prob_mask", "thresh_mask")


class TrainingView:
    """Computes transformed samples of one store. One thread at a time."""

    def __init__(
        self,
        view: StoreView,
        transform: Transform,
        map_params: MapParams | None,
        *,
        fuse: bool = True,
    ) -> None:
        self._view = view
        self._augment = Augmentation(transform, fuse=fuse, before_pixels=view.check)
        self._params = map_params
        self._maps = [name for name in view.columns if name in _MAPS] or (
            list(_MAPS) if view.ref.columns is None else []
        )
        self._whole = PICTURE in view.store.columns

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the columns that samples are computed from."""
        return (PICTURE,) if self._whole else (TENSOR,)

    def compute(self, row: int, number: int) -> Computed:
        """Return a row after the transform; `number` is its row in the data set."""
        view = self._view
        view.check()
        try:
            annotation = view.recorded.annotation(row)
            if not self._whole:
                annotation = Annotation(
                    polygons_in_view(view, row), annotation.ignored, annotation.texts
                )
            lap("annotations")
            picture = self._picture(row)
            lap("picture")
            made = self._augment(picture, annotation, row=number)
            # what was planned is drawn into memory of its own, that is used again
            planned = not self._augment.writes
            computed = Computed(image=made.image if planned else keep(made.image))
            lap("annotations")
            computed.update(self._draw(made.image.shape, made.annotation))
        except StoreChangedError:
            raise  # no fault of the transform
        except Exception as exc:  # a transform may raise anything; OpenCV has errors of its own
            raise self._explained(exc, row) from exc
        computed["inverse_matrix"] = made.inverse_matrix
        computed["polygons"] = made.annotation.polygons
        computed["ignored"] = made.annotation.ignored
        computed["texts"] = made.annotation.texts
        computed["image_filename"] = view.key(row)
        computed["raw_size"] = raw_size(view, row)
        computed["orientation"] = int(view.recorded.number("orientation", row) or 1)
        computed["row"] = number
        return computed

    def _explained(self, exc: Exception, row: int) -> OCRStoreError:
        where = f"{self._view.path}: sample {self._view.key(row)!r} (row {row})"
        return explain(exc, where)

    def _picture(self, row: int) -> AnyArray:
        """Return the picture, as memory that a transform may write on if it does; seldom a copy."""
        view = self._view
        column = view.store[PICTURE] if self._whole else view.column(TENSOR)
        # again: reading the annotation takes longer than asking
        view.check()
        if not self._augment.writes:
            return np.asarray(column[row])
        if column.spec.is_raw and best_strategy() != "copy":
            layout = RowLayout(
                np.asarray(column.offsets[row : row + 1], np.int64),
                tuple(column.shapes[row].tolist()),
                column.spec.numpy_dtype,
            )
            first: IntArray = np.zeros(1, np.int64)
            mapped = map_fresh(view.open_file(), layout, first)
            if mapped is not None:
                return np.asarray(mapped[0])
        return view.decoded(column, row)

    def _draw(self, shape: tuple[int, ...], annotation: Annotation) -> dict[str, Any]:
        if not self._maps:
            return {}
        from ocrstore.maps import MAX_POINTS, draw_maps

        # what the build could not draw either; its report told so
        drawable = [len(polygon) <= MAX_POINTS for polygon in annotation.polygons]
        maps = draw_maps(
            list(compress(annotation.polygons, drawable)),
            list(compress(annotation.ignored, drawable)),
            shape[0],
            shape[1],
            params=self._map_params(),
        )
        lap("map drawing")
        drawn = {name: getattr(maps, name) for name in self._maps}
        halved = {
            name: keep_half(array) if array.dtype == np.float32 else array
            for name, array in drawn.items()
        }
        lap("float16")
        return halved

    def _map_params(self) -> MapParams:
        if self._params is None:
            from ocrstore.maps import MapParams

            record = (self._view.recipe or {}).get("recipe", {})
            self._params = MapParams(**record.get("maps", {}))
        return self._params
