"""Builds that are killed, interrupted or run out of disk: nothing is lost, the next one resumes."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

import ocrstore
from ocrstore.building.build import build
from ocrstore.errors import WorkerDiedError
from ocrstore.verification import verify
from tests.building.conftest import REPOSITORY, SIZE, draw, encode, kinds
from tests.building.interrupting import GROUP, SMALL, fresh, go_on, run_child

COUNT = 150


@pytest.fixture
def many(dataset):
    """Pictures for two row groups and a bit, quick to make."""
    for i in range(COUNT):
        pixels = draw(24, 30)
        pixels[0, 0] = (i, 255 - i, i)
        dataset.add(f"{i:04}.png", encode(pixels, ".png"), quads=SMALL)
    return dataset


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize(
    ("at", "resumed", "workers"),
    [(10, 0, 0), (100, GROUP, 0), (100, GROUP, 2), (COUNT, 2 * GROUP, 0)],
)
def test_sigkill(many, at, resumed, workers):
    """Killed at any moment: no store, and the next build takes up every committed group."""
    body = f"if now.done == {at}: os.kill(os.getpid(), signal.SIGKILL)"
    run_child(many, body, workers=workers, code=-signal.SIGKILL)
    assert not many.store.exists()
    report = go_on(many)
    assert report.resumed == report.reused == resumed
    assert report.derived == COUNT - resumed and report.samples == COUNT
    assert report.fingerprint == fresh(many)
    assert ocrstore.verify(many.store).ok
    assert {p.name for p in many.root.iterdir()} == {"images", "gt", "out.ocrs", "fresh.ocrs"}


@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_ctrl_c(many):
    """Ctrl-C reaches the workers, too; they leave it to the build, which keeps finished samples."""
    body = "if now.done == 70: os.killpg(0, signal.SIGINT)"
    done = run_child(many, body, workers=2)
    assert done.returncode not in (0, -signal.SIGKILL) and "KeyboardInterrupt" in done.stderr
    assert not many.store.exists()
    report = go_on(many)
    assert report.resumed == GROUP and report.fingerprint == fresh(many)


@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_ctrl_c_on_the_command_line(many):
    """The command says how much is kept, and its exit code is the shell's for Ctrl-C."""
    done = interrupt_command(many, after=70)
    assert done.returncode == 130
    assert f"{GROUP} samples are kept; run the same command to resume" in done.stderr
    assert go_on(many).resumed == GROUP


@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_ctrl_c_before_anything_is_kept(many):
    """Before the first row group, and with --force, nothing can be resumed, and it says so."""
    done = interrupt_command(many, after=GROUP - 1)
    assert done.returncode == 130 and "Nothing is kept yet" in done.stderr
    assert "resume" not in done.stderr and not many.store.exists()
    done = interrupt_command(many, "--force", after=70)
    assert done.returncode == 130 and "starts from scratch, because of --force" in done.stderr


def interrupt_command(many, *options, after):
    """Run `ocrstore build` in a child, with Ctrl-C after so many samples."""
    script = f"""
        import os, signal, sys
        from ocrstore.building import run
        from ocrstore.cli import main

        tell = run._Run._tell

        def interrupt(self):
            tell(self)
            if self._done == {after}:
                os.killpg(0, signal.SIGINT)

        run._Run._tell = interrupt
        sys.argv = ["ocrstore", "build", {str(many.images)!r}, "--out", {str(many.store)!r},
                    "--size", "{SIZE}", "--workers", "0", *{options!r}]
        main()
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        encoding="utf-8",
        start_new_session=True,
        timeout=300,
    )


def test_what_changes_between_the_runs(many):
    """A resumed build sees pictures that changed, went, came, or got another annotation since."""
    body = "if now.done == 100: os.kill(os.getpid(), signal.SIGTERM)"
    run_child(many, body)
    many.add("0003.png", encode(draw(26, 30), ".png"), quads=SMALL)
    many.annotate("0004.png", "1,1,20,1,20,20,1,20,x")
    (many.images / "0005.png").unlink()
    (many.gt / "gt_0005.txt").unlink()
    many.add("0006.png", b"now broken")
    many.add("00000.png", encode(draw(24, 31), ".png"), quads=SMALL)
    report = go_on(many)
    assert report.resumed == GROUP - 4
    assert report.skipped == ["0006.png"] and kinds(report) == {"bad-picture"}
    assert report.fingerprint == fresh(many)
    assert verify(many.store, source=many.images, workers=0).ok


def test_another_recipe_does_not_resume(many):
    """What an interrupted build left is used by the same build only."""
    run_child(many, "if now.done == 100: os.kill(os.getpid(), signal.SIGTERM)")
    report = go_on(many, size=SIZE // 2)
    assert report.resumed == 0 and report.samples == COUNT


def test_a_killed_rewrite_leaves_the_store(many):
    """A store that is there stays as it is until the new one is whole; the rewrite resumes."""
    build(many.images, many.store, size=32, workers=0)
    before = many.store.read_bytes()
    run_child(many, "if now.done == 100: os.kill(os.getpid(), signal.SIGTERM)")
    assert many.store.read_bytes() == before
    report = go_on(many)
    assert report.action == "rewrite" and report.resumed == GROUP
    assert report.fingerprint == fresh(many)


def test_a_killed_update_leaves_the_store(many):
    """Changes in place appear together or not at all."""
    go_on(many)
    fingerprint = ocrstore.open(many.store).fingerprint
    for i in range(5):
        many.add(f"new{i}.png", encode(draw(24, 30, seed=i), ".png"), quads=SMALL)
    run_child(many, "if now.done == 3: os.kill(os.getpid(), signal.SIGTERM)")
    assert ocrstore.open(many.store).fingerprint == fingerprint
    report = go_on(many)
    assert report.action == "update" and report.derived == 5
    assert report.fingerprint == fresh(many) and ocrstore.verify(many.store).ok


@pytest.mark.skipif(sys.platform == "win32", reason="needs file size limits")
def test_a_full_disk(many):
    """The disk refuses: one clear error, and the next build resumes."""
    hidden = many.root / ".out.ocrs.partial"
    body = f"""
        import resource
        if now.done == 70:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            nbytes = os.stat({str(hidden)!r}).st_size + 10_000  # no room for another row group
            resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))
    """
    done = run_child(many, body, code=1)
    assert "ocrstore.errors.WriteError" in done.stderr
    assert not many.store.exists()
    report = go_on(many)
    assert report.resumed >= GROUP and report.fingerprint == fresh(many)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_worker(many, children):
    """A worker that is killed ends the build with an error that says how to resume."""

    def kill(now):
        if now.done == 80:
            children()[0].kill()

    with pytest.raises(WorkerDiedError, match=r"SIGKILL.*build again to resume.*--workers"):
        go_on(many, workers=2, progress=kill)
    assert not many.store.exists() and not children()
    report = go_on(many)
    assert report.resumed == GROUP and report.fingerprint == fresh(many)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSEGV")
def test_a_worker_that_crashes_once(many, children):
    """A crash is given a second chance by a new worker; nothing is lost."""

    def crash(now):
        if now.done == 20:
            children()[0].send_signal(signal.SIGSEGV)

    report = go_on(many, workers=2, progress=crash)
    assert report.samples == COUNT and report.ok and report.fingerprint == fresh(many)


def test_a_picture_that_vanishes(many):
    """A picture that goes while the build runs is skipped and named."""

    def remove(now):
        if now.done == 5:
            (many.images / "0100.png").unlink()

    report = go_on(many, progress=remove)
    assert report.skipped == ["0100.png"] and kinds(report) == {"vanished"}
    assert go_on(many).removed == 0


def test_a_picture_that_changes(many):
    """What is stored is one state of the file, and the next build sees that it changed."""

    def change(now):
        if now.done == 5:
            many.add("0100.png", encode(draw(24, 30, seed=7), ".png"), quads=SMALL)
            many.add("0002.png", encode(draw(24, 30, seed=8), ".png"), quads=SMALL)

    report = go_on(many, progress=change)
    assert report.ok and report.samples == COUNT
    again = go_on(many)
    assert again.derived == 1 and "0002.png" in again.reasons[0]
    assert verify(many.store, source=many.images, workers=0).ok


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_picture_that_never_rests(many):
    """A file that is different each time it is read is skipped and named."""
    (many.images / "clock.png").symlink_to("/proc/uptime")
    report = go_on(many)
    assert report.skipped == ["clock.png"] and kinds(report) == {"no-annotation", "changing"}
