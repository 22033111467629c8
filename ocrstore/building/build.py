"""`ocrstore.build`: what a caller says becomes a plan, and the plan is carried out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ocrstore.building.plan import BuildPlan, plan_build
from ocrstore.building.report import BuildReport
from ocrstore.building.run import Options, Progress, execute
from ocrstore.decode import DEFAULT_MAX_PIXELS
from ocrstore.errors import SchemaError, SourceError
from ocrstore.recipe import Recipe, read_recipe
from ocrstore.sources import open_source
from ocrstore.views import IMPORTED, View

StrPath = str | os.PathLike[str]


def build(
    images: StrPath,
    out: StrPath,
    *,
    annotations: StrPath | None = None,
    format: str | None = None,
    recipe: Recipe | StrPath | None = None,
    size: int | Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    codecs: dict[str, str] | None = None,
    pipeline: object = None,
    view: str | None = None,
    maps: StrPath | None = None,
    workers: int | None = None,
    on_error: str = "skip",
    force: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Progress | None = None,
    announce: Callable[[BuildPlan], None] | None = None,
) -> BuildReport:
    """Build a store from a folder of pictures, or bring an existing one up to date.

    `recipe` is a Recipe or a recipe file; or say `size`, `columns`, `codecs`, or an albumentations
    `pipeline`. Only what changed is done. Interrupted, killed or out of disk space: nothing that
    was published changes, and the same call goes on where it stopped. `workers=0` does everything
    in this process; without it all cores are used. `announce` is called with the plan before the
    work, `progress` with how far it is. Pictures that cannot be used are skipped and reported, or
    with `on_error="fail"` end the build with a SourceError.
    """
    plan, options = prepare(
        images,
        out,
        annotations=annotations,
        format=format,
        recipe=make_recipe(recipe, size, columns, codecs, pipeline),
        view=view,
        maps=maps,
        workers=workers,
        on_error=on_error,
        force=force,
        max_pixels=max_pixels,
    )
    if announce is not None:
        announce(plan)
    return execute(plan, options.telling(progress))


def make_recipe(
    recipe: Recipe | StrPath | None,
    size: int | Sequence[int] | None,
    columns: Sequence[str] | None,
    codecs: dict[str, str] | None,
    pipeline: object,
) -> Recipe:
    """Make the one recipe of what was given in several ways."""
    if recipe is None:
        return Recipe.make(size=size, columns=columns, codecs=codecs, pipeline=pipeline)
    if size is not None or columns is not None or codecs is not None or pipeline is not None:
        raise SchemaError(
            "a recipe says everything; leave out size, columns, codecs and pipeline, or put them "
            "into the recipe"
        )
    return recipe if isinstance(recipe, Recipe) else read_recipe(Path(recipe))


def prepare(
    images: StrPath,
    out: StrPath,
    *,
    annotations: StrPath | None,
    format: str | None,
    recipe: Recipe,
    view: str | None,
    maps: StrPath | None,
    workers: int | None,
    on_error: str,
    force: bool,
    max_pixels: int,
) -> tuple[BuildPlan, Options]:
    """Look at everything and decide what to do; nothing is written."""
    if on_error not in ("skip", "fail"):
        raise SchemaError(f"on_error is 'skip' or 'fail', not {on_error!r}")
    if workers is not None and workers < 0:
        raise SchemaError(f"workers is 0 or more, not {workers}")
    if recipe.pipeline is not None:
        from ocrstore.pipeline import check_deterministic

        check_deterministic(recipe.pipeline)
    folder = None if maps is None else Path(maps)
    if folder is not None:
        if not folder.is_dir():
            raise SourceError(f"{folder}: no such folder of map files")
        recipe = replace(recipe, map_algorithm=f"{IMPORTED}, else {recipe.map_algorithm}")
    source = open_source(images, annotations=annotations, format=format)
    asked = View(view or recipe.view_name, recipe, default=True)
    plan = plan_build(source, Path(out), asked, force=force, maps_folder=folder)
    return plan, Options(workers, on_error, max_pixels)
