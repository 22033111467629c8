"""`ocrstore view`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import STORE, console, explain_missing, progress_bar, shown


@click.command("view")
@click.argument("store", type=STORE)
@click.option(
    "--predictions",
    type=click.Path(exists=True, path_type=Path),
    help="Predictions to compare: ICDAR text files in a folder or a JSON file, see `predict`.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port; default: a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
def view_command(store: Path, predictions: Path | None, port: int, no_browser: bool) -> int:
    """Browse a store: grid, search by words or SQL, single samples, maps, predictions.

    The server is reachable from this machine only, with the address that it prints. Stop it with
    Ctrl-C.

    \b
    Examples:
      ocrstore view val.ocrs
      ocrstore view val.ocrs --predictions boxes/
      ocrstore view val.ocrs --port 8080 --no-browser
    """
    with explain_missing("view", "view"):
        from ocrstore.viewer.app import Viewer, open_browser
        from ocrstore.viewer.live import Live
    out = console()
    with progress_bar("matching predictions", quiet=predictions is None) as advance:
        live = Live(store, predictions=predictions, progress=advance)
    scores = live.catalog.scores
    if scores is not None:
        total = scores.total
        out.print(
            f"predictions for {len(scores.predictions.boxes)} of {len(live.catalog.store)} samples:"
            f" precision {total.precision:.4f}, recall {total.recall:.4f}, H-mean {total.hmean:.4f}"
        )
        for name in scores.predictions.unknown[:5]:
            out.print(f"[yellow]·[/] not in the store: {shown(name)}")
        if len(scores.predictions.unknown) > 5:
            out.print(f"  ... and {len(scores.predictions.unknown) - 5} more", style="dim")
    viewer = Viewer(live, port=port)
    out.print(f"[bold]{shown(store)}[/] is served at")
    out.print(f"  {viewer.url}", soft_wrap=True)
    out.print("Press Ctrl-C to stop.", style="dim")
    viewer.run(ready=None if no_browser else lambda: open_browser(viewer.url))
    out.print("stopped", style="dim")
    return 0
