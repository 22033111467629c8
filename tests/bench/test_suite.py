"""The suite around the cells: peers, environments, journal, page, plots, one small run."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("albumentations")

from tests.bench.conftest import ABOUT, COUNT, SIZE, make_results, make_samples, rate
from tools.bench import page, peers, plan, plots, prepared, suite, venvs
from tools.bench.plan import Cell
from tools.bench.results import Journal, Result, Table, read_csv, write_csv

SOURCES = Path(peers.__file__).parent
TINY = plan.Settings(COUNT, SIZE, 4, (0,), (False,), ("touch",), 1, 0.01, 5.0, 0.01, (), 0)


@pytest.mark.parametrize("peer", peers.available(), ids=lambda peer: peer.name)
def test_every_peer_speaks_the_interface(peer):
    """Each has a title, pinned requirements, a note, and the two functions with their arguments."""
    assert peer.title
    assert peer.note
    assert all("==" in requirement for requirement in peer.requirements)
    tree = ast.parse((SOURCES / f"{peer.name}.py").read_text("utf-8"))
    found = {n.name: n.args for n in tree.body if isinstance(n, ast.FunctionDef)}
    names = {n.id for node in tree.body if isinstance(node, ast.Assign) for n in node.targets}
    from_others = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    names |= {alias.name for node in from_others for alias in node.names}
    assert {"build", "loader"} <= found.keys() | names
    if "loader" in names:
        return  # another peer's, tested there
    keywords = {argument.arg for argument in found["loader"].kwonlyargs}
    assert "prepared" in keywords
    assert found["loader"].kwarg or {"workers", "shuffle", "batch_size", "seed"} <= keywords
    imported = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    roots = {a.name for n in imported if isinstance(n, ast.Import) for a in n.names}
    roots |= {n.module for n in imported if isinstance(n, ast.ImportFrom)}
    assert not any((name or "").partition(".")[0] == "ocrstore" for name in roots)


def test_peers_keep_their_own_pins_but_not_of_torch():
    """What a peer pins is left out of the constraints for it; torch never is."""
    text = venvs.constraints_for(("numpy==2.1.3", "torch==1.0", "mosaicml-streaming==0.11"))
    assert "numpy==" not in text
    assert "torch==" in text
    assert "pyarrow==" in text


def test_an_installers_last_words_name_no_places():
    """Warnings are left out; addresses and folders of a machine too."""
    text = f"WARNING: x\nERROR: no wheel at https://host/simple/ffcv in {venvs.ROOT}/.bench\n\n"
    assert venvs.last_words(text) == "ERROR: no wheel at … in .bench"


def test_a_peer_that_cannot_be_installed_is_a_row(tmp_path, monkeypatch):
    """The reason is in the results, and no cell is run."""

    def fail(peer, folder):
        raise venvs.InstallError("no such wheel")

    monkeypatch.setattr(venvs, "make", fail)
    run = suite.Suite(tmp_path, TINY)
    assert run.environment(peers.find("webdataset")) is None
    (result,) = run.journal.results.values()
    assert (result.status, result.why) == ("not installed", "no such wheel")


def test_a_run_is_resumed_where_it_stopped(tmp_path):
    """Finished cells are kept, a torn line and failed cells are done again."""
    path = tmp_path / "results.jsonl"
    done, failed = Cell("rate", "lmdb", 2, True, "touch", 0), Cell("cold", "lmdb", 2, False)
    journal = Journal(path)
    journal.begin(asdict(TINY), resume=True)
    journal.add(Result(done, "ok", {"rate": 5.0}))
    journal.add(Result(failed, "failed", {}, why="ended by SIGKILL"))
    with path.open("a") as file:
        file.write('{"kind": "rate", "pe')
    again = Journal(path)
    again.begin(asdict(TINY), resume=True)
    assert again.has(done)
    assert not again.has(failed)
    assert again.results[done.name].figures == {"rate": 5.0}
    again.add(Result(failed, "ok", {"cold_epoch_s": 1.0}))
    assert all(json.loads(line) for line in path.read_text().splitlines())
    more = Journal(path)
    more.begin({**asdict(TINY), "rounds": 9}, resume=True)
    assert more.has(done)
    with pytest.raises(SystemExit, match="other settings"):
        Journal(path).begin(asdict(plan.QUICK), resume=True)
    fresh = Journal(path)
    fresh.begin(asdict(TINY), resume=False)
    assert not fresh.has(done)


def test_a_plan_is_interleaved_and_whole():
    """A round has every cell once, compared peers are neighbours, limits have no workers."""
    chosen = [peers.find(name) for name in ("ocrstore", "memmap", "limit_view")]
    cells = plan.measurements(chosen, plan.FULL, 1)
    assert len({cell.name for cell in cells}) == len(cells) == 2 * 16 + 4 + 2 * 2 + 2
    assert [cell.peer for cell in cells[:3]] == ["ocrstore", "memmap", "limit_view"]
    assert all(cell.round == 1 for cell in cells)


def test_figures_over_rounds():
    """Medians prefer quiet rounds; ratios are made within rounds; disturbed cells are marked."""
    results = [
        rate("ocrstore", 1000.0),
        rate("ocrstore", 400.0, round=1, disturbance=0.5),
        rate("lmdb", 100.0, disturbance=0.2),
        rate("lmdb", 40.0, round=1, disturbance=0.2),
    ]
    table = Table(results)
    mine = table.spread("rate", "rate", "ocrstore", workers=2)
    assert (mine.median, mine.disturbed) == (1000.0, False)
    theirs = table.spread("rate", "rate", "lmdb", workers=2)
    assert (theirs.median, theirs.least, theirs.disturbed) == (70.0, 40.0, True)
    assert table.ratio("rate", "rate", "lmdb", "ocrstore", workers=2) == pytest.approx(0.1)
    assert table.spread("rate", "rate", "lmdb", workers=4) is None
    assert page.figure(theirs) == "~70.0"


def test_results_survive_the_csv_file(tmp_path):
    """Writing and reading gives the same results and the same facts about the run."""
    path = tmp_path / "benchmarks.csv"
    write_csv(path, make_results(), ABOUT)
    results, about = read_csv(path)
    assert results == make_results()
    assert about == ABOUT


def test_page_and_plots_are_made_from_results(tmp_path):
    """The page has the figures, the losses, the factor and who is missing; the plots are drawn."""
    table = Table(make_results())
    images = plots.draw_all(table, ABOUT, peers.available(), tmp_path / "images")
    assert set(images) == set(page.ALT)
    for path in images.values():
        assert path.read_text("utf-8").startswith("<?xml")
    written = tmp_path / "figures" / "peers.md"
    page.write(written, table, ABOUT, peers.available(), images)
    text = written.read_text("utf-8")
    assert "{" not in text.replace("{plot", "")
    assert "| **ocrstore** | 1,001 | 1.00 |" in text
    assert "20.0 times as much" in text
    assert "* Faster: limit: a bare view (0 workers, shuffled, touch: " in text
    assert "Less disk space than ocrstore's 1,000: LMDB, pickled samples (900)." in text
    assert "Not measured: no wheel \\| for this" in text
    assert all(f"(../{path.relative_to(tmp_path)})" in text for path in images.values())


def test_a_cell_that_dies_is_a_result(tmp_path):
    """What a process says before it ends is the reason; nothing is swallowed."""
    found, why = suite.run_cell(
        Path(venvs.sys.executable), {"kind": "rate", "peer": "nobody"}, tmp_path, timeout=300
    )
    assert found is None
    assert "nobody" in why
    result = suite.to_result(Cell("rate", "nobody", 0, True, "touch"), found, why)
    assert result.status == "failed"


@pytest.mark.slow
def test_a_small_run_in_fresh_processes(tmp_path, monkeypatch):
    """ocrstore and numpy.memmap are built, checked and measured, each in a process of its own."""

    def prepare(folder, *, count, size):
        prepared.write(folder, make_samples(), count=count, pictures=tmp_path, source="noise")
        return prepared.read(folder)

    monkeypatch.setattr(suite, "prepare", prepare)
    chosen = [peers.find(name) for name in ("ocrstore", "memmap")]
    run = suite.Suite(tmp_path, TINY)
    run.run(chosen)
    results = list(run.journal.results.values())
    assert [result.status for result in results] == ["ok"] * 6, results
    table = Table(results)
    for peer in ("ocrstore", "memmap"):
        assert table.spread("rate", "rate", peer).median > 0
    again = suite.Suite(tmp_path, TINY, resume=True)
    monkeypatch.setattr(again, "do", lambda *_: pytest.fail("everything is done already"))
    again.run(chosen)
