"""One module for each peer, and the order in which tables and plots name them.

A peer module has, at module level (`base.py` has what several of them need):

    TITLE = "numpy.memmap"          its name in tables and plots
    REQUIREMENTS = ()               pinned pip requirements beside torch and numpy; none: the
                                    suite's own environment, else one made for this peer
    NOTE = ""                       one sentence for the page: how it is used, what it cannot do

    def build(prepared: Prepared, folder: Path) -> None:
        # write the samples in the peer's own format below an empty folder

    def loader(folder: Path, *, prepared: Path, workers: int, shuffle: bool, batch_size: int,
               seed: int) -> Iterable[Mapping]:
        # an object that gives one epoch of batches each time it is iterated

A batch is a mapping of `images` (B, 3, H, W) or (B, H, W, 3) uint8, `prob_maps` and `thresh_maps`
(B, H, W) or (B, 1, H, W) float16, all tensors in main memory; `polygons` (for each sample a list of
(n, 2) float32 arrays) and `image_filename` (a list of keys). The last batch of an epoch is the
smaller one; every sample comes once.

Optional:

    def unsupported(*, workers: int, shuffle: bool) -> str
        # why the peer cannot do this cell, "" if it can
    def filled_loader(...)
        # like `loader`, for the steady state of a peer that fills a cache while it runs
    def install(environment: Environment) -> None
        # instead of `pip install REQUIREMENTS`, where that is not enough (see venvs.py): uses
        # environment.pip(...), .run([...]), .python, .folder and raises InstallError
    def extra_files(prepared: Prepared) -> list[Path]
        # files beside its folder that it reads: they count for disk space and the cold cache
    DISTRIBUTION = "name"
        # whose version is reported, if it is not the first of REQUIREMENTS
    def version() -> str
        # the same, where there is no distribution to ask
    MEASURED = ("copy",)
    def consume(batch, buffers) -> None
        # only these consumers; a consumer of its own instead of the suite's
    LIMIT = True
        # not a way to store anything: a bound, measured with no workers only

The suite reads TITLE, REQUIREMENTS, NOTE, LIMIT and MEASURED from the source without importing it, so these
are literals. A peer with `install` imports foreign packages inside functions only, because the
suite imports it to call that.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PEERS = (
    "ocrstore",
    "ocrstore_into",
    "files",
    "dict_decoded",
    "dict_tensors",
    "memmap",
    "lmdb",
    "webdataset",
    "litdata",
    "streaming",
    "hf_datasets",
    "lance",
    "ffcv",
    "dali",
    "grain",
    "tensorstore",
    "limit_view",
    "limit_memcpy",
)


@dataclass(frozen=True)
class Peer:
    """What the suite knows of a peer without importing it."""

    name: str
    title: str
    requirements: tuple[str, ...]
    note: str
    limit: bool
    measured: tuple[str, ...]
    installs: bool
    install_source: str

    def load(self) -> ModuleType:
        """Import the peer; only in an environment that has what it needs."""
        return importlib.import_module(f"tools.bench.peers.{self.name}")


def find(name: str) -> Peer:
    """Read a peer's description from its source; raises FileNotFoundError if there is none."""
    source = (Path(__file__).parent / f"{name}.py").read_text("utf-8")
    literals: dict[str, Any] = {}
    install = ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "install":
            install = ast.get_source_segment(source, node) or ""
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name_of = node.targets[0].id
            if name_of in ("TITLE", "REQUIREMENTS", "NOTE", "LIMIT", "MEASURED"):
                literals[name_of] = ast.literal_eval(node.value)
    return Peer(
        name,
        literals["TITLE"],
        tuple(literals["REQUIREMENTS"]),
        literals.get("NOTE", ""),
        literals.get("LIMIT", False),
        tuple(literals.get("MEASURED", ("touch", "copy"))),
        bool(install),
        install,
    )


def available() -> list[Peer]:
    """Return all peers that there are, in the order of the tables."""
    folder = Path(__file__).parent
    return [find(name) for name in PEERS if (folder / f"{name}.py").exists()]
