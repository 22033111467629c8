"""Owns the conclusions: what to bake into a store, what that saves and costs, and what cannot be.

Every rule is a function of a `Profile` alone. Savings are what was measured where a step goes away
altogether; where a step would get a smaller picture they are estimates, and the text says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ocrstore.profiling.records import BY_REFERENCE, COMPACT, STOCK, Profile, Step

Verdict = Literal["bake", "cannot", "instead", "have"]
"""`bake`: do this. `cannot`: what stays, and why. `instead`: what would help although it stays.
`have`: what the store saves already."""

NEGLIGIBLE = 0.02
"""A saving below this share of a sample's cost is not worth another file."""
SMALLER = 0.7
"""A step that leaves less than this share of the pixels makes pictures smaller."""
VIEW_NBYTES_PER_PIXEL = 3 + 2 * 2 + 2
"""A view's tensor, two float16 maps, two masks."""
_MATRIX_NBYTES = 72


@dataclass(frozen=True, slots=True)
class Advice:
    """One conclusion."""

    verdict: Verdict
    text: str
    saves_ms: float = 0.0
    """Per sample, by the clock."""
    saves_processor_ms: float = 0.0
    saves_epoch_s: float = 0.0
    """Per epoch of the whole store, shared by the workers."""
    costs_nbytes: int | None = None
    """On disk, for the whole store; None where it costs nothing there."""
    estimated: bool = False
    how: str = ""
    """What to type."""

    def to_json(self) -> dict[str, Any]:
        """Describe it in JSON terms."""
        return asdict(self)


def advise(profile: Profile) -> list[Advice]:
    """Draw all conclusions: what to bake first, then what stays, then what helps instead."""
    rules = (_bake, _cannot, _crop_first, _floats, _colours_only, _reorder, _smaller, _have)
    found = [advice for rule in rules for advice in rule(profile)]
    order = {"bake": 0, "cannot": 1, "instead": 2, "have": 3}
    return sorted(found, key=lambda advice: (order[advice.verdict], -advice.saves_ms))


def leading(profile: Profile) -> tuple[Step, ...]:
    """Return the steps that could be baked."""
    kinds = [step.kind for step in profile.steps]
    count = next((i for i, kind in enumerate(kinds) if kind != "bakeable"), len(kinds))
    return profile.steps[:count]


def _bake(profile: Profile) -> Iterator[Advice]:
    steps = leading(profile)
    if not steps:
        return
    if len(steps) == len(profile.steps):
        reference = profile.find(BY_REFERENCE)
        remains = (reference.ms, reference.processor_ms) if reference else (0.0, 0.0)
        nbytes = steps[-1].pixels_out * VIEW_NBYTES_PER_PIXEL + _MATRIX_NBYTES
        yield _saving(
            profile,
            "bake",
            "nothing in the pipeline is random: bake all of it, with its maps, as a view. Batches "
            "are then references to stored rows",
            profile.total_ms - remains[0],
            profile.total_processor_ms - remains[1],
            costs_nbytes=round(nbytes * profile.samples),
            how="ocrstore add-view STORE --recipe PIPELINE --view NAME",
        )
        return
    ms, processor_ms = _sum(steps)
    nbytes = steps[-1].pixels_out * 3 + _MATRIX_NBYTES
    names = _listed(steps)
    if ms < NEGLIGIBLE * profile.total_ms:
        yield Advice(
            "cannot",
            f"{names}: could be baked, but {ms:.2f} ms of {profile.total_ms:.1f} are not worth a "
            "file of its own",
        )
        return
    yield _saving(
        profile,
        "bake",
        f"{names}: always the same, so bake it into the pictures of a training store and give the "
        f"rest to `transform=`. The pictures of this one are "
        f"{_megabytes(profile.picture_nbytes * profile.samples)}",
        ms,
        processor_ms,
        costs_nbytes=round(nbytes * profile.samples),
        how="ocrstore profile STORE --transform PIPELINE --split DIR; "
        "ocrstore build IMAGES --out NEW --recipe DIR/bake.yaml",
    )


def _cannot(profile: Profile) -> Iterator[Advice]:
    random = [step for step in profile.steps if step.kind == "random"]
    if random:
        ms = profile.weigh(*_sum(random))
        weights = [profile.weigh(step.cost.ms, step.cost.processor_ms) for step in random]
        each = ", ".join(f"{step.name} {one:.2f}" for step, one in zip(random, weights))
        why = random[0].reason.partition(". ")[0]
        first = f" Baking ends before {random[0].name}" if not _ended_before(profile) else ""
        yield Advice(
            "cannot",
            f"random steps stay: {each}: {ms:.2f} ms{_share(profile, ms)}.{first}"
            + (f" ({why})" if first else ""),
        )
    ended = _ended_before(profile)
    if ended is not None:
        yield Advice("cannot", f"{ended.name} ends what can be baked: {ended.reason}")
    drawn = [cost for cost in profile.others if cost.part in ("maps", "float16") and cost.in_path]
    if drawn and any(step.kind == "random" and step.moves_points for step in profile.steps):
        ms = profile.weigh(sum(cost.ms for cost in drawn), sum(cost.processor_ms for cost in drawn))
        yield Advice(
            "cannot",
            f"maps follow polygons that are moved at random: drawing them anew stays, {ms:.2f} ms"
            f"{_share(profile, ms)}",
        )


def _ended_before(profile: Profile) -> Step | None:
    """Return the step that ends what can be baked, if it is not a random one."""
    count = len(leading(profile))
    step = profile.steps[count] if count < len(profile.steps) else None
    return step if step is not None and step.kind == "unfit" else None


def _crop_first(profile: Profile) -> Iterator[Advice]:
    baked = len(leading(profile))
    for number, crop in enumerate(profile.steps):
        if number <= baked or "Crop" not in crop.name or not crop.pixels_in:
            continue
        if crop.pixels_out > SMALLER * crop.pixels_in:
            continue
        before = profile.steps[baked:number]
        larger = [step for step in before if step.pixels_in > crop.pixels_out]
        ms = sum(s.cost.ms * (1 - crop.pixels_out / s.pixels_in) for s in larger)
        cpu = sum(s.cost.processor_ms * (1 - crop.pixels_out / s.pixels_in) for s in larger)
        if ms < NEGLIGIBLE * profile.total_ms:
            continue
        yield _saving(
            profile,
            "instead",
            f"crop first: {_listed(larger)} work on whole pictures, of which {crop.name} then "
            f"throws away {1 - crop.pixels_out / crop.pixels_in:.0%}. A rotation behind the crop "
            "shows its corners: crop a little larger first, and to the size at the end",
            ms,
            cpu,
            estimated=True,
        )
        return


def _floats(profile: Profile) -> Iterator[Advice]:
    for step in profile.steps:
        if step.makes_floats:
            yield _saving(
                profile,
                "instead",
                f"leave {step.name} out: bytes are a quarter of what it makes, to collate and to "
                "hand over; normalise the batch on the device (the recipe keeps mean and std)",
                step.cost.ms,
                step.cost.processor_ms,
            )


def _colours_only(profile: Profile) -> Iterator[Advice]:
    random = [step for step in profile.steps if step.kind == "random"]
    if not random or any(step.moves_points for step in random):
        return
    drawn = [cost for cost in profile.others if cost.part in ("maps", "float16") and cost.in_path]
    others = [step for step in profile.steps if step.kind != "random"]
    if not drawn:
        return
    yield _saving(
        profile,
        "instead",
        f"no random step moves a point ({_listed(random)}): bake the geometry with its maps as a "
        "view, and change the colours of the batch on the device",
        sum(cost.ms for cost in drawn) + _sum(others)[0],
        sum(cost.processor_ms for cost in drawn) + _sum(others)[1],
        costs_nbytes=round(
            profile.samples
            * (profile.steps[-1].pixels_out * VIEW_NBYTES_PER_PIXEL + _MATRIX_NBYTES)
        ),
    )


def _reorder(profile: Profile) -> Iterator[Advice]:
    first = next((step for step in profile.steps if step.kind == "random"), None)
    for step in profile.steps:
        if step.kind != "deterministic" or first is None:
            continue
        if step.cost.ms < NEGLIGIBLE * profile.total_ms:
            continue
        yield _saving(
            profile,
            "instead",
            f"{step.name} is always the same, but stands behind {first.name}: at the front it "
            "could be baked, if the order does not matter to you",
            step.cost.ms,
            step.cost.processor_ms,
            estimated=True,
        )


def _smaller(profile: Profile) -> Iterator[Advice]:
    """Where nothing can be baked, pictures far larger than what is made of them can be shrunk."""
    if leading(profile) or not profile.steps or profile.output_size is None:
        return
    height, width = profile.output_size
    wanted = 2.0 * height * width
    larger = [step for step in profile.steps if step.pixels_in > wanted / SMALLER]
    if not larger or larger[0] is not profile.steps[0]:
        return
    side = math.ceil(math.sqrt(2) * max(height, width) / 32) * 32
    yield _saving(
        profile,
        "instead",
        f"smaller pictures: the pipeline makes {height}x{width} of pictures with "
        f"{larger[0].pixels_in / 1e6:.1f} million pixels. A training store of longest side {side} "
        "holds twice what is used; small text loses detail, so try it first",
        sum(s.cost.ms * (1 - wanted / s.pixels_in) for s in larger),
        sum(s.cost.processor_ms * (1 - wanted / s.pixels_in) for s in larger),
        costs_nbytes=profile.samples * (3 * side * side + _MATRIX_NBYTES),
        estimated=True,
        how=f"ocrstore build IMAGES --out NEW --size {side} --columns tensor,inverse_matrix",
    )


def _have(profile: Profile) -> Iterator[Advice]:
    decode = next((cost for cost in profile.others if cost.part == "decode"), None)
    if decode is not None and profile.picture_codec != "jpeg":
        yield _saving(
            profile,
            "have",
            "the store has decoded the files once and for all",
            decode.ms,
            decode.processor_ms,
        )
    elif decode is not None:
        yield _saving(
            profile,
            "bake",
            "pictures are kept as JPEG and decoded for every sample: keep them raw",
            decode.ms,
            decode.processor_ms,
            costs_nbytes=round(profile.samples * 3 * _pixels_in(profile)),
            how="ocrstore build IMAGES --out NEW --codec image=raw",
        )
    compact = profile.find(COMPACT)
    stock = profile.find(STOCK)
    if compact is not None and stock is not None and compact.in_path and stock.ms > compact.ms:
        yield _saving(
            profile,
            "have",
            "batches travel in reused memory, not in fresh shared memory",
            stock.ms - compact.ms,
            stock.processor_ms - compact.processor_ms,
        )


def _pixels_in(profile: Profile) -> float:
    return profile.steps[0].pixels_in if profile.steps else 0.0


def _saving(
    profile: Profile,
    verdict: Verdict,
    text: str,
    ms: float,
    processor_ms: float,
    *,
    costs_nbytes: int | None = None,
    estimated: bool = False,
    how: str = "",
) -> Advice:
    epoch = profile.epoch_seconds(profile.weigh(ms, processor_ms))
    return Advice(verdict, text, ms, processor_ms, epoch, costs_nbytes, estimated, how)


def _sum(steps: Sequence[Step]) -> tuple[float, float]:
    return sum(s.cost.ms for s in steps), sum(s.cost.processor_ms for s in steps)


def _listed(steps: Sequence[Step]) -> str:
    return ", ".join(step.name for step in steps)


def _share(profile: Profile, ms: float) -> str:
    return f" ({ms / profile.weighed_ms:.0%})" if profile.weighed_ms else ""


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
