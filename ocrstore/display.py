"""Show stores, samples and batches: as text, as HTML in a notebook, as a figure of matplotlib."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ocrstore.errors import needs
from ocrstore.keys import shown
from ocrstore.schema import COLUMNS, COUNTED, IGNORED, IMAGE, MAPS

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 360
"""Longest side of a picture in a notebook, in pixels."""
_MOST_POLYGONS = 1000
_MOST_CHARACTERS = 60

Line = tuple[str, str, str]
"""Name, dtype or type, shape or value."""


class Record(Protocol):
    """A sample or a batch, as `ocrstore.torch` has them; this module needs no torch."""

    def __getitem__(self, name: str, /) -> Any: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a value, or `default` if there is no such name."""


def shape_in_words(shape: Iterable[int | None]) -> str:
    """Return a shape as 640 x 640 x 3; a size that varies is a question mark."""
    return " x ".join("?" if size is None else str(size) for size in shape) or "scalar"


def store_table(store: Any) -> tuple[str, list[Line]]:
    """Return a title, and name, dtype, shape and codec of each column of a `Store`."""
    lines = [
        (name, spec.dtype, f"{shape_in_words(spec.shape)}, {spec.codec}")
        for name, spec in store.columns.items()
    ]
    place = store.path if store.presence is None else store.presence.url
    return f"ocrstore.Store {place!r}: {len(store)} samples", lines


def describe(value: Any) -> tuple[str, str]:
    """Return the type of a value, and its shape or length or, where it is short, the value."""
    if hasattr(value, "dtype"):
        kind = str(value.dtype).removeprefix("torch.")
        device = str(getattr(value, "device", "cpu"))
        where = "" if device in ("cpu", "meta") else f" {device}"
        return kind + where, shape_in_words(value.shape)
    if isinstance(value, list):
        return "list", str(len(value))
    text = repr(value)
    if len(text) > _MOST_CHARACTERS:
        text = text[:_MOST_CHARACTERS] + "…"
    return type(value).__name__, text


def as_text(title: str, lines: Sequence[Line]) -> str:
    """Return a title and a table with a line for each name."""
    widths = [max((len(line[place]) for line in lines), default=0) for place in (0, 1)]
    table = (f"\n  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines)
    return shown(title) + "".join("\n" + shown(line[1:]) for line in table)


def as_html(title: str, lines: Sequence[Line], picture: str = "") -> str:
    """Return the same as HTML, with a picture above the table."""
    cell = '<td style="text-align:left">{}</td>'
    rows = "".join(
        "<tr>" + "".join(cell.format(html.escape(shown(text))) for text in line) + "</tr>"
        for line in lines
    )
    heading = f"<div><b>{html.escape(shown(title))}</b></div>"
    return f"<div>{heading}{picture}<table>{rows}</table></div>"


def picture_html(sample: Record) -> str:
    """Return a sample's picture with outlines as SVG; empty without a picture or without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return ""
    if IMAGE not in sample:
        return ""
    pixels = _pixels(sample[IMAGE])
    height, width = pixels.shape[:2]
    small = Image.fromarray(pixels)
    small.thumbnail((2 * SIDE, 2 * SIDE))  # twice, for fine screens
    data = io.BytesIO()
    small.save(data, "JPEG", quality=85)
    uri = f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
    scale = min(1.0, SIDE / max(height, width))
    size = f'width="{width * scale:.0f}" height="{height * scale:.0f}"'
    drawn = "".join(
        f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points.tolist())}" fill="none"'
        f' stroke="rgb{colour}" stroke-width="1.5" vector-effect="non-scaling-stroke"/>'
        for points, colour in _outlines(sample)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" {size} style="max-width:100%">'
        f'<image href="{uri}" width="{width}" height="{height}"/>{drawn}</svg>'
    )


def plot(record: Record, *, limit: int = 4) -> Figure:
    """Draw a sample, or the first ones of a batch: the picture with its polygons, and each map.

    Outlines are green, those of ignored polygons red. Pictures that are not uint8 (normalized ones)
    are stretched to the full range. A notebook shows the figure where it is the value of a cell;
    `plot(...).savefig("sample.png")` writes it.

    Args:
        record: What a data set or a loader returns.
        limit: The most samples of a batch to draw.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    with needs("plot"):
        import matplotlib as mpl
        from matplotlib import pyplot as plt

    samples = _samples(record, limit)
    names = [name for name in (IMAGE, *MAPS) if name in samples[0]] if samples else []
    if not names:
        raise TypeError(f"plot: expected a picture or maps, found {', '.join(record) or 'nothing'}")
    size = (3.2 * len(names), 3.4 * len(samples))
    figure, grid = plt.subplots(len(samples), len(names), figsize=size, squeeze=False)
    for axes, sample in zip(grid, samples):
        for place, name in enumerate(names):
            _draw(axes[place], sample, name, outlined=place == 0)
    figure.tight_layout()
    if "inline" in mpl.get_backend():
        plt.close(figure)  # else a notebook would show it twice, as the value of the cell, too
    return figure


def _draw(axes: Axes, sample: Record, name: str, *, outlined: bool) -> None:
    title = name
    if name == IMAGE:
        axes.imshow(_pixels(sample[IMAGE]))
        title = str(sample.get("image_filename", name))
    else:
        axes.imshow(_array(sample[name])[0], cmap="magma", vmin=0, vmax=1)
    for points, colour in _outlines(sample) if outlined else ():
        rgb = tuple(value / 255 for value in colour)
        axes.fill(*points.T, fill=False, edgecolor=rgb, linewidth=1.2)
    axes.set_title(shown(title), fontsize=9, parse_math=False)  # a key may hold dollars
    axes.set_axis_off()


def _samples(record: Any, limit: int) -> list[dict[str, Any]]:
    """Return the samples of a batch, or the one sample, as dicts."""
    if not hasattr(record, "keys") or not hasattr(record, "get"):
        raise TypeError(f"plot: expected a sample or a batch, found {type(record).__name__}")
    plurals = {COLUMNS[name].batch_name: name for name in (IMAGE, *MAPS)}
    is_batch = any(name in record for name in plurals)
    names = plurals if is_batch else {name: name for name in plurals.values()}
    names |= {name: name for name in ("polygons", "ignored", "image_filename")}
    found = {singular: record[name] for name, singular in names.items() if name in record}
    if not is_batch:
        return [found]
    count = max(0, min(limit, len(next(iter(found.values())))))
    return [{name: value[place] for name, value in found.items()} for place in range(count)]


def _outlines(sample: Record) -> list[tuple[npt.NDArray[np.float32], tuple[int, int, int]]]:
    """Return points and colour of each polygon that can be drawn."""
    pairs = zip(sample.get("polygons") or (), sample.get("ignored") or ())
    return [
        (points, IGNORED if skip else COUNTED)
        for points, skip in list(pairs)[:_MOST_POLYGONS]
        if len(points) and np.isfinite(points).all()
    ]


def _array(tensor: Any) -> npt.NDArray[np.float32]:
    """Return a tensor on any device, of any dtype, or an array as float32."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu()
    return np.asarray(tensor, np.float32)


def _pixels(picture: Any) -> npt.NDArray[np.uint8]:
    """Return a CHW tensor as HWC pixels; one that is not uint8 is stretched to the full range."""
    pixels = _array(picture).transpose(1, 2, 0)
    if not str(picture.dtype).endswith("uint8"):
        low, high = pixels.min(), pixels.max()
        pixels = (pixels - low) * (255 / max(high - low, 1e-6))
    return pixels.astype(np.uint8)
