"""The words JSON: `{"images": {name: {"words": {id: {"points", "transcription", ...}}}}}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ocrstore.sources.annotation_file import AnnotationFile, Flaw
from ocrstore.sources.dialect import Dialect, Entry, Region, register
from ocrstore.sources.validate import for_file, member, need, whole_document

_IGNORE_TAGS = frozenset({"masked", "excluded-region"})


@register
class Words(Dialect):
    """One JSON file for all pictures, words by picture name."""

    name = "words"
    looks_for = 'a JSON file {"images": {"a.jpg": {"words": {"0001": {"points": ...}}}}}'

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by `images` being an object, with `words` in its first picture."""
        images = file.document().get("images")
        if not isinstance(images, dict):
            return False
        return any(isinstance(v, dict) and "words" in v for v in list(images.values())[:100])

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per picture name."""
        document, flaws = whole_document(file)
        yield from map(for_file, flaws)
        for name, record in need(document, "images", dict, where=file.shown).items():
            yield Entry(names=(name,), record=record, where=f"{file.shown}[{name!a}]")

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the words in the order of the file."""
        words = need(entry.record, "words", (dict, list), where=entry.where)
        pairs = words.items() if isinstance(words, dict) else enumerate(words)
        for word_id, word in pairs:
            points = member(word, "points", object, where=f"{entry.where}, word {word_id!a}")
            if isinstance(points, Flaw):
                yield points
                continue
            yield Region(
                points,
                word.get("transcription"),
                ignored=True if tagged_ignored(word) else word.get("illegibility"),
                language=word.get("language"),
            )

    def frame(self, entry: Entry) -> str | None:
        """Return the `polygons_frame` of a picture, if it has one."""
        record = entry.record
        said = record.get("polygons_frame") if isinstance(record, dict) else None
        return said if said in ("raw", "upright") else None


def tagged_ignored(word: Mapping[str, Any]) -> bool:
    """Return whether a word has a tag that makes it ignored."""
    return not _IGNORE_TAGS.isdisjoint([*_tags(word.get("tags")), *_tags(word.get("word_tags"))])


def _tags(value: object) -> list[str]:
    return [str(tag) for tag in value] if isinstance(value, list) else []
