"""Memory, processors, expected sizes, and the advice that follows from them."""

import dataclasses

import pytest

import ocrstore
from ocrstore.building.advice import HEADROOM, advise
from ocrstore.building.build import build
from ocrstore.building.cpus import usable_cpus
from ocrstore.building.memory import Memory, look_at_memory
from ocrstore.building.space import estimate
from ocrstore.building.views import View
from ocrstore.errors import SourceError
from ocrstore.recipe import Recipe
from ocrstore.sources import open_source

from .conftest import SIZE, draw, encode

GB = 1 << 30


def write(root, files):
    """Lay out a system's files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: {16 * GB // 1024} kB\nMemAvailable: {12 * GB // 1024} kB\n"}


def group(folder, limit, used, cache=0, version=2):
    """One cgroup's files."""
    if version == 2:
        names = ("memory.max", "memory.current", "inactive_file")
    else:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return {
        f"sys/fs/cgroup/{folder}{names[0]}": f"{limit}\n",
        f"sys/fs/cgroup/{folder}{names[1]}": f"{used}\n",
        f"sys/fs/cgroup/{folder}memory.stat": f"{names[2]} {cache}\nother 5\n",
    }


V2 = {"proc/self/cgroup": "0::/a/b\n"}
SYSTEMS = {
    "no cgroup": ({}, (16, 12, "machine")),
    "no limit": (V2 | group("a/b/", "max", GB), (16, 12, "machine")),
    "a limit": (V2 | group("a/b/", 4 * GB, 3 * GB, 2 * GB), (4, 3, "cgroup")),
    "a limit above": (V2 | group("a/", 4 * GB, GB), (4, 3, "cgroup")),
    "both": (
        V2 | group("a/", 8 * GB, GB) | group("a/b/", 4 * GB, 4 * GB),
        (4, 0, "cgroup"),
    ),
    "a container": (
        {"proc/self/cgroup": "0::/docker/123\n"} | group("", 2 * GB, GB),
        (2, 1, "cgroup"),
    ),
    "version 1": (
        {"proc/self/cgroup": "4:memory:/job\n3:cpu:/\n"} | group("memory/job/", 2 * GB, 0, 0, 1),
        (2, 2, "cgroup"),
    ),
    "a limit beyond the machine": (V2 | group("a/b/", 99 * GB, GB), (16, 12, "machine")),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_memory(tmp_path, name):
    """The machine's memory, or the tightest limit of the cgroups around this process."""
    files, (total, available, who) = SYSTEMS[name]
    memory = look_at_memory(root=write(tmp_path, MEMINFO | files))
    assert memory == Memory(total * GB, available * GB, who)


def test_memory_of_this_machine(tmp_path):
    """Here, and where nobody tells, there is an answer."""
    here = look_at_memory()
    assert 0 < here.available_nbytes <= here.total_nbytes
    assert look_at_memory(root=tmp_path).total_nbytes > 0


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_processors(tmp_path, files, wanted):
    """A container's share of processors counts."""
    found = usable_cpus(root=write(tmp_path, files))
    assert found == wanted if wanted else found >= 1


def test_the_estimate_is_what_a_build_makes(dataset):
    """Expected and real bytes agree: exactly for raw columns, nearly for compressed ones."""
    for i in range(30):
        dataset.add(f"{i}.jpg", encode(draw(60 + 5 * i, 80, seed=i)))
    dataset.add("bad.jpg", b"bad")
    recipe = Recipe.make(size=SIZE, codecs={"prob_map": "zstd", "thresh_mask": "lz4"})
    source = open_source(dataset.images)
    expected = estimate(source, (View("v", recipe, default=True),))
    report = build(dataset.images, dataset.store, recipe=recipe, workers=0)
    scale = 30 / 31  # the estimate cannot know of the one that fails
    for name, nbytes in report.columns.items():
        wide = 0.2 if name in ("prob_map", "thresh_mask") else 0.01
        assert abs(expected.columns[name] * scale - nbytes) <= wide * nbytes, name
    assert expected.total_nbytes == sum(expected.columns.values())


def test_an_estimate_of_nothing(dataset):
    """Where no picture can be used there is nothing to expect."""
    dataset.add("bad.jpg", b"bad")
    with pytest.raises(SourceError, match="none can be used"):
        estimate(open_source(dataset.images), (View("v", Recipe(), default=True),))


@pytest.fixture
def expected(dataset):
    """What ten pictures would take, in every codec."""
    dataset.fill(10)
    views = (View("v", Recipe.make(size=SIZE), default=True),)
    return estimate(open_source(dataset.images), views, compressed=True)


def test_advice_follows_the_memory(expected):
    """As memory shrinks, columns are compressed, then dropped; what is said is what it takes."""
    seen = []
    for share in (2.0, 0.7, 0.35, 0.2, 0.01):
        nbytes = int(expected.total_nbytes * share / HEADROOM)
        advice = advise(expected, Memory(nbytes, nbytes, "machine"))
        total = sum(expected.nbytes[name][codec] for name, codec in advice.codecs.items())
        assert advice.advised_nbytes == total
        assert advice.fits_as_advised == (total <= advice.limit_nbytes)
        assert not set(advice.dropped) & set(advice.codecs)
        seen.append(advice)
    assert seen[0].fits_as_asked and not seen[0].steps and seen[0].command == ""
    assert seen[1].codecs["image"] == "jpeg" and "--codec image=jpeg" in seen[1].command
    assert "prob_mask" in " ".join(seen[2].steps)
    assert "image" in seen[3].dropped and "--columns tensor" in seen[3].command
    assert not seen[4].fits_as_advised


def test_jpeg_is_advised_for_jpegs_only(dataset):
    """Among pictures of other formats the jpeg codec would lose some."""
    dataset.fill(3)
    dataset.add("x.png", encode(draw(), ".png"))
    views = (View("v", Recipe.make(size=SIZE), default=True),)
    expected = estimate(open_source(dataset.images), views, compressed=True)
    assert "jpeg" not in expected.nbytes["image"]
    advice = advise(expected, Memory(1000, 1000, "machine"))
    assert "image" in advice.dropped


def test_the_advised_build_is_as_large_as_advised(dataset, expected):
    """The command's options make what the advice says."""
    nbytes = int(expected.total_nbytes * 0.3 / HEADROOM)
    advice = advise(expected, Memory(nbytes, nbytes, "machine"))
    report = build(
        dataset.images,
        dataset.store,
        recipe=Recipe.make(size=SIZE, columns=list(advice.codecs), codecs=dict(advice.codecs)),
        workers=0,
    )
    assert sum(report.columns.values()) <= advice.advised_nbytes * 1.05
    assert dataclasses.asdict(advice)["memory"]["limited_by"] == "machine"
    assert ocrstore.verify(dataset.store).ok
