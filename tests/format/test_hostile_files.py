"""The nastiest files, opened in a process that may hardly allocate and not run for long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.format import test_index_rejections, test_rejections
from tests.format.rejecting import write_store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="address space limits of Linux")

ROOT = Path(__file__).parents[2]
HEADROOM = 160 * 2**20
NASTY = {
    "named_pipe",
    "device",
    "zip_file",
    "page_size_absurd",
    "depth_absurd",
    "value_of_4_gib",
    "value_page_absurd",
    "tree_that_is_its_own_child",
    "tree_too_deep",
    "tree_with_two_ways_to_every_page",
    "manifest_absurdly_long",
    "index_absurdly_long",
    "index_padding_too_long",
    "manifest_of_65_mib",
    "manifest_with_a_huge_number",
    "manifest_deeper_than_the_parser",
    "metadata_far_too_deep",
    "samples_absurd",
    "column_shape_too_large",
    "footer_absurd",
    "footer_root_absurd",
    "index_that_inflates_to_a_tebibyte",
    "text_offset_behind_the_end",
    "attribute_an_empty_struct",
    "samples_too_many",
    "nbytes_absurd",
    "shape_absurd",
    "shape_absurd_when_decoded",
    "shape_empty_but_absurd",
}
CHILD = """
import json, resource, sys
import ocrstore, ocrstore.store, ocrstore.verification  # before the limit counts
from ocrstore.errors import OCRStoreError
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for path in sys.argv[2:]:
    for action in (ocrstore.open, lambda p: ocrstore.open(p, generation=7), ocrstore.verify):
        try:
            action(path)
            outcome = "opened"
        except OCRStoreError as exc:
            outcome = type(exc).__name__
        print(json.dumps([path, outcome]), flush=True)
"""


def test_nothing_hangs_crashes_or_allocates(tmp_path):
    """A process with little memory to spare answers every nasty file with a typed error."""
    made = []
    for case in [*test_rejections.CASES, *test_index_rejections.CASES]:
        if case.name in NASTY:
            made.append(tmp_path / f"{case.name}.ocrs")
            write_store(made[-1])
            case.make(made[-1])
    assert len(made) == len(NASTY)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(HEADROOM), *map(str, made)],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    outcomes = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(outcomes) == 3 * len(made)
    for path, outcome in outcomes[::3]:
        assert outcome != "opened", path
