"""Formats of one file for each picture: pictures with annotations beside them, and map files."""

from __future__ import annotations

import io
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ocrstore.exporting.parts import Format, Part, Request, pictures_of
from ocrstore.exporting.sample_reader import Annotated, Region, require_intact
from ocrstore.views import find_view
from ocrstore.whole_file import replaced, write_whole

LIST = "pictures.tsv"
"""The pictures with their annotation files and keys, as `ocrstore build` reads them."""
NUMBERED = "keys.tsv"
"""The map files whose names are not those of their keys, with the keys as JSON."""
_NOT_PORTABLE = re.compile(
    r'[\\<>:"|?*]|^[ .]|[ .]$|^(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)', re.I
)
_PREFIXED = re.compile(r"^(?:poly_)?(?:gt|res)_", re.IGNORECASE)
_MOST_NBYTES = 200
"""Of a part of a path: file systems allow 255, and endings are added."""


class _Pictures(Format):
    """Picture files named by their keys in `images/`, and annotations that name them."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.reader = pictures_of(request)
        suffixes = [self.reader.suffix(row) for row in self.rows]
        keys = [self.store.keys[row] for row in self.rows]
        self.names = [f"images/{name}" for name in file_names(keys, suffixes, self.rows)]

    def parts(self) -> list[Part]:
        """Return a picture for each sample."""
        return [Part(name, (row,)) for name, row in zip(self.names, self.rows, strict=True)]

    def nbytes(self, rows: list[int]) -> list[int]:
        """Return the most bytes of a picture."""
        return [int(nbytes) for nbytes in self.reader.nbytes(rows, (), decoded=True)]

    def encode(self, row: int) -> memoryview:
        """Return the picture."""
        return self.reader.picture(row)[1]

    def write(self, path: Path, samples: Iterator[memoryview]) -> None:
        """Write the picture."""
        path.write_bytes(next(samples))

    def finish(self, folder: Path) -> None:
        """Write the annotations and the list of pictures."""
        files = self.annotate(folder)
        lines = (
            f"{name}\t{files.get(sample.row, '')}\t{_json(sample.key)}\n"
            for name, sample in self.samples()
        )
        _write_text(folder / LIST, lines)

    def samples(self) -> Iterator[tuple[str, Annotated]]:
        """Yield the name of each picture, and its annotation."""
        return ((name, self.reader.read(row)) for name, row in zip(self.names, self.rows))

    def annotated(self) -> Iterator[tuple[str, Annotated]]:
        """Yield those that have an annotation: a picture that is listed counts as annotated."""
        return ((name, sample) for name, sample in self.samples() if sample.annotated)

    def annotate(self, folder: Path) -> dict[int, str]:
        """Write the annotations; return the files of rows that have one of their own."""
        raise NotImplementedError

    def _note(self, count: int, what: str) -> None:
        if count:
            self.notes.append(f"{count} {what}")


class Coco(_Pictures):
    """`annotations.json` of COCO, with texts as COCO-Text has them."""

    def annotate(self, folder: Path) -> dict[int, str]:
        """Write images, annotations and the one category."""
        images = (
            {"id": s.row + 1, "file_name": name, "width": s.width, "height": s.height}
            for name, s in self.annotated()
        )
        regions = ((s.row + 1, region) for _, s in self.annotated() for region in s.regions)
        annotations = (
            _coco(number, image, region) for number, (image, region) in enumerate(regions, start=1)
        )
        _write_text(
            folder / "annotations.json",
            ['{"categories": [{"id": 1, "name": "text"}],\n"images": [\n'],
            _joined(images),
            ['],\n"annotations": [\n'],
            _joined(annotations),
            ["]}\n"],
        )
        return {}


def _coco(number: int, image: int, region: Region) -> dict[str, Any]:
    left, top, right, bottom = region.box
    record = {
        "id": number,
        "image_id": image,
        "category_id": 1,
        "segmentation": [region.flat],
        "bbox": [left, top, right - left, bottom - top],
        "area": region.area,
        "iscrowd": int(region.ignored),
        "ignore": int(region.ignored),
    }
    return record | _given(utf8_string=region.text, language=region.language)


class Paddle(_Pictures):
    """`Label.txt` of PaddleOCR."""

    def annotate(self, folder: Path) -> dict[int, str]:
        """Write a line for each picture."""
        lines = (
            f"{name}\t{_json([_paddle(region) for region in sample.regions])}\n"
            for name, sample in self.annotated()
        )
        _write_text(folder / "Label.txt", lines)
        return {}


def _paddle(region: Region) -> dict[str, Any]:
    # PaddleOCR leaves out regions by these texts alone; `text` is for `ocrstore build`
    hidden = region.ignored != (region.text in ("###", "*"))
    return {
        "transcription": "###" if hidden and region.ignored else region.text,
        "points": region.points,
        "difficult": region.ignored,
        **({"text": region.text} if hidden else {}),
        **_given(language=region.language),
    }


class Mmocr(_Pictures):
    """`annotations.json` of mmocr 1.x."""

    def annotate(self, folder: Path) -> dict[int, str]:
        """Write the list of pictures with their instances."""
        pictures = (
            {
                "img_path": name,
                "height": sample.height,
                "width": sample.width,
                "instances": [_mmocr(region) for region in sample.regions],
            }
            for name, sample in self.annotated()
        )
        about = {
            "dataset_type": "TextDetDataset",
            "task_name": "textdet",
            "category": [{"id": 0, "name": "text"}],
        }
        head = f'{{"metainfo": {_json(about)},\n"data_list": [\n'
        _write_text(folder / "annotations.json", [head], _joined(pictures), ["]}\n"])
        return {}


def _mmocr(region: Region) -> dict[str, Any]:
    record = {"polygon": region.flat, "bbox": region.box, "bbox_label": 0, "ignore": region.ignored}
    return record | _given(text=region.text, language=region.language)


class Words(_Pictures):
    """`annotations.json` with words by picture name."""

    def annotate(self, folder: Path) -> dict[int, str]:
        """Write an object of pictures."""
        pictures = (
            f"{',' if number else ''}{_json(name)}: {_json({'words': _words(sample.regions)})}\n"
            for number, (name, sample) in enumerate(self.annotated())
        )
        _write_text(folder / "annotations.json", ['{"images": {\n'], pictures, ["}}\n"])
        return {}


def _words(regions: list[Region]) -> dict[str, Any]:
    return {
        f"{number:04d}": {
            "points": region.points,
            "transcription": region.text,
            "illegibility": region.ignored,
            **_given(language=region.language),
        }
        for number, region in enumerate(regions)
    }


class LabelMe(_Pictures):
    """A JSON file beside each picture."""

    def annotate(self, folder: Path) -> dict[int, str]:
        """Write a file for each annotated picture."""
        files = dict(zip(self.rows, beside(self.names, ".json"), strict=True))
        written = {}
        languages = unread = 0
        for name, sample in self.annotated():
            languages += sum(region.language is not None for region in sample.regions)
            unread += sum(region.text is None for region in sample.regions)
            record: dict[str, Any] = {
                "version": "5.5.0",
                "flags": {},
                "shapes": [_labelme(region) for region in sample.regions],
                "imagePath": PurePosixPath(name).name,
                "imageData": None,
                "imageHeight": sample.height,
                "imageWidth": sample.width,
            }
            write_whole(folder / files[sample.row], _json(record).encode())
            written[sample.row] = files[sample.row]
        self._note(languages, "languages were left out")
        self._note(unread, "regions without a text got an empty label")
        return written


def _labelme(region: Region) -> dict[str, Any]:
    return {
        "label": region.text or "",  # LabelMe cannot open a file with null
        "points": region.points,
        "group_id": None,
        "shape_type": "polygon",
        "flags": {"ignore": region.ignored},
    }


class Icdar(_Pictures):
    """`gt/gt_NAME.txt` with a line of numbers and text for each region; `###` is ignored."""

    def annotate(self, folder: Path) -> dict[int, str]:
        """Write a file for each annotated picture; polygons if not all regions have four points."""
        poly = any(len(r.points) != 4 for _, sample in self.annotated() for r in sample.regions)
        places = [name.removeprefix("images/") for name in self.names]
        files = dict(zip(self.rows, beside(places, ".txt", prefix="gt_"), strict=True))
        written = {}
        hidden = changed = languages = 0
        for _, sample in self.annotated():
            lines = []
            for region in sample.regions:
                text, odd = _icdar_text(region, poly)
                hidden += region.ignored and region.text != "###"
                changed += odd
                languages += region.language is not None
                numbers = ",".join(map(str, region.flat))
                lines.append(f"{numbers}\n" if text is None else f"{numbers},{text}\n")
            written[sample.row] = f"gt/{files[sample.row]}"
            write_whole(folder / written[sample.row], "".join(lines).encode())
        if poly:
            self.notes.append("not all regions have four points: build it with --format icdar-poly")
        self._note(hidden, "texts of ignored regions became ###")
        self._note(changed, "texts were put on one line, without blanks around them")
        self._note(languages, "languages were left out")
        return written


def _icdar_text(region: Region, poly: bool) -> tuple[str | None, bool]:
    """Return a region's text as the rest of a line, and whether it had to be changed."""
    if region.ignored or region.text is None:
        return "###" if region.ignored else None, False
    text = " ".join(region.text.replace("\0", " ").splitlines()).strip()
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    # a text of several numbers would be read as further points
    if quoted or (poly and "," in text and _is_number(text.partition(",")[0])):
        return '"' + text.replace('"', '""') + '"', text != region.text
    return text, text != region.text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Npz(Format):
    """`NAME.npz` with `prob_map` and `thresh_map`, (1, height, width) float32."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        view = find_view(self.store, request.view, needs=("prob_map", "thresh_map"))
        self._columns = {name: view.columns[name] for name in ("prob_map", "thresh_map")}
        self._keys = [self.store.keys[row] for row in self.rows]
        self._places = file_names(self._keys, [""] * len(self._keys), self.rows)
        self._names = beside(self._places, ".npz")

    def parts(self) -> list[Part]:
        """Return a file for each sample."""
        return [Part(name, (row,)) for name, row in zip(self._names, self.rows, strict=True)]

    def nbytes(self, rows: list[int]) -> list[int]:
        """Return the bytes of the two maps."""
        shapes = self.store[self._columns["prob_map"]].shapes[rows]
        return [8 * int(pixels) for pixels in np.prod(shapes, axis=1, dtype=np.int64)]

    def encode(self, row: int) -> bytes:
        """Return the file; numpy writes no times into it."""
        buffer = io.BytesIO()
        columns = [self.store[self._columns[name]] for name in ("prob_map", "thresh_map")]
        for column in columns:
            require_intact(column, row)
        prob, thresh = (column[row][np.newaxis].astype("<f4") for column in columns)
        np.savez_compressed(buffer, prob_map=prob, thresh_map=thresh)
        return buffer.getvalue()

    def write(self, path: Path, samples: Iterator[bytes]) -> None:
        """Write the file."""
        path.write_bytes(next(samples))

    def finish(self, folder: Path) -> None:
        """Write which files have a number for a name, because their keys are not portable."""
        lines = [
            f"{name}\t{_json(key)}\n"
            for name, place, key in zip(self._names, self._places, self._keys, strict=True)
            if place != key
        ]
        if lines:
            _write_text(folder / NUMBERED, lines)
            self.notes.append(
                f"{len(lines)} files are named by numbers, their keys are in {NUMBERED}; "
                "`ocrstore build --maps` does not find them"
            )


# --- names of files


def file_names(keys: Sequence[str], suffixes: Sequence[str], rows: Sequence[int]) -> list[str]:
    """Return a path for each key: the key itself where every file system takes it, else a number.

    A suffix of another format is replaced. No two paths are equal without case and in Unicode form
    NFC, and none is a folder of another.
    """
    files: set[str] = set()
    folders: set[str] = set()
    names = []
    for key, suffix, row in zip(keys, suffixes, rows, strict=True):
        for name in _candidates(key, suffix, row):
            place = _folded(name)
            above = {str(folder) for folder in PurePosixPath(place).parents}
            if _is_portable(name) and not ({place} | above) & files and place not in folders:
                break
        files.add(place)
        folders |= above
        names.append(name)
    return names


def _candidates(key: str, suffix: str, row: int) -> Iterator[str]:
    if not key.endswith(suffix):
        yield f"{key.rpartition('.')[0]}{suffix}"
        yield f"{key}{suffix}"
    else:
        yield key
    for number in itertools.count():
        yield f"{row:08d}{'_' * number}{suffix}"


def _is_portable(path: str) -> bool:
    return path.isprintable() and all(
        part and len(part.encode()) <= _MOST_NBYTES and not _NOT_PORTABLE.search(part)
        for part in path.split("/")
    )


def beside(names: Sequence[str], ending: str, *, prefix: str = "") -> list[str]:
    """Return the names of files that belong to pictures: `gt_img_1.txt` for `img_1.jpg`.

    If that could mean two pictures anywhere, all are named `img_1.jpg.txt`.
    """
    stems = [PurePosixPath(name).with_suffix("") for name in names]
    clear = len({_folded(str(stem)) for stem in stems}) == len(stems)
    if clear and not any(_PREFIXED.match(stem.name) for stem in stems):
        return [str(stem.with_name(f"{prefix}{stem.name}{ending}")) for stem in stems]
    return [f"{name}{ending}" for name in names]


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


# --- text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _joined(records: Iterable[Any]) -> Iterator[str]:
    """Yield JSON values with commas between them."""
    return (f"{',' if n else ''}{_json(record)}\n" for n, record in enumerate(records))


def _write_text(path: Path, *pieces: Iterable[str]) -> None:
    """Write a file piece by piece; it appears whole."""
    with replaced(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for piece in pieces:
            file.writelines(piece)


FORMATS: dict[str, type[Format]] = {
    "coco": Coco,
    "icdar": Icdar,
    "paddleocr": Paddle,
    "mmocr": Mmocr,
    "labelme": LabelMe,
    "words": Words,
    "npz": Npz,
}
