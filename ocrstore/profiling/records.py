"""The records of a profile: what each step of a sample's way cost, and what kind of step it is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ocrstore.profiling.clock import Spent

Kind = Literal["bakeable", "deterministic", "random", "unfit"]
"""What a transform is: `bakeable` ones lead the pipeline and are always the same; `deterministic`
ones are, too, but stand behind one that is not; `unfit` ones make what no view can hold."""

BUSY = 1.3
"""By this factor the clock may exceed the processor's time before it says more of other work."""

BY_REFERENCE = "hand-over, reference"
"""A batch of stored rows: its rows' numbers travel."""
COMPACT = "hand-over, compact"
"""A batch that was computed, in memory that is used again."""
STOCK = "hand-over, stock"
"""The same in fresh shared memory, as torch does it."""

Part = Literal["decode", "transform", "maps", "float16", "rest", "collation", "hand-over"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one part costs for each sample: milliseconds, one figure per repeat."""

    name: str
    part: Part
    clock_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    in_path: bool = True
    """Whether a training sample goes this way; otherwise it is there to compare with."""

    @classmethod
    def of(cls, name: str, part: Part, repeats: Iterable[Spent], *, in_path: bool = True) -> Cost:
        """Make a cost of what each repeat took for one sample."""
        spent = list(repeats)
        return cls(
            name, part, tuple(s.clock_ms for s in spent), tuple(s.cpu_ms for s in spent), in_path
        )

    @property
    def ms(self) -> float:
        """The median over the repeats, by the clock."""
        return statistics.median(self.clock_ms)

    @property
    def processor_ms(self) -> float:
        """The median over the repeats, of processor time."""
        return statistics.median(self.cpu_ms)

    @property
    def extremes(self) -> tuple[float, float]:
        """The least and the most of the repeats, by the clock."""
        return min(self.clock_ms), max(self.clock_ms)


@dataclass(frozen=True, slots=True)
class Step:
    """One transform of the pipeline."""

    name: str
    kind: Kind
    reason: str
    """Why it cannot be baked; empty if it can."""
    cost: Cost
    applied: float
    """The share of samples it changed."""
    moves_points: bool
    pixels_in: float
    """Pixels of a picture that comes to it, on average."""
    pixels_out: float
    makes_floats: bool = False
    """Whether it turns bytes into floating-point numbers."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything that was measured about one store and one pipeline."""

    store: str
    pipeline: str
    """Where the pipeline is from, in words."""
    samples: int
    """Samples in the store."""
    measured: int
    repeats: int
    seed: int
    workers: int
    cpus: int
    """Processors that this process may use."""
    batch_size: int
    steps: tuple[Step, ...]
    others: tuple[Cost, ...]
    """What is no transform: maps, collation, the way to the parent, ..."""
    picture_nbytes: float
    """Stored bytes of the picture that the pipeline begins with, per sample."""
    output_size: tuple[int, int] | None
    """(height, width) of what the pipeline makes; None where it differs."""
    from_whole_pictures: bool = True
    """Whether the pipeline begins with whole pictures, not with a view's tensor."""
    picture_codec: str = "raw"
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""

    @property
    def costs(self) -> tuple[Cost, ...]:
        """All costs, in the order in which a sample meets them."""
        order = {"decode": 0, "rest": 1, "transform": 2, "maps": 3, "float16": 4}
        every = (*(step.cost for step in self.steps), *self.others)
        return tuple(sorted(every, key=lambda cost: order.get(cost.part, 5)))

    @property
    def total_ms(self) -> float:
        """What a training sample costs altogether, by the clock."""
        return sum(cost.ms for cost in self.costs if cost.in_path)

    @property
    def total_processor_ms(self) -> float:
        """The same in processor time."""
        return sum(cost.processor_ms for cost in self.costs if cost.in_path)

    def find(self, name: str) -> Cost | None:
        """Return the cost of that name, if it was measured."""
        return next((cost for cost in self.costs if cost.name == name), None)

    @property
    def busy(self) -> bool:
        """Whether the clock says so much more than the processor that it tells of other work."""
        return self.total_ms > BUSY * self.total_processor_ms

    @property
    def weighed_ms(self) -> float:
        """The total by the clock, or by the processor if the machine was busy."""
        return self.weigh(self.total_ms, self.total_processor_ms)

    def weigh(self, ms: float, processor_ms: float) -> float:
        """Choose the figure that shares and epochs go by: the processor's on a busy machine."""
        return processor_ms if self.busy else ms

    def share(self, cost: Cost) -> float | None:
        """Return a cost's share of the total; None where it is not part of it."""
        if not cost.in_path or not self.weighed_ms:
            return None
        return self.weigh(cost.ms, cost.processor_ms) / self.weighed_ms

    def epoch_seconds(self, ms_per_sample: float) -> float:
        """Return what so many milliseconds per sample are in an epoch, shared by the workers.

        More workers than processors share no more.
        """
        return ms_per_sample * self.samples / 1000 / max(1, min(self.workers, self.cpus))

    def to_json(self) -> dict[str, Any]:
        """Describe it in JSON terms."""
        record = asdict(self)
        del record["steps"], record["others"]
        costs = []
        by_name = {step.cost.name: step for step in self.steps}
        for cost in self.costs:
            row: dict[str, Any] = {
                "name": cost.name,
                "part": cost.part,
                "in_path": cost.in_path,
                "ms": cost.ms,
                "processor_ms": cost.processor_ms,
                "min_ms": cost.extremes[0],
                "max_ms": cost.extremes[1],
                "share": self.share(cost),
            }
            step = by_name.get(cost.name) if cost.part == "transform" else None
            if step is not None:
                row |= {k: v for k, v in asdict(step).items() if k not in ("name", "cost")}
            costs.append(row)
        return {
            **record,
            "total_ms": self.total_ms,
            "total_processor_ms": self.total_processor_ms,
            "busy": self.busy,
            "epoch_s": self.epoch_seconds(self.weighed_ms),
            "costs": costs,
        }
