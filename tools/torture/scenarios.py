"""The attacks: each a function of the bench and a random generator."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

from tools import crafting as craft
from tools.torture import mutation
from tools.torture.bench import Bench, again, rare_readers, readers, writers
from tools.torture.runner import MODES, NONE, Blow, Outcome


def known(bench: Bench, name: str) -> tuple[dict[str, str], dict[str, str], float, int]:
    """Return the files before and after a writer, its seconds and its number of system calls."""
    if name not in bench.known:
        number, arguments = writers(bench)[name]
        bench.copy(number) if number else bench.clear()
        before = bench.files()
        outcome = bench.run(*arguments, blow=Blow(call=("fail", 0, 0)))
        calls = int(re.findall(r"calls=(\d+)", outcome.text)[-1])
        bench.known[name] = (before, bench.files(), outcome.seconds, calls)
    return bench.known[name]


def strike(bench: Bench, name: str, blow: Blow, *, fresh: bool = False) -> None:
    """Run a writer under a blow, look at every file, run it again, and look again."""
    before, after, _, _ = known(bench, name)
    number, arguments = writers(bench)[name]
    bench.copy(number) if number else bench.clear()
    outcome = bench.run(*arguments, blow=blow, fresh=fresh)
    judge(bench, outcome, before, after, f"{name} {blow}")
    second = bench.run(*again(arguments))
    if second.code or bench.files() != after:
        left = set(bench.files().items()) ^ set(after.items())
        bench.note(
            f"{name}, run again: exit code {second.code}, differs in {sorted(left)[:2]}",
            f"{name} {blow}",
        )


def judge(
    bench: Bench, outcome: Outcome, before: dict[str, str], after: dict[str, str], command: str
) -> None:
    """Note every file that is neither as before nor as after; after success all must be as after."""
    found = bench.files()
    for path in before.keys() | after.keys() | found.keys():
        partial = path == ".store.ocrs.partial" and outcome.command.split()[0] in (
            "build",
            "add-view",
            "convert",
        )
        if outcome.code and (partial or (Path(path).name.startswith(".") and outcome.code < 0)):
            continue  # for the next run to use or to remove
        if found.get(path) not in (before.get(path), after.get(path)):
            bench.note(f"{path} is neither as before nor as after ({outcome.code})", command)
    if outcome.code == 0 and found != after:
        bench.note("exit code 0, and not all files are as they should be", command)


def kill(bench: Bench, random: Random) -> None:
    """A writer gets SIGKILL at any moment or system call, SIGINT or SIGTERM at any moment."""
    name = random.choice(list(writers(bench)))
    _, _, seconds, calls = known(bench, name)
    how = random.choice(("time", "time", "before", "halfway", "fresh"))
    if how in MODES:
        return strike(bench, name, Blow(call=(how, random.randint(1, max(1, calls)), 0)))
    send = random.choice(
        (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
    )
    if fresh := how == "fresh":
        # an interrupt before the first line of ours is reported by Python itself
        send = random.choice((signal.SIGKILL, signal.SIGTERM))
    return strike(
        bench, name, Blow(send, random.uniform(0.02, seconds * 1.1 + 1.5 * fresh)), fresh=fresh
    )


def fault(bench: Bench, random: Random) -> None:
    """A system call of a writer fails."""
    name = random.choice(list(writers(bench)))
    error = random.choice((errno.EIO, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS))
    strike(
        bench, name, Blow(call=("fail", random.randint(1, max(1, known(bench, name)[3])), error))
    )


def full(bench: Bench, random: Random) -> None:
    """The disk is full, or files may not grow; afterwards there is room again."""
    name = random.choice(list(writers(bench)))
    nbytes = int(2 ** random.uniform(12, 21))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4_000_000 + nbytes}", "tmpfs", str(bench.work)]
    known(bench, name)
    bench.clear()
    if random.random() < 0.3 or subprocess.run(mount, capture_output=True).returncode:
        return strike(bench, name, Blow(file_nbytes=nbytes))
    try:
        before, after, _, _ = known(bench, name)
        number, arguments = writers(bench)[name]
        if number:
            bench.copy(number)
        room = os.statvfs(bench.work)
        (bench.work / ".ballast").write_bytes(bytes(max(0, room.f_bavail * room.f_bsize - nbytes)))
        outcome = bench.run(*arguments)
        (bench.work / ".ballast").unlink()
        judge(bench, outcome, before, after, f"{name} with {nbytes} bytes free")
        subprocess.run(["mount", "-o", "remount,size=1g", str(bench.work)], check=True)
        if bench.run(*again(arguments)).code or bench.files() != after:
            bench.note(
                f"{name}, run again with room, fails or gives something else", f"{nbytes} bytes"
            )
    finally:
        subprocess.run(["umount", "-l", str(bench.work)], check=True)


def beside(bench: Bench, random: Random) -> None:
    """`verify` and `inspect` beside a writer, which may be killed: always one whole state."""
    name = random.choice(("update", "rebuild", "add-view", "compact"))
    number, arguments = writers(bench)[name]
    store = bench.copy(number)
    blow = random.choice((NONE, Blow(signal.SIGKILL, random.uniform(0, known(bench, name)[2]))))
    store = bench.copy(number)
    started = bench.start(*arguments)
    for _ in range(random.randint(1, 4)):
        outcome = bench.run(random.choice(("verify", "inspect", "read")), store)
        if outcome.code:
            bench.note(
                f"beside {name}: exit code {outcome.code}: {outcome.text[:200]}", outcome.command
            )
    bench.finish(started, blow)


def read_all(bench: Bench, store: Path, random: Random, *, content: str | None) -> None:
    """Run every command on a store; none may change it but the writers, none may bless damage."""
    data = store.read_bytes()
    for arguments in (*readers(bench, store), random.choice(rare_readers(bench, store))):
        bench.run(*arguments)
        if store.read_bytes() != data:
            bench.note("a reader changed the store", str(arguments[0]))
            store.write_bytes(data)
    for name in ("compact", "add-view", "update"):
        outcome = bench.run(*writers(bench)[name][1])
        if outcome.code == 0 and content is not None:
            found = bench.run("read", store).text.strip().strip('"')
            expected = content if name == "compact" else bench.known[name][1]["store.ocrs"]
            if found != expected and not found.startswith("damaged"):
                bench.note(
                    f"{name} succeeds on a damaged store, with other content",
                    f"{name} {found[:80]}",
                )
        store.write_bytes(data)


def damage(bench: Bench, random: Random) -> None:
    """Bits of a store flip, ranges are overwritten, it is cut; what verify accepts is as before."""
    for name in ("add-view", "update"):
        known(bench, name)
    store = bench.copy()
    content = bench.run("read", store).text.strip().strip('"')
    store.write_bytes(mutation.mutate_bytes(store.read_bytes(), random))
    outcome = bench.run("read", store)
    if outcome.code == 0 and "damaged" not in outcome.text and content not in outcome.text:
        bench.note("verify accepts a store that reads differently", "read")
    read_all(bench, store, random, content=content)


def manifest(bench: Bench, random: Random) -> None:
    """The manifest says something else, with right hashes."""
    store = bench.copy()
    mutation.mutate_manifest(store, random)
    read_all(bench, store, random, content=None)


def attributes(bench: Bench, random: Random) -> None:
    """The attributes say something else, with right hashes."""
    store = bench.copy()
    mutation.mutate_attributes(store, random)
    read_all(bench, store, random, content=None)


def names(bench: Bench, random: Random) -> None:
    """Files, folders and texts of a source have hostile names."""
    bench.clear()
    images, gt = bench.work / "source" / "images", bench.work / "source" / "gt"
    shutil.copytree(bench.material / "1", bench.work / "source")
    for picture in sorted(images.iterdir()):
        name, folder = (
            random.choice(mutation.NAMES).replace("/", "_"),
            random.choice(("", *mutation.NAMES)).replace("/", "_"),
        )
        text = gt / f"gt_{picture.stem}.txt"
        lines = (
            text.read_text().replace("TOTAL", random.choice(mutation.NAMES))
            + "1,1,9,1,9,9,1,9,"
            + random.choice(mutation.NAMES)
        )
        raw = os.fsencode(name)[: random.choice((250, 60))] + random.choice((b"", b"", b"\xff\x80"))
        target = (
            images / (folder[:60] if folder not in (".", "..") else "") / os.fsdecode(raw + b".jpg")
        )
        target.parent.mkdir(exist_ok=True)
        picture.rename(target)
        (gt / f"gt_{target.stem}.txt"[-250:]).write_bytes(lines.encode())
        text.unlink(missing_ok=True)
    store = bench.work / "store.ocrs"
    bench.run(
        "build",
        images,
        "--annotations",
        gt,
        "--out",
        store,
        *bench.small,
        "--report",
        bench.work / "r.json",
    )
    if store.exists():
        read_all(bench, store, random, content=None)
        bench.run("verify", store, "--source", images, "--annotations", gt, "--workers", 0)
    if random.random() < 0.3:
        checkpoint = bench.material / "run" / "best.ckpt"
        bench.run(
            "predict", images, "--checkpoint", checkpoint, "--out", bench.work / "boxes", "--quiet"
        )


def source(bench: Bench, random: Random) -> None:
    """Pictures and annotation files are damaged; the store that is built of the rest is whole."""
    bench.clear()
    shutil.copytree(bench.material / "1", bench.work / "source")
    for path in random.sample(sorted((bench.work / "source").rglob("*.*")), 4):
        path.write_bytes(mutation.mutate_bytes(path.read_bytes(), random))
    images, gt, store = (
        bench.work / "source" / "images",
        bench.work / "source" / "gt",
        bench.work / "store.ocrs",
    )
    workers = random.choice((0, 0, 0, 2))
    bench.run(
        "build", images, "--annotations", gt, "--out", store, "--size", 64, "--workers", workers
    )
    if store.exists() and "damaged" in bench.run("read", store).text:
        bench.note("the store of a damaged source is damaged", "build")


def recipe(bench: Bench, random: Random) -> None:
    """Recipe and pipeline files name foreign classes and hold values of all kinds."""
    import albumentations

    transform = albumentations.Compose(
        [albumentations.LongestMaxSize(64), albumentations.PadIfNeeded(64, 64)]
    )
    stored = json.loads(craft.payload_of(bench.material / "1.ocrs", craft.MANIFEST))
    record = random.choice((stored["metadata"]["views"]["64"]["recipe"], transform.to_dict()))
    text = json.dumps(mutation.mutate_json(record, random))
    if random.random() < 0.3:
        text = re.sub(r'"albumentations[\w.]*"|"[A-Z]\w+"', '"evil_module.Evil"', text, count=1)
    if random.random() < 0.1:
        text = random.choice(
            (
                "[" * 20_000,
                "{a: " * 20_000,
                "&a [*a]",
                "!!python/object/apply:os.system [id]",
                "\0",
                "",
            )
        )
    file = bench.folder / random.choice(("recipe.yaml", "recipe.json"))
    file.write_text(text)
    store = bench.copy()
    bench.run("add-view", store, "--recipe", file, "--view", "other", "--workers", 0)
    bench.run(
        "build",
        *bench.source(1),
        "--out",
        bench.work / "new.ocrs",
        "--recipe",
        file,
        "--workers",
        0,
    )
    bench.run(
        "profile", bench.material / "1.ocrs", "--transform", file, "--samples", 1, "--repeats", 1
    )
    if "damaged" in bench.run("files", bench.work).text:
        bench.note("a damaged store is left", "add-view, build --recipe")


def checkpoint(bench: Bench, random: Random) -> None:
    """A checkpoint is damaged, or says something else."""
    import torch

    bench.clear()
    file = bench.work / "bad.ckpt"
    data = (bench.material / "run" / "last.ckpt").read_bytes()
    if random.random() < 0.5:
        file.write_bytes(mutation.mutate_bytes(data, random))
    else:
        content = torch.load(bench.material / "run" / "last.ckpt", weights_only=True)
        torch.save(mutation.mutate_json(content, random), file)
    store = bench.material / "1.ocrs"
    bench.run(
        "predict",
        bench.material / "1" / "images",
        "--checkpoint",
        file,
        "--out",
        bench.work / "boxes",
        "--quiet",
    )
    bench.run("eval", store, "--checkpoint", file)
    bench.run(
        "train",
        store,
        "--out",
        bench.work / "run",
        "--epochs",
        2,
        "--resume",
        file,
        *bench.training,
    )


SCENARIOS: dict[str, tuple[Callable[[Bench, Random], None], int]] = {
    "manifest": (manifest, 20),
    "attributes": (attributes, 5),
    "damage": (damage, 3),
    "kill": (kill, 4),
    "fault": (fault, 3),
    "full": (full, 2),
    "beside": (beside, 1),
    "names": (names, 2),
    "source": (source, 1),
    "recipe": (recipe, 1),
    "checkpoint": (checkpoint, 1),
}
"""Scenarios and their shares of the time: of an hour half is for 1,000 manifests."""
