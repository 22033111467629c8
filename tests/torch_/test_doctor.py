"""What training from a store costs: the memory of workers, and the command that tells."""

import json
import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import ocrstore
from ocrstore.cli import cli
from ocrstore.errors import SchemaError
from ocrstore.machine import Memory, ProcessMemory, memory_of
from ocrstore.torch import OCRStoreDataset, doctor
from ocrstore.torch.doctor import measure
from tools import crafting as craft

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' accounting")


@linux
def test_a_worker_costs_little(store_path):
    """With stored columns each worker takes next to nothing beyond interpreter and torch."""
    command = ["doctor", str(store_path), "--workers", "2", "--batch-size", "8", "--json"]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    record = json.loads(done.output)
    assert record["samples"] == 37 and record["fits"] is True
    assert 0 <= record["worker_nbytes"] < 2e6
    assert record["shm_growth"] < 4e6
    assert record["store"]["pss_file"] > 0


@linux
def test_memory_adds_up(monkeypatch):
    """Own memory is what is neither shared out nor a file's."""
    mine = memory_of(os.getpid())
    assert mine.rss >= mine.pss > mine.own > 0
    assert (mine + mine).pss == 2 * mine.pss
    assert ProcessMemory(pss_anonymous=3, pss_shared=4, pss_file=9).own == 7
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(RuntimeError, match=r"measuring val.ocrs failed"):
        measure("val.ocrs", workers=0)


@linux
def test_what_is_wrong_with_a_store_is_told_as_by_other_commands(store_path, tmp_path):
    """The fresh process hands an error of the store over, without a traceback."""
    path = Path(shutil.copyfile(store_path, tmp_path / "wrong.ocrs"))
    table = craft.index_table(path)
    flags = pa.array([[True] * 50] * len(table))
    craft.put_table(
        path, table.set_column(table.schema.get_field_index("ignored"), "ignored", flags)
    )
    with pytest.raises(SchemaError, match=r"attribute 'ignored': 50 elements for \d+ polygons"):
        measure(str(path), workers=0)


def make_diagnosis(**changes):
    """Return a finding with some fields changed."""
    fields = {
        "path": "a.ocrs",
        "samples": 3,
        "file_nbytes": 10**9,
        "view_nbytes": 10**9,
        "cached_nbytes": 0,
        "memory": Memory(10**10, 10**8, "machine"),
        "shm_nbytes": 64 * 2**20,
        "strategy": "leases",
        "finder": "scan",
        "workers": 2,
        "store": None,
        "bare": None,
        "shm_growth": None,
    }
    return doctor.Diagnosis(**{**fields, **changes})


def test_the_page_cache_is_compared_with_what_an_epoch_reads(store_path):
    """Not with the file, which has further columns and views."""
    mapping = ocrstore.open(store_path).snapshot.mapping
    if mapping.resident_nbytes() is None:
        pytest.skip("the system does not report what is in the page cache")
    OCRStoreDataset(store_path).warm()
    found = doctor.diagnose(store_path, workers=0)
    assert found.cached_nbytes == found.view_nbytes < found.file_nbytes
    first = ocrstore.open(store_path)["tensor"]
    part = [(int(first.offsets[0]), int(first.nbytes[0]))]
    assert mapping.resident_nbytes(part) == part[0][1] and mapping.resident_nbytes([]) == 0


def test_a_store_larger_than_memory_is_a_problem(store_path, monkeypatch):
    """Exit code 1 and the remedy when RAM or the control group's limit will not hold an epoch."""
    enough = Memory(10**10, 10**10, "cgroup")
    assert make_diagnosis().fits is False
    assert make_diagnosis(memory=enough).fits is True
    assert make_diagnosis().worker_nbytes is None
    large = ProcessMemory(rss=5, pss=4, pss_anonymous=3)
    findings = (
        (make_diagnosis(), 1),
        (make_diagnosis(memory=enough, store=large, bare=ProcessMemory(), shm_growth=0), 0),
    )
    for finding, code in findings:
        monkeypatch.setattr(doctor, "diagnose", lambda *args, found=finding, **options: found)
        done = CliRunner().invoke(cli, ["doctor", str(store_path)], standalone_mode=False)
        assert done.return_value == code
        assert ("WindowShuffleSampler" in done.output) == (code == 1)
        assert "/dev/shm has 67.1 MB" in done.output
        assert "page cache:" in done.output and "batches: leases" in done.output
        assert ("PSS divides it" in done.output) == (finding.store is not None)
        assert ("An epoch fits into memory" in done.output) == (finding.fits is True)
