"""A real run on a drawn store, by a clock that only counts, and the command that shows it."""

from __future__ import annotations

import json
import sys

import albumentations as A
import pytest

pytest.importorskip("torch")

from ocrstore import cli
from ocrstore.pipeline import to_json
from ocrstore.profiling.plot import plot_profile
from ocrstore.profiling.records import BY_REFERENCE, COMPACT, STOCK
from ocrstore.torch.profiling import COLLATION, FLOAT16, MAPS, REST, profile_store
from tests.drawn import bare_store, build_drawn
from tests.profiling.making import CountingClock, cost, make_profile, step

PIPELINE = A.Compose([A.Resize(64, 64), A.HorizontalFlip(p=0.5), A.RandomBrightnessContrast(p=1.0)])
DECODE = "decode the file"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a store, its source, and a saved pipeline."""
    root = tmp_path_factory.mktemp("profile")
    build_drawn(root)
    A.save(PIPELINE, root / "pipeline.yaml", data_format="yaml")
    return root


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line as the shell would; returns exit code, standard output and error."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ocrstore", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def counted(folder, **options):
    """Profile the drawn store by a clock that counts readings: 2 ms and 1 ms each."""
    given = {"samples": 4, "repeats": 2, "batch_size": 2, "clock": CountingClock(), **options}
    return profile_store(folder / "val.ocrs", transform=to_json(PIPELINE), **given)


def test_every_part_is_timed_for_every_sample(folder):
    """Two readings of the clock for each part and sample, so each costs 2 ms a sample."""
    profile = counted(folder)
    times = {cost.name: (cost.clock_ms, cost.cpu_ms) for cost in profile.costs}
    each = ((2.0, 2.0), (1.0, 1.0))
    for name in ("Resize", "HorizontalFlip", "RandomBrightnessContrast", MAPS, FLOAT16, DECODE):
        assert times[name] == each, name
    assert times[COLLATION] == ((1.0, 1.0), (0.5, 0.5))  # two samples share a batch
    # a whole sample is 7 intervals of the clock; 3 transforms, maps and float16 are taken off
    assert times[REST] == ((4.0, 4.0), (2.0, 2.0))
    for name in (COMPACT, STOCK, BY_REFERENCE):
        if name in times:
            clock_ms, cpu_ms = times[name]
            assert clock_ms == (1.0, 1.0)
            assert cpu_ms == (1.0, 1.0)  # half a reading of the parent, half one of the worker
    assert profile.notes == ()
    assert (profile.measured, profile.samples, profile.batch_size) == (4, 6, 2)


def test_what_is_on_the_way_depends_on_workers(folder):
    """With workers a batch is handed over, without it is collated; files are never on the way."""
    for workers, on_way in ((2, COMPACT if sys.platform == "linux" else STOCK), (0, COLLATION)):
        profile = counted(folder, workers=workers, repeats=1)
        found = {cost.name for cost in profile.costs if cost.in_path}
        others = {"Resize", "HorizontalFlip", "RandomBrightnessContrast", MAPS, FLOAT16, REST}
        assert found == {*others, on_way}
        assert sum(profile.share(c) or 0 for c in profile.costs) == pytest.approx(1)


def test_steps_say_what_they_did(folder):
    """Kinds, pixels, and whether points moved come from the run itself."""
    profile = counted(folder, samples=6, repeats=1)
    resize, flip, colour = profile.steps
    assert (resize.kind, flip.kind, colour.kind) == ("bakeable", "random", "random")
    assert resize.pixels_out == flip.pixels_in == 64 * 64
    assert resize.pixels_in > 64 * 64 and resize.applied == 1
    assert resize.moves_points and not colour.moves_points
    assert profile.output_size == (64, 64)


def test_repeats_draw_the_same_random_numbers(folder):
    """The same seed flips the same samples, another may not; the generator outside is untouched."""
    import torch

    torch.manual_seed(5)
    before = torch.get_rng_state()
    flips = [counted(folder, samples=6, repeats=n, seed=3).steps[1].applied for n in (1, 2)]
    assert flips[0] == flips[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_ends_at_its_total(folder):
    """Progress is told sample by sample and comes to its end."""
    told = []
    counted(folder, progress=lambda done, total: told.append((done, total)))
    assert told == [(n, 9) for n in range(1, 10)]


def test_pictures_of_different_sizes_are_handed_over_alone(folder):
    """A pipeline that leaves sizes as they are cannot be batched, and the profile says so."""
    profile = profile_store(
        folder / "val.ocrs",
        transform=to_json(A.Compose([A.VerticalFlip(p=1.0)])),
        samples=6,
        repeats=1,
        clock=CountingClock(),
    )
    assert profile.batch_size == 1 and profile.output_size is None
    assert any("different sizes" in note for note in profile.notes)


def test_the_command_on_a_drawn_store(folder, run, tmp_path):
    """Table, advice, plot and the split pipeline, by the machine's own clock."""
    plot, split = tmp_path / "bars.svg", tmp_path / "split"
    code, out, _ = run(
        *("profile", folder / "val.ocrs", "--transform", folder / "pipeline.yaml"),
        *("--samples", 4, "--repeats", 2, "--plot", plot, "--split", split),
    )
    assert code == 0, out
    for words in ("Resize", "bakeable", "HorizontalFlip", "random", MAPS, DECODE, COMPACT, STOCK):
        assert words in out, words
    assert "per sample, median of 2 repeats over 4 samples" in out
    assert "random steps stay: HorizontalFlip" in out
    assert "an epoch of 6 samples" in out
    assert plot.read_text().startswith("<?xml") and "HorizontalFlip" in plot.read_text()
    assert (split / "bake.yaml").exists() and (split / "rest.yaml").exists()


def test_json_for_programs(folder, run):
    """All of it as JSON: costs with shares that add up, the advice, nothing else on stdout."""
    code, out, _ = run("profile", folder / "val.ocrs", "--samples", 3, "--repeats", 1, "--json")
    record = json.loads(out)
    assert code == 0 and record["pipeline"] == "the default training path"
    names = [row["name"] for row in record["costs"]]
    assert "LongestMaxSize" in names and "ColorJitter" in names
    assert sum(row["share"] or 0 for row in record["costs"]) == pytest.approx(1)
    assert {a["verdict"] for a in record["advice"]} >= {"cannot", "have"}
    assert record["total_processor_ms"] > 0


def test_a_lost_source_is_a_note_and_source_finds_it(folder, run, tmp_path):
    """Without its files decoding is left out with a message; --source names where they went."""
    store = build_drawn(tmp_path, name="moved.ocrs")
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    options = ("--samples", 2, "--repeats", 1, "--json")
    record = json.loads(run("profile", store, *options)[1])
    assert any("decode was not timed" in note for note in record["notes"])
    assert DECODE not in [row["name"] for row in record["costs"]]
    record = json.loads(run("profile", store, *options, "--source", tmp_path / "elsewhere")[1])
    assert record["notes"] == [] and DECODE in [row["name"] for row in record["costs"]]
    record = json.loads(run("profile", store, *options, "--source", tmp_path / "gt")[1])
    assert any("has no picture named" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "bars.txt"], "ends in .svg, .png, .pdf"),
        (["--split", "x"], "--split goes with --transform"),
        (["--transform", "no.yaml"], "does not exist"),
        (["--view", "nope"], "no view 'nope'"),
    ],
)
def test_wrong_use(folder, run, arguments, words):
    """Wrong use is exit code 2 and one message."""
    found, _, err = run("profile", folder / "val.ocrs", *arguments)
    assert found == 2 and words in err.replace("\n", " ")


def test_stores_without_pictures_are_refused(run, tmp_path):
    """The message names the columns there are."""
    code, _, err = run("profile", bare_store(tmp_path / "bare.ocrs"))
    assert code == 1 and "neither pictures" in err and "numbers" in err
    code, _, err = run("profile", bare_store(tmp_path / "empty.ocrs", samples=0))
    assert code == 1 and "has no samples" in err


def test_a_missing_matplotlib_names_its_extra(folder, run, monkeypatch, tmp_path):
    """Before anything is timed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("profile", folder / "val.ocrs", "--plot", tmp_path / "a.svg")
    assert code == 1 and "ocrstore[plot]" in err and not (tmp_path / "a.svg").exists()


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_plot_is_a_file_of_its_kind(tmp_path, suffix):
    """One bar for each cost, whatever the format."""
    profile = make_profile(
        step("Resize", 3, "bakeable"),
        step("Affine", 9),
        others=(cost("decode the file", 4, "decode", in_path=False),),
    )
    path = tmp_path / f"bars.{suffix}"
    plot_profile(profile, path)
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[suffix])
