"""Tables and the plot of tools/bench_epoch.py."""

from __future__ import annotations

from pathlib import Path


def share(epochs: list[dict]) -> float:
    """Return the part of some epochs that was spent on waiting."""
    return sum(e["waiting"] for e in epochs) / sum(e["seconds"] for e in epochs)


def later(result: dict) -> list[dict]:
    """Return the epochs after the first, where there are any."""
    return result["epochs"][1:] or result["epochs"]


def report(results: list[dict], searched: list[dict], args) -> str:
    """Return the tables of what each model saw, and of how fast a model may be."""
    lines = [
        f"| model, ms per batch | pipeline | {args.epochs} epochs with start, s | model, s "
        "| waiting, s | waiting, later epochs | processor, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        epochs = result["epochs"]
        lines.append(
            f"| {result['ms']:g} | {result['pipeline']} | {result['total']:.1f} "
            f"| {sum(e['model'] for e in epochs):.2f} | {sum(e['waiting'] for e in epochs):.2f} "
            f"| {100 * share(later(result)):.1f} % | {result['processor']:.1f} |"
        )
    if not searched:
        return "\n".join(lines)
    lines += [
        "",
        "At which speed of a GPU does each pipeline become the bottleneck?",
        "",
        "| pipeline | a batch every, ms | pictures/s | waits less than 2 % from, ms per batch |",
        "|---|---|---|---|",
    ]
    for result in searched:
        period, enough = result["period"], result["fast_enough"]
        shown = f"more than {1.5**args.steps * period:.0f}" if enough is None else f"{enough:.1f}"
        lines.append(
            f"| {result['pipeline']} | {period:.1f} | {1000 * args.batch_size / period:.0f} "
            f"| {shown} |"
        )
    return "\n".join(lines)


def report_network(results: list[dict], args) -> str:
    """Return the table of what a real network saw."""
    lines = [
        f"| pipeline | {args.epochs} epochs with start, s | validation, s | network, s "
        "| waiting, s | waiting, later epochs | processor, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        epochs = result["epochs"]
        seconds, model, waiting = (
            sum(e[name] for e in epochs) for name in ("seconds", "model", "waiting")
        )
        lines.append(
            f"| {result['pipeline']} | {result['total']:.1f} | {seconds:.1f} | {model:.1f} "
            f"| {waiting:.2f} | {100 * share(later(result)):.2f} % | {result['processor']:.1f} |"
        )
    return "\n".join(lines)


def write_fragment(path: Path, made_by: str, text: str) -> None:
    """Write the tables that docs/benchmarks.md includes, with a note of the tool that made them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"<!-- Written by {made_by}, included by docs/benchmarks.md. -->\n\n{text}\n", "utf-8"
    )


def plot(results: list[dict], path: Path) -> None:
    """Draw the share of waiting over the time that the model takes, in epochs after the first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for name in dict.fromkeys(result["pipeline"] for result in results):
        mine = [result for result in results if result["pipeline"] == name]
        axes.plot(
            [result["ms"] for result in mine],
            [100 * share(later(result)) for result in mine],
            marker="o",
            label=name,
        )
    axes.axhline(2, color="gray", linewidth=0.8, linestyle="--")
    axes.set_xlabel("the model takes, ms per batch of 16")
    axes.set_ylabel("waiting for data, % of the time")
    axes.set_ylim(0, 102)
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
