"""Memory and processors that a process may use, as the machine and its cgroups say."""

import pytest

from ocrstore.machine import Memory, look_at_memory, usable_cpus

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
