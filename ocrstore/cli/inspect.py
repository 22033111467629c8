"""`ocrstore inspect`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from ocrstore.cli.console import STORE, print_json, progress_bar
from ocrstore.cli.inspect_output import print_difference, print_facts, print_sample
from ocrstore.inspection.difference import compare_stores
from ocrstore.inspection.facts import gather_facts
from ocrstore.inspection.sample_facts import sample_facts
from ocrstore.store import Store
from ocrstore.verification import verify

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("inspect")
@click.argument("store", type=STORE)
@click.argument("key", required=False)
@click.option("--full", is_flag=True, help="Check every byte, as `ocrstore verify` does.")
@click.option("--diff", "other", type=STORE, help="Compare with another store.")
@click.option(
    "--source", type=FOLDER, help="Folder of the pictures, to look for new and changed ones."
)
@click.option("--no-picture", is_flag=True, help="Do not print the picture of a sample.")
@click.option("--generation", type=int, help="Show an older generation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect_command(
    store: Path,
    key: str | None,
    full: bool,
    other: Path | None,
    source: Path | None,
    no_picture: bool,
    generation: int | None,
    as_json: bool,
) -> int:
    """Show what a store contains, its origin, integrity and size.

    With KEY: one sample, with its picture in a terminal that has colours. Payload is read for that
    picture and with --full only.

    \b
    Examples:
      ocrstore inspect val.ocrs
      ocrstore inspect val.ocrs img_12.jpg
      ocrstore inspect val.ocrs --full
      ocrstore inspect val.ocrs --diff new.ocrs
      ocrstore inspect val.ocrs --json | jq .samples

    Exit code 1 if the store is damaged, or with --diff if the stores differ.
    """
    if other is not None and (key is not None or full):
        raise click.UsageError("--diff compares whole stores: leave out KEY and --full.")
    if key is not None and full:
        raise click.UsageError("--full checks the whole store: leave out KEY.")
    with Store(store, generation=generation) as opened:
        if other is not None:
            with Store(other) as second:
                difference = compare_stores(opened, second)
            if as_json:
                print_json(difference.to_json())
            else:
                print_difference(difference)
            return 1 if difference.any else 0
        if key is not None:
            facts = sample_facts(opened, key)
            if as_json:
                print_json(facts.to_json())
            else:
                print_sample(opened, facts, picture=not no_picture)
            return 0
        found = gather_facts(opened, source=source)
    result = None
    if full:
        with progress_bar("verifying", in_bytes=True, quiet=as_json) as advance:
            result = verify(store, progress=advance)
    if as_json:
        record = found.to_json()
        if result is not None:
            record["verification"] = {"ok": result.ok, **dataclasses.asdict(result)}
        print_json(record)
    else:
        print_facts(found, result)
    return 0 if found.integrity.ok and (result is None or result.ok) else 1
