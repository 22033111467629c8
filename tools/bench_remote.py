"""Train from object storage: ocrstore, LitData, MosaicML Streaming and WebDataset on one server.

    python -m tools.bench_remote --work /var/tmp/remote

The samples of the suite (tools/bench) are written in each format and put on a server, s3rver from
npm, which runs in a folder of its own. In front of it a proxy delays every answer and limits the
rate, so that the network is the limit. Every contender is a process of its own that starts with an
empty cache and reads five epochs in batches with workers, shuffled. Printed are, for each of them:

    first batch     from opening the data set to the first batch
    first epoch     MB of tensors per second, over the network
    later epochs    the same, with what was kept: the median of epochs two to five
    downloaded      bytes that passed the proxy, per byte of the tensors
    disk            what the cache takes, per byte of the tensors

and of obstore alone, which downloads the same bytes to the same disk with as many requests at once
as ocrstore, and of the local store in the same loader. Repetitions are interleaved; the median is
printed. The peers get environments of their own, as in the suite.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tools.bench import venvs
from tools.bench.peers import find
from tools.bench.prepared import read

PEERS = ("ocrstore", "litdata", "streaming", "webdataset")
CONTENDERS = ("obstore", "local", "ocrstore", "small", "litdata", "streaming", "webdataset")
TITLES = {
    "obstore": "obstore alone, to disk",
    "local": "ocrstore, local store",
    "ocrstore": "ocrstore",
    "small": "ocrstore, zstd",
}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
BUCKET = "bench"
THREADS = 32
"""Requests at once of obstore alone; those of ocrstore's fetcher."""
EPOCHS = 5
S3RVER = "s3rver@3.7.1"


# ---- the server and the network -----------------------------------------------------------------


@contextlib.contextmanager
def s3_server(work: Path) -> Iterator[str]:
    """Run s3rver on the objects below the work folder; yields its URL."""
    program = work / "npm" / "node_modules" / ".bin" / "s3rver"
    if not program.exists():
        (work / "npm").mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--silent", S3RVER], cwd=work / "npm", check=True)
    port = free_port()
    command = [str(program), "-d", str(work / "objects"), "-a", "127.0.0.1", "-p", str(port)]
    (work / "objects").mkdir(exist_ok=True)
    command += ["--silent", "--configure-bucket", BUCKET]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def network(server: str, latency: float, rate: float) -> Iterator[tuple[str, int]]:
    """Run the proxy; yields its URL, and the port that tells how many bytes have passed."""
    port, count = free_port(), free_port()
    words = [server, str(port), str(count), str(latency), str(rate)]
    with running([sys.executable, "-m", "tools.bench_remote", "--proxy", *words], port):
        yield f"http://127.0.0.1:{port}", count


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        else:
            raise SystemExit(f"{command[0]} ended with {process.returncode}")
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def bytes_passed(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return int(connection.recv(64))


def run_proxy(server: str, port: int, count: int, latency: float, rate: float) -> None:
    """Pass bytes on; each request waits `latency` seconds, answers share `rate` bytes a second."""
    host, _, upstream = server.removeprefix("http://").partition(":")
    passed, free_at = 0, 0.0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal passed, free_at
        answers, requests = await asyncio.open_connection(host, int(upstream), limit=1 << 20)
        is_answered = True

        async def up() -> None:
            nonlocal is_answered
            while data := await reader.read(1 << 20):
                if is_answered:  # the first bytes of a request
                    is_answered = False
                    await asyncio.sleep(latency)
                requests.write(data)
                await requests.drain()
            requests.close()

        async def down() -> None:
            nonlocal passed, free_at, is_answered
            while data := await answers.read(1 << 18):
                is_answered = True
                passed += len(data)
                now = time.monotonic()
                free_at = max(free_at, now) + len(data) / rate
                await asyncio.sleep(free_at - now)
                writer.write(data)
                await writer.drain()
            writer.close()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(up(), down())

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(str(passed).encode())
        writer.close()

    async def serve() -> None:
        await asyncio.start_server(tell, "127.0.0.1", count)
        server = await asyncio.start_server(handle, "127.0.0.1", port, limit=1 << 20)
        await server.serve_forever()

    asyncio.run(serve())


# ---- the contenders; each function runs in a process and environment of its own -----------------


def open_remote(name: str, work: Path, cache: Path, endpoint: str, options: dict):
    """Return a loader that reads from the bucket."""
    if name in ("ocrstore", "small"):
        from ocrstore.torch import OCRStoreDataset
        from tools.bench.peers.base import torch_loader

        url = f"s3://{BUCKET}/{name}.ocrs"
        return torch_loader(OCRStoreDataset(url, cache=cache), **options)
    if name == "litdata":
        from litdata import StreamingDataLoader, StreamingDataset
        from litdata.streaming import downloader

        from tools.bench.peers.litdata import collate_items

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no setting for it
        samples = StreamingDataset(
            f"s3://{BUCKET}/litdata",
            cache_dir=str(cache),
            storage_options={"endpoint_url": endpoint},
            shuffle=True,
            drop_last=False,
            seed=options["seed"],
            max_cache_size="100GB",
        )
        return StreamingDataLoader(
            samples,
            batch_size=options["batch_size"],
            num_workers=options["workers"],
            persistent_workers=options["workers"] > 0,
            collate_fn=collate_items,
        )
    if name == "streaming":
        from streaming import StreamingDataLoader, StreamingDataset

        from tools.bench.peers.streaming import to_batch

        os.environ["S3_ENDPOINT_URL"] = endpoint
        samples = StreamingDataset(
            remote=f"s3://{BUCKET}/streaming",
            local=str(cache),
            shuffle=True,
            shuffle_seed=options["seed"],
            batch_size=options["batch_size"],
        )
        return StreamingDataLoader(
            samples,
            batch_size=options["batch_size"],
            num_workers=options["workers"],
            persistent_workers=options["workers"] > 0,
            collate_fn=to_batch,
        )
    import webdataset as wds

    from tools.bench.peers.base import collate
    from tools.bench.peers.webdataset import to_sample

    shards = sorted(path.name for path in (work / "formats" / "webdataset").glob("*.tar"))
    samples = wds.WebDataset(
        [f"pipe:curl -sf {endpoint}/{BUCKET}/webdataset/{shard}" for shard in shards],
        shardshuffle=len(shards),
        seed=options["seed"],
        empty_check=False,
        cache_dir=str(cache),
    )
    samples = samples.shuffle(48, initial=48).decode().map(to_sample)
    samples = samples.batched(options["batch_size"], collation_fn=collate)
    workers = options["workers"]
    return wds.WebLoader(
        samples, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )


def measure(name: str, work: Path, cache: Path, endpoint: str, count: int, options: dict) -> dict:
    """Read some epochs; every byte of the tensors is copied."""
    import warnings

    from tools.bench.consumers import NAMES, copy

    warnings.filterwarnings("ignore", message=".*not writable")
    if name == "obstore":
        return download(cache, count)
    if name in ("local", "ocrstore", "small"):
        import ocrstore.torch  # noqa: F401  # as above
    else:
        find(name).load()
    started = time.perf_counter()
    if name == "local":
        module = find("ocrstore").load()
        folder = work / "formats" / "ocrstore"
        loader = module.loader(folder, prepared=work / "prepared", shuffle=True, **options)
    else:
        loader = open_remote(name, work, cache, endpoint, {**options, "shuffle": True})
    result: dict = {}
    buffers: dict = {}
    rates, passed = [], []
    for _ in range(EPOCHS):
        before, keys, total = bytes_passed(count), [], 0
        begin = time.perf_counter()
        for batch in loader:
            copy(batch, buffers)
            total += sum(batch[key].nbytes for key in NAMES)
            keys += batch["image_filename"]
            result.setdefault("first_batch", time.perf_counter() - started)
        rates.append(total / (time.perf_counter() - begin))
        passed.append(bytes_passed(count) - before)
        assert len(set(keys)) == len(read(work / "prepared")), f"{name}: {len(set(keys))} samples"
    result |= {"first": rates[0], "first_bytes": passed[0]}
    result |= {"later": statistics.median(rates[1:]), "later_bytes": sum(passed[1:])}
    result["disk"] = disk_usage(cache)
    return result


def download(cache: Path, count: int) -> dict:
    """Download the store with obstore alone, and write it to the same disk."""
    from concurrent.futures import ThreadPoolExecutor

    from ocrstore.remote.objects import Place

    place = Place(f"s3://{BUCKET}")
    info = place.head("ocrstore.ocrs")
    step, before = 8 << 20, bytes_passed(count)
    with (cache / "rows").open("wb") as file:
        file.truncate(info.nbytes)

        def get(start: int) -> None:
            data = place.get_range("ocrstore.ocrs", start, min(start + step, info.nbytes))
            os.pwrite(file.fileno(), data, start)

        begin = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(get, range(0, info.nbytes, step)))
        seconds = time.perf_counter() - begin
    passed = bytes_passed(count) - before
    return {"first": info.nbytes / seconds, "first_bytes": passed, "disk": disk_usage(cache)}


def disk_usage(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


# ---- the run ------------------------------------------------------------------------------------


def build_all(work: Path, pythons: dict[str, Path], samples: int) -> int:
    """Write the samples in every format; returns the bytes of their tensors."""
    from tools.bench.prepare import prepare

    prepared = prepare(work / "prepared", count=samples)
    for name, python in pythons.items():
        folder = work / "formats" / name
        if not folder.exists():
            words = ["--build", name, str(work)]
            subprocess.run([str(python), "-m", "tools.bench_remote", *words], check=True)
    small = work / "formats" / "small"
    if not small.exists():
        from ocrstore.building.convert import convert

        small.mkdir()
        codecs = {"tensor": "zstd", "prob_map": "zstd", "thresh_map": "zstd"}
        store = work / "formats" / "ocrstore" / "samples.ocrs"
        convert(store, small / "samples.ocrs", codecs=codecs)
    return prepared.images.nbytes + prepared.prob_maps.nbytes + prepared.thresh_maps.nbytes


def build_one(name: str, work: Path) -> None:
    folder = work / "formats" / name
    partial = folder.with_name(f"{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    find(name).load().build(read(work / "prepared"), partial)
    partial.rename(folder)


def upload_all(work: Path) -> None:
    """Put all formats on the server, if they are not there."""
    from ocrstore.remote.objects import Place
    from ocrstore.remote.transfer import push

    for name in ("ocrstore", "small"):
        push(work / "formats" / name / "samples.ocrs", f"s3://{BUCKET}/{name}.ocrs")
    for name, root in (("litdata", "chunks"), ("streaming", "mds"), ("webdataset", "")):
        place = Place(f"s3://{BUCKET}/{name}")
        there = {info.name: info.nbytes for info in place.list()}
        for path in sorted((work / "formats" / name / root).glob("*")):
            if path.is_file() and there.get(path.name) != path.stat().st_size:
                with path.open("rb") as file:
                    place.put_file(path.name, file, path.stat().st_size)


def run_one(name: str, python: Path, work: Path, endpoint: str, count: int, options: dict) -> dict:
    """Measure one contender in a process of its own, with an empty cache."""
    cache = work / "caches" / name
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    words = ["--measure", name, str(work), str(cache), endpoint, str(count), json.dumps(options)]
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    done = subprocess.run(
        [str(python), "-m", "tools.bench_remote", *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=1800,
    )
    shutil.rmtree(cache, ignore_errors=True)
    if done.returncode:
        return {"error": f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def print_table(results: dict[str, list[dict]], nbytes: int) -> None:
    def middle(rows: list[dict], key: str, scale: float, form: str) -> str:
        values = [row[key] for row in rows if key in row]
        return format(statistics.median(values) / scale, form) if values else "-"

    print(
        f"{'':28}{'first batch':>12}{'first epoch':>13}{'later':>10}{'downloaded':>12}{'disk':>7}"
    )
    for name, rows in results.items():
        title = TITLES.get(name) or find(name).title
        failed = [row["error"] for row in rows if "error" in row]
        if failed:
            print(f"{title:28}{failed[0]}")
            continue
        print(
            f"{title:28}{middle(rows, 'first_batch', 1, '.2f'):>10} s"
            f"{middle(rows, 'first', 1e6, '.0f'):>8} MB/s{middle(rows, 'later', 1e6, '.0f'):>10}"
            f"{middle(rows, 'first_bytes', nbytes, '.3f'):>12}{middle(rows, 'disk', nbytes, '.2f'):>7}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for everything; kept")
    parser.add_argument("--samples", type=int, default=404)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds for each request")
    parser.add_argument("--rate", type=float, default=100.0, help="MB per second of the network")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.environ |= {**CREDENTIALS, "AWS_REGION": "us-east-1"}
    pythons = {}
    for name in PEERS:
        if name != "ocrstore" and name not in given.only:
            continue
        pythons[name] = venvs.make(find(name), work / "venvs")
        if name == "streaming":  # the suite reads from a folder and leaves the clients out
            place = work / "venvs" / name
            if not list(place.glob("lib/*/site-packages/boto3")):
                venvs.Environment(place, place / "constraints.txt").pip("boto3")
    nbytes = build_all(work, pythons, given.samples)
    with s3_server(work) as server:
        os.environ["AWS_ENDPOINT_URL"] = server
        upload_all(work)
        options = {"workers": given.workers, "batch_size": given.batch_size, "seed": 0}
        results: dict[str, list[dict]] = {name: [] for name in given.only}
        with network(server, given.latency, given.rate * 1e6) as (endpoint, count):
            for _ in range(given.repeats):
                for name in given.only:
                    python = pythons.get(name, Path(sys.executable))
                    results[name].append(run_one(name, python, work, endpoint, count, options))
                    print(name, results[name][-1], file=sys.stderr, flush=True)
    print(
        f"{given.samples} samples, {nbytes / 1e9:.2f} GB of tensors; {1e3 * given.latency:.0f} ms, "
        f"{given.rate:.0f} MB/s; {given.workers} workers; medians of {given.repeats}"
    )
    print_table(results, nbytes)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--proxy"]:
        url, *numbers = sys.argv[2:]
        run_proxy(url, int(numbers[0]), int(numbers[1]), float(numbers[2]), float(numbers[3]))
    elif sys.argv[1:2] == ["--build"]:
        build_one(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["--measure"]:
        name, folder, cache, endpoint, count, options = sys.argv[2:]
        found = measure(name, Path(folder), Path(cache), endpoint, int(count), json.loads(options))
        print(json.dumps(found))
    else:
        main()
