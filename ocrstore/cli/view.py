"""`ocrstore view`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from ocrstore.cli.console import STORE, console, explain_missing, progress_bar


@click.command("view")
@click.argument("store", type=STORE)
@click.option(
    "--predictions",
    type=click.Path(exists=True, path_type=Path),
    help="Boxes to lay over: a folder of ICDAR text files, or JSON, as `predict` writes them.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Which port; by default a free one."
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def view_command(store: Path, predictions: Path | None, port: int, no_browser: bool) -> int:
    """Look at a store in the browser: grid, filters, one sample large, maps, predictions.

    Answers on this machine only, to whoever has the address that is printed. Ctrl-C ends it.

    \b
    Examples:
      ocrstore view val.ocrs
      ocrstore view val.ocrs --predictions boxes/
      ocrstore view val.ocrs --port 8080 --no-browser
    """
    with explain_missing("view", "view"):
        from ocrstore.viewer.live import Live
        from ocrstore.viewer.serve import Viewer, open_browser
    out = console()
    with progress_bar("matching predictions", quiet=predictions is None) as tell:
        live = Live(store, predictions=predictions, tell=tell)
    scores = live.catalog.scores
    if scores is not None:
        total = scores.total
        out.print(
            f"predictions for {len(scores.predictions.boxes)} of {len(live.catalog.store)} samples:"
            f" precision {total.precision:.4f}, recall {total.recall:.4f}, H-mean {total.hmean:.4f}"
        )
        for name in scores.predictions.unknown[:5]:
            out.print(f"[yellow]·[/] not in the store: {escape(name)}")
        if len(scores.predictions.unknown) > 5:
            out.print(f"  ... and {len(scores.predictions.unknown) - 5} more", style="dim")
    viewer = Viewer(live, port=port)
    out.print(f"[bold]{escape(str(store))}[/] is shown at")
    out.print(f"  {viewer.url}", soft_wrap=True)
    out.print("Ctrl-C ends the viewer.", style="dim")
    viewer.run(ready=None if no_browser else lambda: open_browser(viewer.url))
    out.print("viewer ended", style="dim")
    return 0
