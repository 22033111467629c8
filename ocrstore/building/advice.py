"""Which columns and codecs fit the page cache of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ocrstore.building.memory import Memory
from ocrstore.building.space import Estimate

HEADROOM = 0.8
"""The share of the available memory that a store may fill: the training needs some, too."""

# cheapest first: what is read least often, or is compressed best, gives way first
_STEPS: tuple[tuple[str, str, str], ...] = (
    ("image", "jpeg", "keep pictures as their JPEG bytes; decoded on access"),
    ("prob_mask", "lz4", "masks are nearly constant"),
    ("thresh_mask", "lz4", "masks are nearly constant"),
    ("prob_map", "lz4", "probability maps are mostly zero"),
    ("thresh_map", "zstd", "threshold maps are mostly one value"),
    ("image", "drop", "leave the full-size pictures out"),
    ("tensor", "zstd", "the last resort: every read decompresses"),
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do so that a store stays in memory."""

    memory: Memory
    limit_nbytes: int
    """What the store may have."""
    as_asked_nbytes: int
    advised_nbytes: int
    fits_as_asked: bool
    fits_as_advised: bool
    codecs: Mapping[str, str]
    """The advised codec of every column that is kept."""
    dropped: tuple[str, ...]
    steps: tuple[str, ...]
    """What was changed and why, in order."""

    @property
    def command(self) -> str:
        """The options of `ocrstore build` that say the same."""
        parts = []
        logical = [name for name in self.codecs if "/" not in name]
        if self.dropped:
            parts.append("--columns " + ",".join(logical))
        parts += [f"--codec {n}={c}" for n, c in self.codecs.items() if c != "raw" and "/" not in n]
        return " ".join(parts)


def advise(expected: Estimate, memory: Memory) -> Advice:
    """Find the first, least costly set of codecs with which everything fits."""
    limit = int(memory.available_nbytes * HEADROOM)
    codecs = dict(expected.chosen)
    dropped: list[str] = []
    steps: list[str] = []

    def total() -> int:
        return sum(expected.nbytes[name][codec] for name, codec in codecs.items())

    as_asked = total()
    for logical, codec, why in _STEPS:
        if total() <= limit:
            break
        for name in [n for n in codecs if n.rpartition("/")[2] == logical]:
            before = expected.nbytes[name][codecs[name]]
            if codec == "drop":
                del codecs[name]
                dropped.append(name)
                steps.append(f"drop {name}: {why} ({_megabytes(before)} less)")
                continue
            after = expected.nbytes[name].get(codec)
            if after is None or after >= before:
                continue
            codecs[name] = codec
            steps.append(f"{name} as {codec}: {why} ({_megabytes(before - after)} less)")
    advised = total()
    return Advice(
        memory,
        limit,
        as_asked,
        advised,
        as_asked <= limit,
        advised <= limit,
        codecs,
        tuple(dropped),
        tuple(steps),
    )


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
