"""The suite's command line: measure, then write the CSV file, the plots and the page.

python -m tools.bench --quick             a look at everything in five minutes
python -m tools.bench --budget 45         all cells, rounds as long as the time goes
python -m tools.bench --resume            go on with a run that was stopped
python -m tools.bench --redraw            plots and page from the CSV file, without a run
python -m tools.bench --install           only make the peers' environments
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from pathlib import Path

from tools.bench import machine, plan, venvs
from tools.bench.peers import Peer, available
from tools.bench.results import Table, read_csv, write_csv

ROOT = Path(__file__).resolve().parents[2]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="96 samples, 2 workers, shuffled, one round, as far as it goes in five minutes; makes no"
        " environments",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in the work folder"
    )
    parser.add_argument(
        "--redraw", action="store_true", help="no run: plots and page from the CSV file"
    )
    parser.add_argument(
        "--install", action="store_true", help="no run: make the peers' environments"
    )
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--rounds", type=int, help="how often every cell is measured (3)")
    parser.add_argument("--samples", type=int, help="how many samples (404)")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of workers (0 1 2 4)")
    parser.add_argument(
        "--budget", type=float, metavar="MINUTES", help="begin no cell after this time"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench", help="work folder (.bench)")
    parser.add_argument(
        "--docs", type=Path, help="where CSV, page and images go (docs; --quick: .bench/quick)"
    )
    options = parser.parse_args(arguments)
    if options.docs is None:
        # a look at everything takes nobody's place
        options.docs = options.folder / "quick" if options.quick else ROOT / "docs"
    return options


def choose(names: list[str] | None) -> list[Peer]:
    peers = available()
    if names is None:
        return peers
    unknown = sorted(set(names) - {peer.name for peer in peers})
    if unknown:
        known = ", ".join(peer.name for peer in peers)
        raise SystemExit(f"no peer is named {', '.join(unknown)}; there are: {known}")
    return [peer for peer in peers if peer.name in names]


def settings_of(options: argparse.Namespace) -> plan.Settings:
    settings = plan.QUICK if options.quick else plan.FULL
    given = {"rounds": options.rounds, "samples": options.samples}
    if options.workers:
        given["workers"] = tuple(options.workers)
    return dataclasses.replace(settings, **{n: v for n, v in given.items() if v is not None})


def command_of(arguments: list[str]) -> str:
    """Return the command as the page names it: without where files are, and without --resume."""
    kept, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("--folder", "--docs"):
            rest.pop(0)
        elif word != "--resume":
            kept.append(word)
    return " ".join(["python -m tools.bench", *kept])


def draw(docs: Path) -> None:
    """Write plots and page from the CSV file."""
    from tools.bench import page, plots

    results, about = read_csv(docs / "benchmarks.csv")
    peers = available()
    images = plots.draw_all(Table(results), about, peers, docs / "images")
    written = docs / "figures" / "peers.md"
    page.write(written, Table(results), about, peers, images)
    print(f"wrote {written} and {len(images)} plots")


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    peers = choose(options.peers)
    if options.redraw:
        draw(options.docs)
        return
    if options.install:
        for peer in peers:
            try:
                print(f"{peer.title}: {venvs.make(peer, options.folder / 'venvs')}", flush=True)
            except venvs.InstallError as exc:
                print(f"{peer.title}: {exc}", flush=True)
        return
    from tools.bench.prepared import read
    from tools.bench.suite import Suite

    settings = settings_of(options)
    minutes = options.budget or (4.5 if options.quick else None)
    suite = Suite(
        options.folder, settings, resume=options.resume, minutes=minutes, install=not options.quick
    )
    suite.run(peers)
    command = command_of(arguments)
    options.docs.mkdir(parents=True, exist_ok=True)
    samples = read(suite.prepared)
    about = machine.about(command, samples.source) | {"count": str(len(samples))}
    nbytes = sum((samples.pictures / key).stat().st_size for key in samples.keys)
    about["jpeg_mb"] = f"{nbytes / 1e6:.1f}"
    about |= {name: str(value) for name, value in dataclasses.asdict(settings).items()}
    write_csv(options.docs / "benchmarks.csv", suite.journal.results.values(), about)
    draw(options.docs)


if __name__ == "__main__":
    # whoever ends the suite ends the cell that runs, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(sys.argv[1:])
