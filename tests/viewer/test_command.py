"""`ocrstore view` as the shell starts it, and what the wheel has to carry."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import ocrstore
from ocrstore import cli

ROOT = Path(ocrstore.__file__).parent.parent


def start(*arguments):
    """Start the command in a process of its own."""
    code = "from ocrstore.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "view", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; returns exit code and standard error."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ocrstore", "view", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code, capsys.readouterr().err

    return run


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_prints_the_address_answers_and_ends_with_ctrl_c(shared_store):
    """The address works as printed; Ctrl-C ends with exit code 0 and no traceback."""
    pytest.importorskip("uvicorn", reason="the viewer needs ocrstore[view]")
    process = start(shared_store, "--no-browser")
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    address = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S{20,}", "".join(lines))
    assert address, "".join(lines) + process.stderr.read()
    with urllib.request.urlopen(address[0], timeout=300) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(address[0] + "x", timeout=300)
    assert caught.value.code == 403
    caught.value.close()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0 and error == "" and "stopped" in out


def test_a_port_in_use(run, shared_store):
    """The message names the port and the remedy."""
    pytest.importorskip("uvicorn", reason="the viewer needs ocrstore[view]")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, error = run(shared_store, "--no-browser", "--port", port)
    assert code == 1 and f"port {port}" in error and "--port" in error


def test_without_the_server_library(run, shared_store, monkeypatch):
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "ocrstore.viewer.app", raising=False)
    code, error = run(shared_store)
    assert code == 2 and "ocrstore[view]" in error


def test_wrong_predictions(run, shared_store, tmp_path):
    """Predictions that cannot be used are an error before anything is served."""
    pytest.importorskip("uvicorn", reason="the viewer needs ocrstore[view]")
    (tmp_path / "elsewhere.txt").write_text("1,2,3,4,5,6,7,8\n")
    code, error = run(shared_store, "--no-browser", "--predictions", tmp_path)
    assert code == 1 and "none of its 1 pictures" in error


def test_matching_needs_no_torch():
    """Neither the viewer nor the evaluation imports torch."""
    pytest.importorskip("uvicorn", reason="the viewer needs ocrstore[view]")
    code = (
        "import sys, ocrstore.viewer.app, ocrstore.viewer.live; "
        "print([n for n in ('torch', 'lightning', 'duckdb') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "[]"
