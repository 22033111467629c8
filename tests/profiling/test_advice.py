"""The conclusions from a profile, rule by rule."""

from __future__ import annotations

import pytest

from ocrstore.profiling.advice import advise
from ocrstore.profiling.records import BY_REFERENCE, COMPACT, STOCK
from ocrstore.profiling.table import saving
from tests.profiling.making import cost, make_profile, step

MAPS = (cost("map drawing", 2.0, "maps"), cost("float16", 1.0, "float16"))
SMALL = (900_000, 230_400)


def one(profile, verdict, words):
    """Return the one piece of advice with these words."""
    found = [a for a in advise(profile) if a.verdict == verdict and words in a.text]
    assert len(found) == 1, [(a.verdict, a.text) for a in advise(profile)]
    return found[0]


def test_a_deterministic_pipeline_is_baked_whole():
    """All of it goes, the reference remains; the view's bytes are 9 for each pixel and a matrix."""
    reference = cost(BY_REFERENCE, 0.5, "hand-over", in_path=False)
    profile = make_profile(
        step("LongestMaxSize", 4, "bakeable", pixels=SMALL),
        step("PadIfNeeded", 1, "bakeable", pixels=(230_400, 409_600)),
        others=(*MAPS, reference),
    )
    advice = one(profile, "bake", "nothing in the pipeline is random")
    assert advice.saves_ms == pytest.approx(4 + 1 + 2 + 1 - 0.5)
    assert advice.saves_processor_ms == pytest.approx(0.8 * (4 + 1 + 2 + 1 - 0.5))
    assert advice.saves_epoch_s == pytest.approx(7.5 * 1000 / 1000 / 2)
    assert advice.costs_nbytes == 1000 * (409_600 * 9 + 72)
    assert "add-view" in advice.how
    assert not [a for a in advise(profile) if a.verdict == "cannot"]


def test_a_random_step_ends_what_is_baked():
    """What leads is baked as pictures; what follows stays, though some of it is deterministic."""
    profile = make_profile(
        step("LongestMaxSize", 4, "bakeable", pixels=SMALL),
        step("HorizontalFlip", 1, "random", pixels=(230_400, 230_400)),
        step("PadIfNeeded", 3, "deterministic", pixels=(230_400, 409_600)),
        others=MAPS,
    )
    baked = one(profile, "bake", "LongestMaxSize: always the same")
    assert baked.saves_ms == pytest.approx(4)
    assert baked.costs_nbytes == 1000 * (230_400 * 3 + 72)
    assert "--split" in baked.how and "2,700 MB" in baked.text
    stays = one(profile, "cannot", "random steps stay")
    assert "HorizontalFlip 1.00: 1.00 ms (9%)" in stays.text
    assert "Baking ends before HorizontalFlip" in stays.text
    assert "3.00 ms" in one(profile, "cannot", "maps follow polygons").text
    assert (
        one(profile, "instead", "PadIfNeeded is always the same, but stands behind").saves_ms == 3
    )


def test_a_cheap_prefix_is_not_worth_a_file():
    """Below two percent nothing is advised."""
    profile = make_profile(step("Transpose", 0.1, "bakeable"), step("Affine", 20), others=MAPS)
    assert not [a for a in advise(profile) if a.verdict == "bake"]
    assert "not worth a file" in one(profile, "cannot", "Transpose").text


def test_cropping_first_is_estimated_by_area():
    """Steps on whole pictures before a crop would cost in proportion to what the crop leaves."""
    profile = make_profile(
        step("Affine", 10), step("RandomCrop", 0.5, pixels=(900_000, 300_000)), others=MAPS
    )
    advice = one(profile, "instead", "crop first: Affine")
    assert advice.estimated and advice.saves_ms == pytest.approx(10 * 2 / 3)
    assert advice.costs_nbytes is None
    assert "67%" in advice.text


@pytest.mark.parametrize(
    "steps",
    [
        (step("RandomCrop", 0.5, pixels=(900_000, 300_000)), step("Affine", 10)),
        (step("Affine", 10), step("RandomCrop", 0.5, pixels=(900_000, 800_000))),
        (step("Affine", 0.01), step("RandomCrop", 9, pixels=(900_000, 300_000))),
        (step("Affine", 10), step("Downscale", 1, pixels=(900_000, 300_000))),
    ],
    ids=["is first", "takes little away", "cheap before", "no crop"],
)
def test_no_word_of_cropping_first(steps):
    """Where it would help little, or is done already, it is not advised."""
    assert not [a for a in advise(make_profile(*steps, others=MAPS)) if "crop first" in a.text]


@pytest.mark.parametrize(
    ("steps", "changes", "advised"),
    [
        ((step("Affine", 10, pixels=(4e6, 4e6)),), {}, True),
        ((step("Affine", 10, pixels=(9e5, 9e5)),), {}, False),
        ((step("Affine", 10, pixels=(4e6, 4e6)),), {"output_size": None}, False),
        ((step("Resize", 1, "bakeable"), step("Affine", 10, pixels=(4e6, 4e6))), {}, False),
    ],
    ids=["large", "not so large", "no one size", "a prefix is baked"],
)
def test_smaller_pictures(steps, changes, advised):
    """Where nothing can be baked and pictures are far larger than the output, shrink them."""
    profile = make_profile(*steps, others=MAPS, **changes)
    found = [a for a in advise(profile) if "smaller pictures" in a.text]
    assert bool(found) == advised
    if found:
        assert found[0].saves_ms == pytest.approx(10 * (1 - 2 * 640 * 640 / 4e6))
        assert found[0].costs_nbytes == 1000 * (3 * 928 * 928 + 72)
        assert "--size 928" in found[0].how


def test_floats_are_left_to_the_device():
    """A step that makes floats of bytes is named with what it costs."""
    profile = make_profile(step("Affine", 3), step("Normalize", 2, "unfit", floats=True))
    assert one(profile, "instead", "leave Normalize out").saves_ms == 2
    leads = make_profile(step("Normalize", 2, "unfit", floats=True), step("Affine", 3))
    assert one(leads, "cannot", "Normalize ends what can be baked")
    assert "Baking ends before" not in one(leads, "cannot", "random steps stay").text


@pytest.mark.parametrize("moves", [True, False])
def test_colours_alone_leave_the_maps_bakeable(moves):
    """Only where no random step moves a point can maps be baked, and colours wait."""
    profile = make_profile(
        step("Resize", 4, "bakeable", pixels=(900_000, 409_600)),
        step("ColorJitter", 5, moves=moves, pixels=(409_600, 409_600)),
        others=MAPS,
    )
    found = [a for a in advise(profile) if "no random step moves a point" in a.text]
    assert bool(found) != moves
    if found:
        assert found[0].saves_ms == pytest.approx(2 + 1 + 4)
        assert found[0].costs_nbytes == 1000 * (409_600 * 9 + 72)


@pytest.mark.parametrize(("codec", "verdict"), [("raw", "have"), ("jpeg", "bake")])
def test_decoding_is_saved_or_could_be(codec, verdict):
    """A store of raw pictures has saved the decoding; one of JPEG bytes could."""
    decode = cost("decode the file", 5, "decode", in_path=False)
    profile = make_profile(step("Affine", 10), others=(decode,), picture_codec=codec)
    words = "decoded the files once" if codec == "raw" else "keep them raw"
    advice = one(profile, verdict, words)
    assert advice.saves_ms == 5
    assert advice.costs_nbytes == (None if codec == "raw" else 1000 * 3 * 900_000)


def test_the_way_to_the_parent_is_compared():
    """What reused memory saves against fresh shared memory is said, if there are workers."""
    ways = (
        cost(COMPACT, 1, "hand-over"),
        cost(STOCK, 4, "hand-over", in_path=False),
    )
    profile = make_profile(step("Affine", 10), others=ways)
    assert one(profile, "have", "reused memory").saves_ms == 3
    alone = make_profile(step("Affine", 10), others=(cost(COMPACT, 1, "hand-over", in_path=False),))
    assert not [a for a in advise(alone) if "reused memory" in a.text]


def test_more_workers_than_processors_save_no_more():
    """An epoch is reckoned with the processors that there are."""
    many = make_profile(step("Affine", 10), workers=8, cpus=2)
    none = make_profile(step("Affine", 10), workers=0, cpus=2)
    assert many.epoch_seconds(10) == pytest.approx(5)
    assert none.epoch_seconds(10) == pytest.approx(10)


def test_a_busy_machine_is_weighed_by_its_processor():
    """Where the clock ran far ahead of the processor, shares and epochs go by the latter."""
    from dataclasses import replace

    affine = step("Affine", 30)
    affine = replace(affine, cost=replace(affine.cost, cpu_ms=(6.0,)))
    profile = make_profile(step("Resize", 10, "bakeable"), affine)
    assert profile.busy and not make_profile(step("Affine", 10)).busy
    assert profile.share(affine.cost) == pytest.approx(6 / 14)
    baked = one(profile, "bake", "Resize")
    assert (baked.saves_ms, baked.saves_processor_ms) == (10, pytest.approx(8))
    assert baked.saves_epoch_s == pytest.approx(8 * 1000 / 1000 / 2)
    assert "Affine 6.00: 6.00 ms (43%)" in one(profile, "cannot", "random steps stay").text


def test_savings_in_words():
    """A saving is told per sample, in processor time, per epoch, with its price on disk."""
    profile = make_profile(step("Resize", 4, "bakeable"), step("Affine", 6))
    words = saving(one(profile, "bake", "Resize"))
    assert words == (
        " — saves 4.00 ms per sample (3.20 of the processor), 2.0 s per epoch"
        "; takes 2.70 GB on disk"
    )
    assert saving(one(profile, "cannot", "random steps stay")) == ""
