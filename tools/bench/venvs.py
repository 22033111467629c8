"""Virtual environments for the peers, made by the suite below its work folder.

A peer that needs nothing but what the suite has shares the suite's own. Others get pip with the
project's constraints.txt, from which only those lines are left out that the peer pins itself;
torch is never one of them.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


class InstallError(Exception):
    """A peer cannot be installed; the message says why, in a line or a few."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment under way: what a peer's `install` is given."""

    folder: Path
    constraints: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip(self, *arguments: str, timeout: float = 900) -> None:
        """Run `pip install` with the constraints; raises `InstallError` with pip's last words."""
        command = [str(self.python), "-m", "pip", "install", "--quiet"]
        command += ["--disable-pip-version-check", "--constraint", str(self.constraints)]
        self.run([*command, *arguments], timeout=timeout)

    def run(self, command: list[str], *, timeout: float = 900, **options) -> None:
        """Run a command; raises `InstallError` with its last words if it fails."""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, check=False, **options
            )
        except subprocess.TimeoutExpired as exc:
            raise InstallError(f"{command[0]} took more than {timeout:.0f} s") from exc
        if done.returncode:
            raise InstallError(last_words(done.stderr or done.stdout))


def last_words(text: str, *, lines: int = 3) -> str:
    """Return the lines of an error that say why, without the addresses and folders of a machine."""
    text = re.sub(r"\w+://[^\s'\"]+", "…", text).replace(str(ROOT) + os.sep, "")
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in kept if not re.match(r"WARNING|DEPRECATION|\[notice\]", line)]
    errors = [line for line in kept if re.match(r"(?i)(error|\w*error:)", line)]
    return " / ".join((errors or kept)[-lines:])[:600]


def constraints_for(requirements: tuple[str, ...]) -> str:
    """Return constraints.txt without the lines for what the peer pins itself."""
    own = {_name(requirement) for requirement in requirements} - {"torch"}
    lines = CONSTRAINTS.read_text("utf-8").splitlines()
    kept = [line for line in lines if line.startswith("#") or _name(line) not in own]
    return "\n".join(kept) + "\n"


def _name(requirement: str) -> str:
    return re.split(r"[\[=<>!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def make(peer, folder: Path) -> Path:
    """Return the interpreter for a peer, after making its environment if that is not there.

    `peer` is what `peers.describe` returns. Raises `InstallError`.
    """
    if not peer.requirements and not peer.installs:
        return Path(sys.executable)
    constraints = constraints_for(peer.requirements)
    wanted = hashlib.sha256(
        "\n".join([sys.version, constraints, *peer.requirements, peer.install_source]).encode()
    ).hexdigest()
    place = folder / peer.name
    environment = Environment(place, place / "constraints.txt")
    stamp = place / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return environment.python
    venv.create(place, clear=True, with_pip=True)
    environment.constraints.write_text(constraints, "utf-8")
    if peer.installs:
        peer.load().install(environment)
    else:
        environment.pip("torch", "numpy", *peer.requirements)
    share_torch(place)
    stamp.write_text(wanted)
    return environment.python


def share_torch(place: Path) -> None:
    """Link torch's libraries to the suite's own where they are the same, byte by byte.

    Half a gigabyte for each environment would else push the peers' files out of the page cache.
    """
    import torch

    mine = Path(torch.__file__).parent / "lib"
    for theirs in place.glob("lib*/python*/site-packages/torch/lib/*.so*"):
        same = mine / theirs.name
        if theirs.is_symlink() or not same.exists() or same.stat().st_dev != place.stat().st_dev:
            continue
        if not theirs.samefile(same) and filecmp.cmp(same, theirs, shallow=False):
            theirs.unlink()
            os.link(same, theirs)


def ready(peer, folder: Path) -> bool:
    """Return whether a peer's environment is there, without making it."""
    return not (peer.requirements or peer.installs) or (folder / peer.name / "installed").exists()
