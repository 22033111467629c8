"""`ocrstore gc`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import (
    console,
    counted,
    explain_missing,
    human_bytes,
    print_json,
    shown,
)


@click.command("gc")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Remove nothing; show what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def gc_command(folder: Path, dry_run: bool, as_json: bool) -> None:
    """Remove what a data set's catalog does not name.

    FOLDER is a data set of many stores. Removed are shards of older catalogs and files that killed
    builds left; files that no build of ocrstore wrote stay, whatever they are. Nothing else ever
    deletes. Refused while a build is at work there. After `build --shard-part`, commit first: until
    then the catalog does not name the new shards.

    \b
    Examples:
      ocrstore gc train/ --dry-run
      ocrstore gc train/
    """
    with explain_missing("gc", "build"):
        from ocrstore.building.build_dataset import collect_garbage
    removed = collect_garbage(folder, dry_run=dry_run)
    total = sum(removed.values())
    if as_json:
        print_json({"folder": str(folder), "dry_run": dry_run, "nbytes": total, "files": removed})
        return
    out = console()
    for name, nbytes in removed.items():
        out.print(f"  {shown(name)}  {human_bytes(nbytes)}", style="dim")
    files = f"{counted(len(removed), 'file')}, {human_bytes(total)}"
    if dry_run:
        out.print(f"would remove {files}")
    else:
        out.print(f"[green]✓[/] {shown(folder)}: removed {files}")
