"""A clock that only counts, and records to draw conclusions from."""

from __future__ import annotations

from ocrstore.profiling.records import Cost, Profile, Step


class CountingClock:
    """Each reading is 2 ms after the last by the clock and 1 ms by the processor."""

    def __init__(self):
        self.readings = 0

    def __call__(self):
        """Read it."""
        self.readings += 1
        return self.readings * 2_000_000, self.readings * 1_000_000


def cost(name, ms, part="transform", *, in_path=True):
    """A cost of three repeats around `ms`, 80 % of it in processor time."""
    return Cost(
        name,
        part,
        (0.9 * ms, ms, 1.2 * ms),
        (0.7 * ms, 0.8 * ms, 0.9 * ms),
        in_path,
    )


def step(name, ms, kind="random", *, pixels=(900_000, 900_000), moves=True, floats=False):
    """A step of a pipeline."""
    reason = "" if kind in ("bakeable", "deterministic") else f"{name} is {kind}. More words"
    return Step(name, kind, reason, cost(name, ms), 1.0, moves, *pixels, floats)


def make_profile(*steps, others=(), **changes):
    """A profile of 1000 samples, two workers on two processors."""
    given = {
        "store": "val.ocrs",
        "pipeline": "pipeline.yaml",
        "samples": 1000,
        "measured": 8,
        "repeats": 3,
        "seed": 0,
        "workers": 2,
        "cpus": 2,
        "batch_size": 4,
        "steps": steps,
        "others": tuple(others),
        "picture_nbytes": 2_700_000.0,
        "output_size": (640, 640),
        **changes,
    }
    return Profile(**given)
