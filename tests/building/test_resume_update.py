"""Updates in place and added views that are interrupted: the store stays, the next run resumes."""

import json
import shutil
import signal
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import ocrstore
from ocrstore.building.add_view import add_view
from ocrstore.building.build import build
from ocrstore.building.derive import Deriver
from ocrstore.cli import cli as ocrstore_command
from ocrstore.errors import SourceError, WorkerDiedError
from ocrstore.format.layout import extent_key
from ocrstore.format.lmdb_reader import PageReader
from ocrstore.format.publish import partial_path
from ocrstore.format.resume import find_unfinished
from ocrstore.verification import verify
from tests.building.conftest import SIZE, Dataset, draw, encode, kinds
from tests.building.interrupting import ADD_VIEW, GROUP, SMALL, fresh, go_on, run_child

OLD, NEW, CHANGED, REMOVED = 30, 140, 8, 3
WORK = NEW + CHANGED
KILL = "if now.done == {}: os.kill(os.getpid(), signal.SIGKILL)"
NEEDS_KILL = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
PUBLICATION = """
    from ocrstore.format.lmdb_update import Environment

    commit = Environment.commit

    def killed(self, puts, **options):
        is_last = any(key.startswith(b"manifest/") for key in puts)
        if is_last and {at!r} == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        places = commit(self, puts, **options)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return places

    Environment.commit = killed
"""


def picture(number, *, seed=0):
    """A small picture, another one for every number."""
    pixels = draw(24, 30, seed=seed)
    pixels[0, 0] = (number % 256, 255 - number % 256, number // 256)
    return encode(pixels, ".png")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A store, and its source with new, changed and removed pictures since; made once."""
    dataset = Dataset(tmp_path_factory.mktemp("prepared") / "data")
    for i in range(OLD):
        dataset.add(f"m{i:04}.png", picture(i), quads=SMALL)
    go_on(dataset)
    return dataset


@pytest.fixture
def changed(prepared, tmp_path):
    """The store before its source changed, and the source after."""
    dataset = Dataset(tmp_path / "data")
    shutil.copytree(prepared.images, dataset.images, dirs_exist_ok=True)
    shutil.copytree(prepared.gt, dataset.gt, dirs_exist_ok=True)
    shutil.copy(prepared.store, dataset.store)
    for i in range(NEW):
        dataset.add(f"{'an'[i % 2]}{i:04}.png", picture(i + 300), quads=SMALL)
    for i in range(CHANGED):
        dataset.add(f"m{i:04}.png", picture(i, seed=7), quads=SMALL)
    for i in range(REMOVED):
        (dataset.images / f"m{OLD - 1 - i:04}.png").unlink()
        (dataset.gt / f"gt_m{OLD - 1 - i:04}.txt").unlink()
    return dataset


@pytest.fixture
def derived(monkeypatch):
    """The keys of all samples that this process derives, as it does."""
    keys = []
    derive = Deriver.derive

    def counted(self, task, **options):
        keys.append(task.sample.key)
        return derive(self, task, **options)

    monkeypatch.setattr(Deriver, "derive", counted)
    return keys


def names(dataset):
    """What lies in the data set's folder, hidden or not."""
    return {entry.name for entry in dataset.root.iterdir()} - {"fresh.ocrs"}


def assert_same(one, other):
    """Two stores have the same samples, bit by bit."""
    with ocrstore.open(one) as a, ocrstore.open(other) as b:
        assert a.fingerprint == b.fingerprint and a.keys == b.keys
        assert list(a.columns) == list(b.columns)
        for name in a.columns:
            for left, right in zip(a[name], b[name], strict=True):
                assert np.array_equal(left, right)
        assert all(a.attributes(row) == b.attributes(row) for row in range(len(a)))
        assert a.metadata["build"] == b.metadata["build"]


def assert_as_before(dataset, prepared):
    """Readers see the published generation, whole, whatever lies beside it."""
    assert ocrstore.verify(dataset.store).ok
    with ocrstore.open(dataset.store) as store, ocrstore.open(prepared.store) as before:
        assert (store.generation, store.fingerprint) == (1, before.fingerprint)
        assert store.keys == before.keys
        assert all((store["image"][row] == before["image"][row]).all() for row in range(OLD))


def uninterrupted(dataset, prepared):
    """The same store, updated in one go."""
    copy = dataset.root / "fresh.ocrs"
    shutil.copy(prepared.store, copy)
    report = build(dataset.images, copy, size=SIZE, workers=0)
    assert report.action == "update" and report.derived == WORK
    return copy


@NEEDS_KILL
@pytest.mark.parametrize(("at", "workers"), [(10, 0), (GROUP, 0), (100, 2), (WORK, 0)])
def test_sigkill(changed, prepared, derived, at, workers):
    """Killed at any moment: the store is as it was, and every committed group is taken up."""
    run_child(changed, KILL.format(at), workers=workers, code=-signal.SIGKILL)
    assert_as_before(changed, prepared)
    done = at // GROUP * GROUP
    report = go_on(changed)
    assert report.action == "update" and report.discarded == ""
    assert report.resumed == done and report.reused == done + OLD - CHANGED - REMOVED
    assert report.derived == len(derived) == WORK - done and report.removed == REMOVED
    assert names(changed) == {"images", "gt", "out.ocrs"}
    assert ocrstore.verify(changed.store).ok
    assert_same(changed.store, uninterrupted(changed, prepared))
    assert report.fingerprint == ocrstore.open(changed.root / "fresh.ocrs").fingerprint
    again = go_on(changed)
    assert again.action == "nothing" and again.resumed == 0


@NEEDS_KILL
@pytest.mark.parametrize("at", ["before", "after"])
def test_sigkill_at_the_publication(changed, prepared, derived, at):
    """Killed before the last commit, only that is left to do; behind it, nothing."""
    run_child(changed, "pass", before=PUBLICATION.format(at=at), code=-signal.SIGKILL)
    if at == "before":
        assert_as_before(changed, prepared)
    report = go_on(changed)
    # the last, smaller group is committed before the publication, and noted like the others
    assert (report.action, report.resumed, len(derived)) == (
        ("update", WORK, 0) if at == "before" else ("nothing", 0, 0)
    )
    assert report.discarded == "" and report.samples == OLD + NEW - REMOVED
    assert names(changed) == {"images", "gt", "out.ocrs"}
    assert_same(changed.store, uninterrupted(changed, prepared))


@NEEDS_KILL
def test_killed_again_and_again(changed, prepared, derived):
    """Each run adds to what the ones before have done."""
    for at in (70, 140):
        run_child(changed, KILL.format(at), code=-signal.SIGKILL)
    assert find_unfinished(changed.store).samples == 2 * GROUP
    report = go_on(changed)
    assert report.resumed == 2 * GROUP and len(derived) == WORK - 2 * GROUP
    assert_same(changed.store, uninterrupted(changed, prepared))


@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_ctrl_c(changed, prepared):
    """Ctrl-C reaches the workers, too; the update keeps finished samples."""
    body = "if now.done == 70: os.killpg(0, signal.SIGINT)"
    done = run_child(changed, body, workers=2)
    assert done.returncode not in (0, -signal.SIGKILL) and "KeyboardInterrupt" in done.stderr
    assert_as_before(changed, prepared)
    report = go_on(changed)
    assert report.resumed == GROUP and report.fingerprint == fresh(changed)


@pytest.mark.skipif(sys.platform == "win32", reason="needs file size limits")
def test_a_full_disk(changed, prepared):
    """The disk refuses: one clear error, and the next build resumes."""
    body = """
        import resource
        if now.done == 70:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            nbytes = os.path.getsize({!r})
            resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))
    """
    done = run_child(changed, body.format(str(changed.store)), code=1)
    assert "ocrstore.errors.WriteError" in done.stderr and "free some space" in done.stderr.lower()
    assert_as_before(changed, prepared)
    report = go_on(changed)
    assert report.resumed == GROUP and report.fingerprint == fresh(changed)


@NEEDS_KILL
def test_a_killed_worker(changed, prepared, children):
    """A worker that is killed ends the update with an error that says how to resume."""

    def kill(now):
        if now.done == 80:
            children()[0].kill()

    with pytest.raises(WorkerDiedError, match=r"SIGKILL.*build again to resume"):
        go_on(changed, workers=2, progress=kill)
    assert_as_before(changed, prepared)
    report = go_on(changed)
    assert report.resumed == GROUP and report.fingerprint == fresh(changed)


def interrupt(dataset, at=100):
    """Stop an update in this process; a row group is done and some more."""

    def stop(now):
        if now.done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(dataset, progress=stop)


def test_a_picture_that_vanishes_or_changes(changed):
    """During the update it is skipped and named, or the next build sees that it changed."""

    def remove(now):
        if now.done == 5:
            (changed.images / "n0131.png").unlink()
            changed.add("a0002.png", picture(2, seed=5), quads=SMALL)

    report = go_on(changed, progress=remove)
    assert report.skipped == ["n0131.png"] and kinds(report) == {"vanished"}
    again = go_on(changed)
    assert again.derived == 1 and "a0002.png" in " ".join(again.reasons)
    assert verify(changed.store, source=changed.images, workers=0).ok


def test_what_changes_between_the_runs(changed, derived):
    """A resumed update sees pictures that changed, went, came back, or came since."""
    interrupt(changed)
    # of the first row group, 64 of a0000, a0002, ..., in the order of the keys
    changed.add("a0002.png", picture(2, seed=5), quads=SMALL)
    changed.annotate("a0004.png", "1,1,20,1,20,20,1,20,x")
    for name in ("a0006", "m0020"):
        (changed.images / f"{name}.png").unlink()
        (changed.gt / f"gt_{name}.txt").unlink()
    changed.add("a0008.png", b"now broken")
    changed.add("a0009.png", picture(9), quads=SMALL)
    derived.clear()
    report = go_on(changed)
    assert report.resumed == GROUP - 4 and report.removed == REMOVED + 1
    assert report.skipped == ["a0008.png"] and kinds(report) == {"bad-picture"}
    assert {"a0002.png", "a0004.png", "a0008.png", "a0009.png"} <= set(derived)
    assert len(derived) == WORK - GROUP + 4
    assert report.fingerprint == fresh(changed)
    assert verify(changed.store, source=changed.images, workers=0).ok


def test_a_picture_that_is_again_as_it_was(changed, prepared):
    """Made as something else and interrupted, then put back: the store ends with what it had."""
    for entry in sorted(changed.images.glob("[an]*"))[40:]:
        entry.unlink()
        (changed.gt / f"gt_{entry.stem}.txt").unlink()
    for i in range(CHANGED, OLD - REMOVED):
        changed.add(f"m{i:04}.png", picture(i, seed=9), quads=SMALL)
    interrupt(changed, at=66)  # 40 new ones, and from m0000 on
    shutil.copy2(prepared.images / "m0001.png", changed.images)
    shutil.copy2(prepared.images / "m0009.png", changed.images)
    report = go_on(changed)
    assert report.action == "update" and report.resumed == GROUP - 2
    assert report.fingerprint == fresh(changed)
    assert verify(changed.store, source=changed.images, workers=0).ok


def test_problems_are_reported_once(changed):
    """What came up about resumed samples is in the report again, and once."""
    changed.add("a0010.png", encode(draw(24, 30)), quads=SMALL)  # a JPEG by another name
    for _ in range(2):
        interrupt(changed, at=70)
    report = go_on(changed)
    assert report.counts() == {"mislabelled": 1} and report.resumed == GROUP
    assert report.fingerprint == fresh(changed)
    described = [
        ocrstore.open(path).metadata["build"]
        for path in (changed.store, changed.root / "fresh.ocrs")
    ]
    assert described[0] == described[1]


def test_on_error_fail_is_resumable(changed):
    """Samples finished before the first loss are kept, and reused when it is fixed."""
    changed.add("n0131.png", b"broken", quads=SMALL)
    with pytest.raises(SourceError, match=r"n0131.*Finished row groups are kept"):
        go_on(changed, on_error="fail")
    changed.add("n0131.png", picture(1), quads=SMALL)
    report = go_on(changed, on_error="fail")
    assert report.resumed == 2 * GROUP and report.fingerprint == fresh(changed)


# -- what no longer fits


def test_another_recipe(changed):
    """Work of another recipe is discarded, and the report says why."""
    interrupt(changed)
    report = go_on(changed, size=SIZE // 2)
    assert report.action == "rewrite" and report.resumed == 0
    assert report.discarded == (
        f"{GROUP} samples of an interrupted run: it used another recipe or other views"
    )
    assert names(changed) == {"images", "gt", "out.ocrs"} and ocrstore.verify(changed.store).ok


def test_other_pictures(changed, tmp_path):
    """Work on another folder of pictures is discarded, although the names are the same."""
    interrupt(changed)
    shutil.copytree(changed.root / "images", tmp_path / "moved" / "images")
    shutil.copytree(changed.root / "gt", tmp_path / "moved" / "gt")
    report = build(tmp_path / "moved" / "images", changed.store, size=SIZE, workers=0)
    assert report.action == "update" and report.resumed == 0
    assert f"it used the pictures in {changed.images}" in report.discarded
    assert report.fingerprint == fresh(changed) and ocrstore.verify(changed.store).ok


def test_force_starts_over(changed, derived):
    """--force uses nothing of what is there, be it an interrupted update or a new file."""
    interrupt(changed)
    report = go_on(changed, force=True)
    assert (report.action, report.resumed, report.reused) == ("create", 0, 0)
    assert "--force rebuilds from scratch" in report.discarded
    assert report.fingerprint == fresh(changed)
    assert names(changed) == {"images", "gt", "out.ocrs"}
    changed.store.unlink()
    interrupt(changed)
    assert find_unfinished(changed.store).samples == GROUP
    derived.clear()
    report = go_on(changed, force=True)
    assert report.resumed == 0 and len(derived) == report.samples


def test_a_source_that_is_as_it_was(changed, prepared):
    """Nothing is left to be done: the interrupted run is discarded, and the store as it was."""
    interrupt(changed)
    shutil.rmtree(changed.images)
    shutil.rmtree(changed.gt)
    shutil.copytree(prepared.images, changed.images)
    shutil.copytree(prepared.gt, changed.gt)
    report = go_on(changed)
    assert report.action == "nothing" and "up to date without it" in report.discarded
    assert names(changed) == {"images", "gt", "out.ocrs"}
    assert_as_before(changed, prepared)
    assert not any("extents" in note for note in ocrstore.verify(changed.store).notes)


def test_a_store_that_others_changed(changed):
    """Another generation was published since: the work is discarded, and the report says why."""
    interrupt(changed)
    with ocrstore.edit(changed.store) as writer:
        writer.delete("m0010.png")
    report = go_on(changed)
    assert report.resumed == 0 and "generation 2 now, 1 when the work began" in report.discarded
    assert report.fingerprint == fresh(changed) and ocrstore.verify(changed.store).ok


def test_more_than_in_place(changed):
    """So much comes that a new file is written: the work in place is discarded."""
    interrupt(changed)
    for i in range(130):
        changed.add(f"x{i:04}.png", picture(i + 800), quads=SMALL)
    report = go_on(changed)
    assert report.action == "rewrite" and "too much has changed" in report.discarded
    assert report.fingerprint == fresh(changed)
    assert names(changed) == {"images", "gt", "out.ocrs"}


def test_damage(changed):
    """Unfinished work with changed bytes is made again, and the report says so."""
    interrupt(changed)
    with ocrstore.open(changed.store) as store:
        pages = PageReader(store.snapshot.mapping.buffer, name="store")
        place = pages.find(extent_key(store.snapshot.manifest.groups, "image"))
    with changed.store.open("r+b") as file:
        file.seek(place.offset + place.nbytes - 1)  # the last pixel of the group's last picture
        last = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([last[0] ^ 1]))
    report = go_on(changed)
    assert report.resumed == 0 and report.fingerprint == fresh(changed)
    assert report.discarded == (f"{GROUP} samples of an interrupted run: they are damaged")


# -- views


@NEEDS_KILL
@pytest.mark.parametrize(("at", "workers"), [(10, 0), (100, 0), (100, 2)])
def test_a_view_goes_on(changed, derived, at, workers):
    """Killed while a view is added: no trace of it for readers, and its row groups are taken up."""
    go_on(changed)
    copy = changed.root / "fresh.ocrs"
    shutil.copy(changed.store, copy)
    fingerprint, count = ocrstore.open(copy).fingerprint, len(ocrstore.open(copy))
    run_child(changed, KILL.format(at), workers=workers, call=ADD_VIEW, code=-signal.SIGKILL)
    with ocrstore.open(changed.store) as store:
        assert (store.fingerprint, store.generation) == (fingerprint, 2)
    assert ocrstore.verify(changed.store).ok
    derived.clear()
    done = at // GROUP * GROUP
    added = add_view(changed.store, size=96, workers=0)
    assert added.resumed == done and len(derived) == count - done and added.discarded == ""
    assert names(changed) == {"images", "gt", "out.ocrs"}
    add_view(copy, size=96, workers=0)
    assert_same(changed.store, copy)
    assert ocrstore.open(changed.store).metadata == ocrstore.open(copy).metadata
    assert ocrstore.verify(changed.store).ok


@NEEDS_KILL
def test_a_view_killed_behind_its_publication(changed):
    """The view is there; what lies beside the store goes with the next call."""
    go_on(changed)
    run_child(
        changed, "pass", call=ADD_VIEW, before=PUBLICATION.format(at="after"), code=-signal.SIGKILL
    )
    assert "96/tensor" in ocrstore.open(changed.store).columns
    assert partial_path(changed.store).exists() and find_unfinished(changed.store) is None
    assert add_view(changed.store, size=96, workers=0).columns == {}
    assert names(changed) == {"images", "gt", "out.ocrs"}


def test_views_and_updates_discard_each_other(changed):
    """One interrupted run beside a store: another one takes its place, and says so."""

    def stop(now, _=None):
        if getattr(now, "done", now) == 100:
            raise KeyboardInterrupt

    interrupt(changed)
    for i in range(OLD):  # a view is made of the pictures in the store
        assert f"m{i:04}.png" in ocrstore.open(changed.store).keys
    added = add_view(changed.store, size=96, workers=0)
    assert added.resumed == 0 and f"{GROUP} samples of an interrupted run" in added.discarded
    assert "it was another operation (build)" in added.discarded
    go_on(changed)
    with pytest.raises(KeyboardInterrupt):
        add_view(changed.store, size=48, workers=0, progress=stop)
    added = add_view(changed.store, size=40, workers=0)
    assert "another recipe" in added.discarded
    assert ocrstore.verify(changed.store).ok
    assert verify(changed.store, source=changed.images, workers=0).ok


def test_a_view_from_the_source_goes_on(changed, derived):
    """A store without its pictures takes the view from the source, and resumes like others."""

    def stop(done, _):
        if done == 100:
            raise KeyboardInterrupt

    changed.store.unlink()
    go_on(changed, columns=["tensor"])
    changed.annotate("a0010.png", "1,2,3,oops")
    go_on(changed, columns=["tensor"])
    options = {"size": 96, "columns": ["tensor"], "images": changed.images, "workers": 0}
    with pytest.raises(KeyboardInterrupt):
        add_view(changed.store, progress=stop, **options)
    derived.clear()
    added = add_view(changed.store, **options)
    assert added.resumed == GROUP and len(derived) == added.samples - GROUP
    assert verify(changed.store, source=changed.images, workers=0).ok


# -- the command line


def command(*arguments):
    """Run a command in this process; returns what it prints on standard output."""
    done = CliRunner().invoke(ocrstore_command, [*map(str, arguments)], standalone_mode=False)
    assert done.exception is None and not done.return_value, done.output
    return done.stdout


def test_the_commands_tell(changed):
    """Dry run, inspect, build and compact say what is unfinished, and what becomes of it."""
    arguments = ("build", changed.images, "--out", changed.store, "--size", SIZE)
    interrupt(changed)
    dry = command(*arguments, "--dry-run")
    assert f"{GROUP} samples (" in dry and "are reused" in dry
    plan = json.loads(command(*arguments, "--dry-run", "--json"))
    assert plan["unfinished"]["samples"] == GROUP and plan["unfinished"]["obstacle"] == ""
    other = json.loads(command(*arguments[:-1], 32, "--dry-run", "--json"))
    assert "another recipe" in other["unfinished"]["obstacle"]
    shown = command("inspect", changed.store)
    assert "unfinished" in shown and "not published" in shown and "✓" in shown
    facts = json.loads(command("inspect", changed.store, "--full", "--json"))
    assert facts["unfinished"]["nbytes"] > 0 and facts["verification"]["ok"]
    compacted = command("compact", changed.store)
    assert f"dropped {GROUP} samples (" in compacted
    assert names(changed) == {"images", "gt", "out.ocrs"}
    interrupt(changed)
    shown = command(*arguments, "--workers", 0)
    assert "are reused" in shown and f"({GROUP} resumed)" in shown
    assert json.loads(command("inspect", changed.store, "--json"))["unfinished"] is None
    assert json.loads(command("compact", changed.store, "--json"))["dropped_samples"] == 0


def test_the_commands_say_what_is_discarded(changed):
    """A build with another recipe tells before it begins, and add-view when it is done."""
    interrupt(changed)
    added = command("add-view", changed.store, "--size", 96, "--workers", 0)
    assert f"discarded {GROUP} samples of an interrupted run: it was another operation" in added
    interrupt(changed)
    arguments = ("build", changed.images, "--out", changed.store, "--workers", 0)
    shown = command(*arguments, "--size", 32)
    assert "are discarded: it used another recipe" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_ctrl_c_while_a_view_is_added(changed):
    """The command says that nothing is lost, and its exit code is the shell's for Ctrl-C."""
    go_on(changed)
    before = """
        from ocrstore.building import add_view as module
        from ocrstore.cli import main

        add = module.ColumnWriter.add

        def interrupt(self, *arguments, **options):
            add(self, *arguments, **options)
            if self._count == 70:
                os.killpg(0, signal.SIGINT)

        module.ColumnWriter.add = interrupt
        sys.argv = ["ocrstore", "add-view", {store!r}, "--size", "96", "--workers", "0"]
    """
    done = run_child(changed, "pass", before=before.format(store=str(changed.store)), call="main()")
    assert done.returncode == 130
    assert f"{GROUP} samples are kept; run the same command to resume" in done.stderr
    assert add_view(changed.store, size=96, workers=0).resumed == GROUP
