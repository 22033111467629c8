"""Builds in a child process that something happens to, and how they are resumed."""

import os
import subprocess
import sys
import textwrap

from ocrstore.building.build import build
from tests.building.conftest import REPOSITORY, SIZE

GROUP = 64  # samples in a row group
SMALL = [[[2, 2], [25, 2], [25, 20], [2, 20]]]


BUILD = "build({images!r}, {store!r}, size={size}, workers={workers}, progress=progress)"
ADD_VIEW = (
    "add_view({store!r}, size=96, workers={workers}, progress=lambda *now: progress(Now(*now)))"
)


def run_script(script):
    """Run Python code in a child that is its own process group; returns its result."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        encoding="utf-8",
        start_new_session=True,
        timeout=300,
    )


def run_child(dataset, body, *, workers=0, code=None, call=BUILD, before=""):
    """Build in a child that does `body` when a sample has been counted; returns its result."""
    call = call.format(
        images=str(dataset.images), store=str(dataset.store), size=SIZE, workers=workers
    )
    script = f"""
        import os, signal, sys
        from collections import namedtuple
        from ocrstore.building.add_view import add_view
        from ocrstore.building.build import build

        from ocrstore.format.lmdb_writer import LmdbWriter

        Now = namedtuple("Now", "done total")
        bulk_commit = LmdbWriter.commit

        def commit_and_wait(self, puts, **options):
            places = bulk_commit(self, puts, **options)
            self.wait()  # a thread writes; the tests need to know how far it got
            return places

        LmdbWriter.commit = commit_and_wait

        def progress(now):
{textwrap.indent(textwrap.dedent(body), " " * 12)}

{textwrap.indent(textwrap.dedent(before), " " * 8)}
        {call}
    """
    done = run_script(script)
    if code is not None:
        assert done.returncode == code, done.stderr
    return done


def fresh(dataset):
    """The fingerprint of an uninterrupted build."""
    return build(dataset.images, dataset.root / "fresh.ocrs", size=SIZE, workers=0).fingerprint


def go_on(dataset, **options):
    """Build again, in this process."""
    return build(dataset.images, dataset.store, **{"size": SIZE, "workers": 0, **options})
