"""Run ocrstore's commands in forked children, under attack if wanted, and judge how they end.

The parent has imported everything, so that a command takes 30 ms instead of seconds.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

MODES = {"before": 1, "halfway": 2, "fail": 3}  # of tests/drivers/faults.c
MEMORY = 6 * 2**30
SECONDS = 120
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Blow:
    """What happens to a command: a signal after some seconds, a system call, a limit."""

    send: int = 0
    after: float = 0.0
    call: tuple[str, int, int] | None = None  # mode, position, errno
    file_nbytes: int | None = None


NONE = Blow()


@dataclass
class Outcome:
    """What became of a command."""

    command: str
    code: int
    text: str
    seconds: float
    findings: list[str] = field(default_factory=list)


class Started(NamedTuple):
    """A command at work; `ready` can be read when it begins."""

    child: int
    ready: int
    output: IO[str]
    command: str


# -- what runs in children


def read_store(path: str) -> str:
    """Return a digest of everything that can be read, or what is wrong."""
    import ocrstore

    result = ocrstore.verify(path)
    if not result.ok:
        return "damaged: " + result.findings[0].message
    with ocrstore.open(path) as store:
        digest = hashlib.sha256(store.fingerprint.encode())
        for name in store.columns:
            for array in store[name]:
                digest.update(array.tobytes())
    return digest.hexdigest()


def read_folder(folder: str) -> dict[str, str]:
    """Return a digest for each file below a folder; of a training only the checkpoints."""
    from ocrstore.dbnet.checkpoint import read_checkpoint

    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix == ".ocrs":
            found[str(path.relative_to(folder))] = read_store(str(path))
        elif path.suffix == ".ckpt":
            read_checkpoint(path)
            found[str(path.relative_to(folder))] = "loads"
        elif path.suffix == ".json":
            json.loads(path.read_text())  # reports have times in them
            found[str(path.relative_to(folder))] = "JSON"
        elif path.is_file() and "run" not in path.parts:
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def use_dataset(path: str) -> None:
    """Read every sample, alone and in a batch, with annotations."""
    from ocrstore.torch import OCRStoreDataset

    dataset = OCRStoreDataset(path)
    for row in range(len(dataset)):
        dict(dataset[row])
    dataset.__getitems__(list(range(len(dataset))))


def use_viewer(path: str) -> None:
    """Ask the viewer for everything that a browser would; an internal error is a failure."""
    from ocrstore.viewer.app import Viewer
    from ocrstore.viewer.live import Live

    viewer = Viewer(Live(Path(path)))
    thread = threading.Thread(target=viewer.run)
    thread.start()
    pages = ("api/store", "api/state", "api/rows", "api/rows?filter=width>1", "api/rows?sort=key", "api/sample?row=1",
             "thumbnail/0?outlines=1", "picture/0?column=tensor", "picture/1?column=image")  # fmt: skip
    try:
        for page in pages:
            connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=SECONDS)
            connection.request(
                "GET", "/" + page, headers={"Cookie": f"ocrstore_{viewer.port}={viewer.token}"}
            )
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace")
            if answer.status == 500:
                raise RuntimeError(f"{page.partition('?')[0]}: {body[:300]}")
    finally:
        viewer.stop()
        thread.join()


ACTIONS: dict[str, Callable[[str], Any]] = {
    "read": read_store, "files": read_folder, "dataset": use_dataset, "viewer": use_viewer,
}  # fmt: skip


def run_command(arguments: list[str]) -> int:
    """Run a command, or one of the actions above with the same errors; return the exit code."""
    from ocrstore import cli, errors

    try:
        if arguments[0] not in ACTIONS:
            sys.argv = ["ocrstore", *arguments]
            cli.main()
        print(json.dumps(ACTIONS[arguments[0]](arguments[1])))
    except errors.OCRStoreError as exc:
        cli.fail(str(exc))
        return 1
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


# -- the parent


class Runner:
    """Runs commands in a folder, and collects exit codes and findings."""

    def __init__(self, folder: Path, *, loud: bool = False) -> None:
        self.folder, self.loud = folder, loud
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.counts: Counter[str] = Counter()
        self.findings: list[tuple[str, str, str]] = []
        self._running: set[int] = set()

    def close(self) -> None:
        """Kill the commands that still run: a Ctrl-C does not reach their sessions."""
        for child in self._running:
            for send in (os.kill, os.killpg):
                with suppress(ProcessLookupError):
                    send(child, signal.SIGKILL)
            with suppress(ChildProcessError):  # it was waited for, and left processes
                os.waitpid(child, 0)

    def start(self, *arguments: object, blow: Blow = NONE, fresh: bool = False) -> Started:
        """Fork a child that runs a command, in a session of its own; `fresh` in a new Python."""
        output = tempfile.TemporaryFile("w+", dir=self.folder, errors="replace")  # noqa: SIM115  # closed by `finish`
        ready, told = os.pipe()
        child = os.fork()
        if child:
            self._running.add(child)
            os.close(told)
            return Started(child, ready, output, " ".join(map(str, arguments)))
        code = 70
        try:
            os.setsid()
            os.chdir(self.folder)
            tempfile.tempdir = os.environ["TMPDIR"] = str(self.temporary)
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            sys.stdout, sys.stderr = (
                os.fdopen(1, "w", errors="backslashreplace"),
                os.fdopen(2, "w", 1, errors="backslashreplace"),
            )
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if blow.file_nbytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (blow.file_nbytes, blow.file_nbytes))
            if fresh:
                os.execv(sys.executable, [sys.executable, "-m", "ocrstore", *map(str, arguments)])
            size = (
                int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                + MEMORY
            )
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
            os.write(told, b"x")  # with `fresh` exec closes it
            if blow.call:
                mode, position, error = blow.call
                ctypes.CDLL(None).faults_arm(MODES[mode], ctypes.c_long(position), error)
            code = run_command([str(a) for a in arguments])
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # what follows is not ours to interrupt
            if blow.call:
                calls = ctypes.CDLL(None).faults_calls()
                ctypes.CDLL(None).faults_arm(0, ctypes.c_long(0), 0)
                if blow.call[1] == 0:
                    print(f"calls={calls}")
            sys.stdout.flush()
            atexit._run_exitfuncs()  # what a process does at its end, without ours
        finally:
            os._exit(code)

    def finish(self, started: Started, blow: Blow = NONE) -> Outcome:
        """Wait for a command, strike it if asked to, and judge how it ended."""
        child, ready, output, command = started
        os.read(ready, 1)
        os.close(ready)
        begin, sent = time.monotonic(), 0
        while not (waited := os.waitpid(child, os.WNOHANG))[0]:
            passed = time.monotonic() - begin
            if passed > SECONDS or (blow.send and not sent and passed >= blow.after):
                sent = signal.SIGKILL if passed > SECONDS else blow.send
                os.kill(child, sent)
            time.sleep(0.001)
        code = os.waitstatus_to_exitcode(waited[1])
        outcome = Outcome(command, code, "", time.monotonic() - begin)
        if outcome.seconds > SECONDS:
            outcome.findings.append(f"still at work after {SECONDS} s")
        leftover = self._end_session(child)
        self._running.remove(child)
        output.seek(0)
        outcome.text = output.read()
        output.close()
        killed = {"before", "halfway"} & {blow.call[0] if blow.call else ""}
        allowed = {0, 1, 2} | {
            signal.SIGINT: {130},
            signal.SIGTERM: {143, -15},
            signal.SIGKILL: {-9},
        }.get(sent, set())
        if code not in allowed | ({-9} if killed else set()):
            outcome.findings.append(f"exit code {code}")
        if "Traceback (most recent call last)" in outcome.text or re.search(
            "report (this|it)", outcome.text
        ):
            outcome.findings.append(describe(outcome.text))
        if CONTROLS.search(outcome.text):
            outcome.findings.append("prints a control character")
        if leftover:
            outcome.findings.append(f"leaves a process: {leftover}")
        if left := sorted(re.sub(r"[a-z0-9_]{8}$", "*", p.name) for p in self.temporary.iterdir()):
            outcome.findings.append(f"leaves {left[0]} in the temporary folder (exit code {code})")
            shutil.rmtree(self.temporary)
            self.temporary.mkdir()
        if (self.folder / "imported").exists():
            (self.folder / "imported").unlink()
            outcome.findings.append("imports a module that a file names")
        self.counts[{-9: "killed", -15: "143"}.get(code, str(code))] += 1
        self.findings += [(finding, command, outcome.text) for finding in outcome.findings]
        if self.loud:
            print(
                f"--- {command}\n{outcome.text}--- {code} {outcome.seconds:.2f} s {outcome.findings}",
                flush=True,
            )
        return outcome

    def _end_session(self, session: int) -> str:
        """Wait until nothing is left of a session; kill what stays, and return its command line."""
        for attempt in range(200):
            alive = session_members(session)
            if not alive:
                return ""
            time.sleep(0.05 if attempt else 0.005)
        name = Path(f"/proc/{alive[0]}/cmdline").read_text().replace("\0", " ")[:60]
        os.killpg(session, signal.SIGKILL)
        return name

    def run(self, *arguments: object, blow: Blow = NONE, fresh: bool = False) -> Outcome:
        """Run a command to its end."""
        return self.finish(self.start(*arguments, blow=blow, fresh=fresh), blow)

    def note(self, finding: str, command: str) -> None:
        """Add a finding that is no matter of a single command's end."""
        self.findings.append((finding, command, ""))


def session_members(session: int) -> list[int]:
    """List the processes of a session that are no zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def describe(text: str) -> str:
    """Return type and place of a traceback: its last line, and the last frame within ocrstore."""
    last = text.rpartition("Traceback (most recent call last)")[2]
    frames = re.findall(r'ocrstore/([\w/]+\.py)", line (\d+), in (\w+)', last)
    kind = re.search(
        r"unexpected \w+|^[\w.]*(Error|Exception|Interrupt|Exit|Warning)\b", last, re.MULTILINE
    )
    what = kind.group() if kind else last.strip()[:120]
    return f"{what} at {':'.join(frames[-1]) if frames else '?'}"
