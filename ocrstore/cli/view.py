"""`ocrstore view`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import DATASET, console, explain_missing, progress_bar, shown


@click.command("view")
@click.argument("store", type=DATASET)
@click.option(
    "--predictions",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Predictions to compare: ICDAR text files in a folder or a JSON file, see `predict`. "
    "Repeatable.",
)
@click.option(
    "--beside", type=DATASET, help="Another store, whose sample of the same key is shown beside."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 for all of this machine's.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port; default: a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
def view_command(
    store: Path,
    predictions: tuple[Path, ...],
    beside: Path | None,
    host: str,
    port: int,
    no_browser: bool,
) -> int:
    """Browse a store: grid, search by words or SQL, single samples, maps, predictions.

    The server is reachable from this machine only (--host changes that), with the address that it
    prints. Tags that you give to samples are kept in STORE.tags.json. Stop it with Ctrl-C.

    \b
    Examples:
      ocrstore view val.ocrs
      ocrstore view val.ocrs --predictions boxes/
      ocrstore view val.ocrs --predictions runs/a/boxes --predictions runs/b/boxes
      ocrstore view old.ocrs --beside new.ocrs
      ocrstore view val.ocrs --port 8080 --no-browser
    """
    with explain_missing("view", "view"):
        from ocrstore.viewer.app import Viewer, open_browser
        from ocrstore.viewer.live import Live
    out = console()
    with progress_bar("matching predictions", quiet=not predictions) as advance:
        live = Live(store, predictions=predictions, beside=beside, progress=advance)
    for scores in live.catalog.scores:
        total = scores.total
        out.print(
            f"{shown(scores.name)}: predictions for {len(scores.predictions.boxes)} of "
            f"{len(live.catalog.store)} samples: precision {total.precision:.4f}, recall "
            f"{total.recall:.4f}, H-mean {total.hmean:.4f}"
        )
        for name in scores.predictions.unknown[:5]:
            out.print(f"[yellow]·[/] not in the store: {shown(name)}")
        if len(scores.predictions.unknown) > 5:
            out.print(f"  ... and {len(scores.predictions.unknown) - 5} more", style="dim")
    viewer = Viewer(live, host=host, port=port)
    if host not in ("127.0.0.1", "localhost", "::1"):
        out.print(
            f"[yellow]![/] listening on {shown(host)}: whoever can reach this machine and has the "
            "address below can look at the store and change its tags, and the traffic is not "
            "encrypted. An SSH tunnel is safer: ssh -L PORT:127.0.0.1:PORT"
        )
    out.print(f"[bold]{shown(store)}[/] is served at")
    console(problems=True).print(f"  {viewer.url}", soft_wrap=True)  # -q needs it, too
    out.print("Press Ctrl-C to stop.", style="dim")
    viewer.run(ready=None if no_browser else lambda: open_browser(viewer.url))
    out.print("stopped", style="dim")
    return 0
