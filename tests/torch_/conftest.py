"""Torch on one thread, and one small store that all tests read."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
# after an error in a worker torch waits this long (5 s) for it to end; nothing here needs that
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5

from tests.torch_.columns import column, options  # noqa: F401  # fixtures
from tests.torch_.making import make_store


@pytest.fixture(scope="session")
def store_path(tmp_path_factory):
    """A store of 37 samples with views of 160 and 96 pixels."""
    return make_store(tmp_path_factory.mktemp("stores") / "val.ocrs", samples=37, sizes=(160, 96))


@pytest.fixture(scope="session")
def other_path(tmp_path_factory):
    """Another store of 7 samples, same first view."""
    return make_store(
        tmp_path_factory.mktemp("stores") / "other.ocrs", samples=7, seed=11, prefix="other"
    )


@pytest.fixture
def shared_files():
    """List the inodes of shared memory that the test has mapped; other tests may hold theirs."""

    def mapped():
        maps = Path("/proc/self/maps")
        lines = maps.read_text(errors="replace").splitlines() if maps.exists() else ()
        return {line.split()[4] for line in lines if "/torch_" in line or "ocrstore-slot" in line}

    before = mapped()
    return lambda: mapped() - before
