"""What tests of several areas share, and the table of skipped tests at the end of a run."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
from hypothesis import settings

import ocrstore

ROOT = Path(__file__).parent.parent

# at its import albumentations asks the network for a newer version, and warns where there is none
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

# the same examples in every run; `pytest --hypothesis-profile=seek` looks for others
settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("seek", deadline=None)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # started in the background by a script: programs started from here would never see a Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line per reason for which tests, whole files or folders were skipped."""
    counts: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        _, _, reason = report.longrepr
        kind = "test" if "::" in report.nodeid else "file"
        counts[reason.removeprefix("Skipped: "), kind] += 1
    if counts:
        terminalreporter.section("skipped")
        for (reason, kind), count in sorted(counts.items()):
            terminalreporter.line(f"{count:6} {kind + 's' * (count > 1):15} {reason}")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed the global generators, so that no test depends on those before it."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a small store and returns its path."""

    def make(name: str = "store.ocrs", *, samples: int = 8, side: int = 64) -> Path:
        path = tmp_path / name
        columns = {
            "image": ocrstore.Column("uint8", (None, None, 3)),
            "tensor": ocrstore.Column("uint8", (side, side, 3)),
            "text": ocrstore.Column("int16", (None,), codec="zstd"),
        }
        with ocrstore.create(path, columns) as writer:
            for number in range(samples):
                arrays = {
                    "image": np.full((10 + number % 7, 20, 3), number % 251, np.uint8),
                    "tensor": np.full((side, side, 3), number % 251, np.uint8),
                    "text": np.arange(number % 7, dtype=np.int16),
                }
                writer.append(f"s{number}", arrays, attributes={"number": number})
        return path

    return make


@pytest.fixture(scope="session")
def memory_folder() -> Iterator[Path]:
    """Return a folder in memory where there is one: nobody waits for the disk there."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="ocrstore-test-") as name:
        yield Path(name)


@pytest.fixture
def quick_path(memory_folder: Path) -> Path:
    """Return a new folder in memory."""
    return Path(tempfile.mkdtemp(dir=memory_folder))


@pytest.fixture
def public_path(quick_path: Path) -> Path:
    """Return a new folder that every user may look into."""
    for folder in (quick_path.parent, quick_path):
        folder.chmod(0o755)
    return quick_path


@pytest.fixture
def as_nobody() -> Callable[[Callable[[], Any]], Any]:
    """Return a function that calls another in a child process without the rights of root.

    What is called returns something that can be pickled, or raises it. It must have imported what
    it needs: the child may not be allowed to read Python's files.
    """
    if not hasattr(os, "setuid"):
        pytest.skip("permission bits are of POSIX")

    def call(function: Callable[[], Any]) -> Any:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
            child = os.fork()
        if child == 0:
            try:
                if os.getuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                answer = (True, function())
            except BaseException as exc:
                answer = (False, exc)
            with os.fdopen(writing, "wb") as file:
                pickle.dump(answer, file)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            returned, answer = pickle.load(file)
        os.waitpid(child, 0)
        if returned:
            return answer
        raise answer

    return call


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """List the child processes that a test has started; those of other tests may live on."""
    before = set(psutil.Process().children())
    return lambda: [child for child in psutil.Process().children() if child not in before]


@pytest.fixture
def run_driver() -> Callable[..., list[Any]]:
    """Return a function that runs a script of tests/drivers and returns its lines of JSON."""

    def run(name: str, *arguments: object, **variables: str) -> list[Any]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        command = [sys.executable, str(ROOT / "tests" / "drivers" / name), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr + done.stdout
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.fixture(scope="session")
def faults_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the library that makes system calls fail; skip where that cannot be done."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("making system calls fail needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = ROOT / "tests" / "drivers" / "faults.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True
    )
    return str(library)


WORDS = ("TOTAL", "12.50", "receipt", "Milk", "bread")


@pytest.fixture(scope="session")
def drawn_folder(tmp_path_factory):
    """Write six pictures with words on paper, and ICDAR annotations beside them."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "images").mkdir()
    (folder / "gt").mkdir()
    for number in range(6):
        rng = np.random.default_rng(number)
        picture = np.clip(rng.normal(215, 6, (360, 480, 3)), 0, 255).astype(np.uint8)
        lines = []
        for place in range(5):
            word = WORDS[(number + place) % len(WORDS)]
            left, top = 20 + int(rng.integers(0, 200)), 15 + 70 * place
            h = 32  # in every OpenCV: the fonts of version 5 are taller
            (w, _), _ = cv2.getTextSize(word, cv2.FONT_HERSHEY_SIMPLEX, 1.2, 2)
            at = (left + 4, top + h + 4)
            cv2.putText(picture, word, at, cv2.FONT_HERSHEY_SIMPLEX, 1.2, (40, 30, 30), 2)
            right, bottom = left + w + 8, top + h + 12
            lines.append(f"{left},{top},{right},{top},{right},{bottom},{left},{bottom},{word}")
        lines.append("400,300,470,300,470,350,400,350,###")
        ok, data = cv2.imencode(".jpg", picture)
        assert ok
        (folder / "images" / f"img_{number}.jpg").write_bytes(data.tobytes())
        (folder / "gt" / f"gt_img_{number}.txt").write_text("\n".join(lines) + "\n")
    return folder
