"""What is attacked: pictures, stores, a checkpoint, and the commands that write and read them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tools.scenes import write_scenes
from tools.torture.runner import Outcome, Runner

NETWORK = (
    "--backbone",
    "resnet10",
    "--width",
    "16",
    "--inner",
    "16",
    "--precision",
    "32",
    "--device",
    "cpu",
)


class Bench(Runner):
    """What is attacked: pictures, stores, a checkpoint, and a work folder for copies of them."""

    small = ("--size", "64", "--workers", "0")
    training = ("--batch-size", "3", "--workers", "0", "--quiet", *NETWORK)

    def __init__(self, folder: Path, *, loud: bool = False) -> None:
        super().__init__(folder, loud=loud)
        self.material, self.work = folder / "material", folder / "work"
        self.work.mkdir()
        self.known: dict[str, tuple[dict[str, str], dict[str, str], float, int]] = {}

    def prepare(self) -> None:
        """Draw pictures, build the stores and train the network that are attacked."""
        for number in (1, 2):
            write_scenes(self.material / f"{number}", 6, height=120, width=160, words=3)
        images = self.material / "2" / "images"
        (images / "img_0001.jpg").unlink()  # the second source: one less, one changed, one new
        (images.parent / "gt" / "gt_img_0001.txt").unlink()
        shutil.copyfile(images / "img_0002.jpg", images / "new.jpg")
        shutil.copyfile(images / "img_0003.jpg", images / "img_0004.jpg")
        for number in (1, 2):
            self.expect(
                "build",
                *self.source(number),
                "--out",
                self.material / f"{number}.ocrs",
                *self.small,
            )
        shutil.copyfile(self.material / "1.ocrs", self.material / "3.ocrs")  # with dead space
        self.expect("build", *self.source(2), "--out", self.material / "3.ocrs", *self.small)
        self.expect(
            "train",
            self.material / "1.ocrs",
            "--out",
            self.material / "run",
            "--epochs",
            1,
            *self.training,
        )
        (self.folder / "evil_module.py").write_text(
            "open('imported', 'w').close()\nclass Evil: pass\n"
        )

    def source(self, number: int) -> tuple[Any, ...]:
        """Return the arguments that name a source."""
        return (
            self.material / f"{number}" / "images",
            "--annotations",
            self.material / f"{number}" / "gt",
        )

    def expect(self, *arguments: object) -> Outcome:
        """Run a command that must succeed."""
        outcome = self.run(*arguments)
        if outcome.code or outcome.findings:
            raise RuntimeError(
                f"{outcome.command}: exit code {outcome.code} {outcome.findings}\n{outcome.text}"
            )
        return outcome

    def files(self) -> dict[str, str]:
        """Return the state of every file in the work folder; what cannot be read is a finding."""
        outcome = self.run("files", self.work)
        if outcome.code:
            self.note(f"an unreadable file is left: {outcome.text.strip()[:300]}", "files")
            return {}
        return dict(json.loads(outcome.text.splitlines()[-1]))

    def clear(self) -> None:
        """Empty the work folder."""
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def copy(self, number: int = 1) -> Path:
        """Empty the work folder and put a store into it."""
        self.clear()
        return Path(shutil.copyfile(self.material / f"{number}.ocrs", self.work / "store.ocrs"))


# -- commands


def writers(bench: Bench) -> dict[str, tuple[int, tuple[Any, ...]]]:
    """Return the writing commands: the store to start from (0 for none) and their arguments."""
    store, one, checkpoint = (
        bench.work / "store.ocrs",
        bench.material / "1.ocrs",
        bench.material / "run" / "best.ckpt",
    )
    images = bench.material / "1" / "images"
    return {
        "build": (0, ("build", *bench.source(1), "--out", store, *bench.small)),
        "build by workers": (0, ("build", *bench.source(1), "--out", store, "--size", 64, "--workers", 2)),
        "build --report": (0, ("build", *bench.source(1), "--out", store, *bench.small, "--report", bench.work / "r.json")),
        "update": (1, ("build", *bench.source(2), "--out", store, *bench.small)),
        "update by workers": (1, ("build", *bench.source(2), "--out", store, "--size", 64, "--workers", 2)),
        "rebuild": (1, ("build", *bench.source(2), "--out", store, "--size", 96, "--workers", 0)),
        "add-view": (1, ("add-view", store, "--size", 96, "--workers", 0)),
        "compact": (3, ("compact", store)),
        "convert": (3, ("convert", store, store, "--preset", "small", "--force")),
        "train": (0, ("train", one, "--out", bench.work / "run", "--epochs", 2, *bench.training)),
        "predict": (0, ("predict", images, "--checkpoint", checkpoint, "--out", bench.work / "boxes", "--draw", "--quiet")),
        "report": (0, ("report", one, "--out", bench.work / "report.html", "--samples", 3)),
        "export": (0, ("export", one, "--to", "parquet", "--out", bench.work / "index.parquet", "--overwrite")),
        "export csv": (0, ("export", one, "--to", "csv", "--out", bench.work / "index.csv", "--overwrite")),
        "export webdataset": (0, ("export", one, "--to", "webdataset", "--out", bench.work / "shards", "--overwrite")),
        "export icdar": (0, ("export", one, "--to", "icdar", "--out", bench.work / "icdar", "--overwrite")),
        "eval --table": (0, ("eval", one, "--oracle", "--table", bench.work / "table.csv")),
    }  # fmt: skip


def again(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the command that goes on after an interruption."""
    if arguments[0] != "train":
        return arguments
    last = Path(arguments[3]) / "last.ckpt"
    return (*arguments, "--resume", last) if last.exists() else (*arguments, "--force")


def readers(bench: Bench, store: Path) -> list[tuple[Any, ...]]:
    """Return the commands that read a store and change nothing."""
    return [
        ("inspect", store), ("inspect", store, "img_0001.jpg"), ("inspect", store, "--json"),
        ("inspect", store, "--diff", bench.material / "2.ocrs"), ("inspect", bench.material / "2.ocrs", "--diff", store),
        ("inspect", store, "--source", bench.material / "1" / "images"),
        ("verify", store), ("verify", store, *("--source", *bench.source(1)), "--workers", 0),
        ("export", store, "--to", "csv", "--out", bench.folder / "index.csv", "--overwrite"),
        ("export", store, "--to", "coco", "--out", bench.folder / "coco", "--overwrite"),
        ("report", store, "--out", bench.folder / "report.html", "--samples", 3), ("warm", store),
        ("eval", store, "--oracle"), ("build", *bench.source(2), "--out", store, "--dry-run"),
        ("convert", store, bench.folder / "converted.ocrs", "--preset", "fast", "--force"),
        ("dataset", store), ("viewer", store),
    ]  # fmt: skip


def rare_readers(bench: Bench, store: Path) -> list[tuple[Any, ...]]:
    """Return those that take seconds: one of them for each case."""
    checkpoint = bench.material / "run" / "best.ckpt"
    return [
        ("profile", store, "--samples", 1, "--repeats", 1), ("doctor", store, "--workers", 0),
        ("train", store, "--out", bench.folder / "run", "--epochs", 1, "--force", *bench.training),
        ("train", store, "--out", bench.folder / "run", "--epochs", 1, "--force", *bench.training, "--augment", "--workers", 1),
        ("train", bench.material / "1.ocrs", "--val", store, "--out", bench.folder / "run", "--epochs", 1, "--force", *bench.training),
        ("eval", store, "--checkpoint", checkpoint),
    ]  # fmt: skip
