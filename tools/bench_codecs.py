"""Compare compression libraries on the real columns of a store: size, decoding into given memory.

    python tools/bench_codecs.py STORE [--samples 48] [--rounds 7]

Measures what is installed of cramjam, blosc2, lz4, zstandard and numcodecs, in turns inside one
run, by processor time, which a busy machine changes least. Every row is decoded into its place in a
batch of 16; what counts is the time as a multiple of copying the decoded bytes there (memcpy).
*GIL*: whether a second thread ran while the first one was decoding, though it was not made to wait.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ocrstore

COLUMNS = ("tensor", "prob_map", "thresh_map", "prob_mask", "thresh_mask")
BATCH = 16
GIL_NBYTES = 64 << 20


class Candidate(NamedTuple):
    """A library with one setting."""

    encode: Callable[[np.ndarray], Any]
    decode: Callable[[Any, np.ndarray], Any]


def memcpy() -> dict[str, Candidate]:
    return {"memcpy": Candidate(lambda a: a, lambda data, out: np.copyto(out, data))}


def cramjam() -> dict[str, Candidate]:
    library = importlib.import_module("cramjam")
    lz4, zstd = library.lz4, library.zstd
    return {
        "cramjam LZ4 block": Candidate(
            lambda a: bytes(lz4.compress_block(a, store_size=False)),
            lambda data, out: lz4.decompress_block_into(data, out, output_len=out.nbytes),
        ),
        "cramjam zstd 3": Candidate(
            lambda a: bytes(zstd.compress(a, level=3)), zstd.decompress_into
        ),
    }


def blosc2() -> dict[str, Candidate]:
    library = importlib.import_module("blosc2")
    library.set_nthreads(1)
    plain, shuffle, delta = (
        getattr(library.Filter, n) for n in ("NOFILTER", "SHUFFLE", "BYTEDELTA")
    )

    def candidate(codec: str, filters: list[Any], typesize: int) -> Candidate:
        options = {"codec": getattr(library.Codec, codec), "filters": filters, "typesize": typesize}
        return Candidate(
            lambda a: library.compress2(a, **options),
            lambda data, out: library.decompress2(data, dst=out),
        )

    return {
        "blosc2 LZ4": candidate("LZ4", [plain], 1),
        "blosc2 LZ4 shuffle": candidate("LZ4", [shuffle], 3),
        "blosc2 LZ4 shuffle + delta": candidate("LZ4", [shuffle, delta], 3),
        "blosc2 LZ4HC": candidate("LZ4HC", [plain], 1),
    }


def lz4() -> dict[str, Candidate]:
    block = importlib.import_module("lz4.block")

    def decode(data: bytes, out: np.ndarray) -> None:  # it has no way into given memory
        out[:] = np.frombuffer(block.decompress(data, uncompressed_size=out.nbytes), np.uint8)

    return {"lz4 block, copied": Candidate(lambda a: block.compress(a, store_size=False), decode)}


def zstandard() -> dict[str, Candidate]:
    library = importlib.import_module("zstandard")

    def decode(data: bytes, out: np.ndarray) -> None:
        with library.ZstdDecompressor().stream_reader(data) as reader:
            reader.readinto(out)

    return {"zstandard 3": Candidate(library.ZstdCompressor(level=3).compress, decode)}


def numcodecs() -> dict[str, Candidate]:
    lz4, zstd = (importlib.import_module(f"numcodecs.{name}") for name in ("lz4", "zstd"))
    return {
        "numcodecs LZ4": Candidate(lz4.compress, lz4.decompress),
        "numcodecs zstd 3": Candidate(lambda a: zstd.compress(a, 3), zstd.decompress),
    }


def row_delta() -> dict[str, Candidate]:
    """A filter before the entropy coder: differences of neighbouring rows of a picture."""
    zstd = importlib.import_module("cramjam").zstd

    def encode(array: np.ndarray) -> bytes:
        rows = array.reshape(640, -1)
        return bytes(zstd.compress(np.diff(rows, axis=0, prepend=rows[:1] * 0), level=3))

    def decode(data: bytes, out: np.ndarray) -> None:
        zstd.decompress_into(data, out)
        rows = out.reshape(640, -1)
        np.add.accumulate(rows, axis=0, out=rows)

    return {"row delta + cramjam zstd 3": Candidate(encode, decode)}


LIBRARIES = (memcpy, cramjam, blosc2, lz4, zstandard, numcodecs, row_delta)


def candidates() -> dict[str, Candidate]:
    found: dict[str, Candidate] = {}
    for library in LIBRARIES:
        try:
            found |= library()
        except ImportError as exc:
            print(f"not measured: {exc}")
    return found


def seconds_per_row(candidate: Candidate, streams: list[Any], out: np.ndarray) -> float:
    start = time.process_time()
    for number, data in enumerate(streams):
        candidate.decode(data, out[number % BATCH])
    return (time.process_time() - start) / len(streams)


def releases_gil(candidate: Candidate, array: np.ndarray) -> bool:
    """Return whether a second thread runs while one decodes, although it is never interrupted."""
    data, out = candidate.encode(array), np.zeros_like(array)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        return any(_runs_beside(lambda: candidate.decode(data, out)) for _ in range(20))
    finally:
        sys.setswitchinterval(before)


def _runs_beside(decode: Callable[[], object]) -> bool:
    started, done = threading.Event(), []

    def work() -> None:
        started.set()
        decode()
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    in_between = not done
    thread.join()
    return in_between


def compare(store: ocrstore.Store, name: str, samples: int, rounds: int) -> None:
    rows = range(0, len(store), max(1, len(store) // samples))
    arrays = [np.ascontiguousarray(store[name][row]).reshape(-1).view(np.uint8) for row in rows]
    runs = candidates()
    if name != "tensor":
        runs.pop("row delta + cramjam zstd 3", None)
    streams = {who: [run.encode(array) for array in arrays] for who, run in runs.items()}
    out = np.zeros((BATCH, arrays[0].nbytes), np.uint8)
    for who, run in runs.items():
        run.decode(streams[who][0], out[0])
        assert np.array_equal(out[0], arrays[0]), who
    times: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(rounds):
        for who, run in runs.items():
            times[who].append(seconds_per_row(run, streams[who], out))
    large = np.resize(np.concatenate(arrays), GIL_NBYTES) if name == "tensor" else None
    print(f"\n{name}: {arrays[0].nbytes / 1e3:.0f} kB a row, {len(arrays)} rows, {rounds} rounds")
    for who, run in runs.items():
        size = statistics.mean(memoryview(data).nbytes for data in streams[who]) / 1e3
        factors = [mine / base for mine, base in zip(times[who], times["memcpy"], strict=True)]
        held = ""
        if large is not None and not who.startswith(("memcpy", "row")):
            held = f"  GIL {'released' if releases_gil(run, large) else 'held'}"
        median = statistics.median(times[who])
        print(
            f"{who:27} {size:8.1f} kB {1e6 * median:7.0f} us"
            f" {statistics.median(factors):6.2f} x memcpy{held}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    store = ocrstore.open(options.store)
    for name in COLUMNS:
        compare(store, name, options.samples, options.rounds)


if __name__ == "__main__":
    main()
