"""Owns the random numbers of a transform: each part of a composition has generators of its own.

`Compose.set_random_seed` would give all parts the same numbers: a flip and a rotation of equal
probability would then always happen together.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

_WORDS = 4
"""Of 64 bits for each part: three for numpy's generator, one for Python's."""


class Chance:
    """Generators for the parts of a composition, begun anew for each sample. One thread at a time.

    They are made once: making them takes longer than a flip and a crop of a picture.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        """Take all that draw random numbers, by `random_generator` and by `py_random`."""
        self._parts = [
            (part, np.random.Generator(np.random.SFC64(0)), random.Random(0)) for part in parts
        ]

    def draw(self, entropy: Sequence[int]) -> None:
        """Give every part random numbers that depend on `entropy` and on its place alone."""
        if not self._parts:
            return
        sequence = np.random.SeedSequence(entropy)
        words = sequence.generate_state(_WORDS * len(self._parts), np.uint64).reshape(-1, _WORDS)
        for (part, generator, python), state in zip(self._parts, words, strict=True):
            python.seed(int(state[3]))
            state[3] = 1  # the counter, as SFC64 begins it
            generator.bit_generator.state = {
                "bit_generator": "SFC64",
                "state": {"state": state},
                "has_uint32": 0,
                "uinteger": 0,
            }
            part.random_generator, part.py_random = generator, python
