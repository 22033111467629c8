"""Pipelines as canonical JSON, made from objects, saved files and Hydra nodes.

A recipe bakes uint8 pixels. So a Normalize at the end of a pipeline becomes the recipe's mean and
std, by which batches are normalised, and a ToTensorV2 is left out: batches have its layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, cast

from ocrstore.errors import SchemaError, needs
from ocrstore.pipeline import (
    SEQUENCES,
    default_p,
    described_parts,
    import_albumentations,
    is_always_applied,
    make_transform,
    permit_parts,
    short_name,
)

Tree = dict[str, Any]
_MAX_DEPTH = 100
"""Lists and mappings inside of each other that a recipe or pipeline file may have."""
_NOT_GEOMETRY = ("bbox_params", "keypoint_params", "additional_targets", "is_check_shapes")
_TAIL = ("Normalize", "ToTensorV2")


def to_json(pipeline: object) -> str:
    """Return a pipeline's transforms and their arguments as canonical JSON.

    Args:
        pipeline: An albumentations transform or composition, the result of
            `albumentations.to_dict`, or a Hydra node (`_target_`), a list of them included. Box
            and keypoint settings are left out.

    Raises:
        SchemaError: The pipeline cannot be serialised.
    """
    tree, is_node = _tree(pipeline)
    return _dump(_completed(tree) if is_node else tree)


def bake_json(pipeline: object) -> tuple[str, dict[str, tuple[float, ...]]]:
    """Return a pipeline for a recipe: canonical JSON, and the fields of the recipe that it sets.

    Args:
        pipeline: As in `to_json`. Normalize and ToTensorV2 at its end are left out of the JSON; the
            fields are `mean` and `std` of the Normalize.

    Raises:
        SchemaError: The pipeline cannot be serialised, or normalises elsewhere or by the picture.
    """
    tree, is_node = _tree(pipeline)
    tree, fields = _without_tail(tree)
    return _dump(_completed(tree) if is_node else tree), fields


def is_pipeline(described: object) -> bool:
    """Tell whether the content of a file is a pipeline, and not a recipe."""
    if isinstance(described, list):
        return bool(described) and all(map(is_pipeline, described))
    keys = ("transform", "__class_fullname__", "_target_")
    return isinstance(described, Mapping) and any(key in described for key in keys)


def read_pipeline(path: Path) -> str:
    """Read a file of `albumentations.save` or a Hydra node, and return canonical JSON."""
    described = read_yaml(path, what="pipeline")
    if not is_pipeline(described):
        raise SchemaError(f"{path}: not a serialised albumentations pipeline")
    return to_json(described)


def read_yaml(path: Path, *, what: str) -> Any:
    """Read a YAML or JSON file; `what` is its kind, for the message.

    Raises:
        SchemaError: It cannot be read, is nested too deeply, or has aliases, with which a few lines
            describe more than fits into memory.
    """
    with needs("build"):
        import yaml

    try:
        text = path.read_text("utf-8")
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise SchemaError(f"{path}: not a readable {what} file: nested too deeply")
            if isinstance(event, yaml.AliasEvent):
                line = "a line" if event.start_mark is None else f"line {event.start_mark.line + 1}"
                raise SchemaError(
                    f"{path}: not a readable {what} file: {line} has an alias (*{event.anchor}); "
                    "write the value out"
                )
        return yaml.safe_load(text)  # JSON is YAML too
    # safe_load raises a bare ValueError for a date or number that there is none of
    except (OSError, yaml.YAMLError, ValueError) as exc:
        if isinstance(exc, SchemaError):
            raise
        raise SchemaError(f"{path}: not a readable {what} file: {exc}") from exc


# --- the forms that a pipeline comes in


def _tree(pipeline: object) -> tuple[Tree, bool]:
    """Return the description of a pipeline, and whether it comes from a Hydra node."""
    if isinstance(pipeline, Sequence) and not isinstance(pipeline, str):
        pipeline = {"_target_": "albumentations.Compose", "transforms": pipeline}
    if not isinstance(pipeline, Mapping):
        return _from_object(pipeline), False
    if "_target_" in pipeline:
        tree = _from_node(_plain(pipeline))
        for _ in described_parts(tree):  # raises for a wrong structure
            pass
        return tree, True
    tree = pipeline.get("transform", pipeline)
    if not isinstance(tree, Mapping) or "__class_fullname__" not in tree:
        raise SchemaError(
            "not a serialised albumentations pipeline: `__class_fullname__` is missing; "
            "write one with albumentations.save(pipeline, path, data_format='yaml')"
        )
    for part in described_parts(tree):
        # albumentations 1.3 does not save it, and without it the picture would move
        if short_name(part) == "PadIfNeeded" and "always_apply" in part and "position" not in part:
            raise SchemaError(
                "PadIfNeeded: albumentations before 1.4 does not save where it puts the picture. "
                "Add `position: top_left` (or center, its default) to its arguments"
            )
    return dict(tree), False


def _from_object(pipeline: Any) -> Tree:
    import_albumentations()
    if not hasattr(pipeline, "to_dict"):
        raise SchemaError(
            f"expected an albumentations transform or its serialised form, not {pipeline!r}"
        )
    permit_parts(pipeline)  # whoever hands over the object has run its code already
    try:
        described = pipeline.to_dict()
    except (NotImplementedError, ValueError) as exc:
        raise SchemaError(
            f"the pipeline cannot be serialised ({exc}), so it cannot be part of a recipe; "
            "use transforms that albumentations can serialise"
        ) from exc
    tree: Tree = _plain(described["transform"])
    _add_positions(pipeline, tree)
    return tree


def _add_positions(made: Any, tree: Tree) -> None:
    """Add the position of PadIfNeeded, which albumentations 1.3 leaves out."""
    if short_name(tree) == "PadIfNeeded" and "position" not in tree:
        tree["position"] = _plain(made.position)
    for part, described in zip(
        getattr(made, "transforms", ()), tree.get("transforms", ()), strict=False
    ):
        _add_positions(part, described)


def _from_node(node: Any) -> Tree:
    """Return a Hydra node of plain containers as a description with the arguments that it names."""
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise SchemaError("not the Hydra node of a pipeline: a transform has no `_target_`")
    name = node["_target_"]
    for key in ("_args_", "_partial_"):
        if node.get(key):
            raise SchemaError(f"{name}: {key} cannot be part of a recipe; name the arguments")
    own = name.startswith("albumentations.")
    tree: Tree = {"__class_fullname__": name.rpartition(".")[2] if own else name}
    for key, value in node.items():
        if key.startswith("_") or key in _NOT_GEOMETRY:
            continue
        if isinstance(value, str) and "${" in value:
            raise SchemaError(
                f"{name}: {key} is {value!r}; resolve the node first: "
                "OmegaConf.to_container(node, resolve=True)"
            )
        is_parts = key == "transforms" and isinstance(value, list)
        tree[key] = [_from_node(part) for part in value] if is_parts else value
    return tree


def _plain(value: Any) -> Any:
    """Return containers, those of OmegaConf too, as dicts and lists, and enums as values."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value


def _completed(tree: Tree) -> Tree:
    """Return a description with all arguments, as albumentations describes what it makes of it."""
    with suppress(ImportError):
        import albumentations.pytorch  # noqa: F401  # registers ToTensorV2
    for part in described_parts(tree):
        # from_dict would take 0.5 for every class
        cast(Tree, part).setdefault("p", default_p(part))
    return _from_object(make_transform(tree))


def _dump(tree: Tree) -> str:
    kept = {name: value for name, value in tree.items() if name not in _NOT_GEOMETRY}
    try:
        text = json.dumps(kept, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise SchemaError(f"the pipeline has arguments that are not JSON: {exc}") from exc
    for _ in described_parts(kept):  # raises for a wrong structure
        pass
    return text


# --- normalising at the end


def _without_tail(tree: Tree) -> tuple[Tree, dict[str, tuple[float, ...]]]:
    """Return a description without Normalize and ToTensorV2 at its end, and mean and std."""
    fields: dict[str, tuple[float, ...]] = {}
    kept = list(tree.get("transforms") or ())
    tail: list[Tree] = []
    if short_name(tree) in SEQUENCES and is_always_applied(tree):
        while kept and short_name(kept[-1]) in _TAIL and is_always_applied(kept[-1]):
            tail.insert(0, kept.pop())
    for name in _TAIL:
        if [short_name(part) for part in tail].count(name) > 1:
            raise SchemaError(f"{name} is there twice")
    for number, part in enumerate(tail):
        if short_name(part) == "Normalize":
            if number:
                raise SchemaError("Normalize after ToTensorV2 cannot be baked; put it before")
            fields = _mean_and_std(part)
    rest = {**tree, "transforms": kept} if tail else tree
    for other in described_parts(rest):
        if short_name(other) in _TAIL:
            raise SchemaError(
                f"{short_name(other)} cannot be baked there: a view holds uint8 pixels. At the end "
                "of the pipeline, with p=1, it becomes the mean and std of the recipe"
            )
    return rest, fields


def _mean_and_std(normalize: Tree) -> dict[str, tuple[float, ...]]:
    if normalize.get("normalization", "standard") != "standard":
        raise SchemaError(
            f"Normalize(normalization={normalize['normalization']!r}) depends on the picture and "
            "cannot be baked; use the standard one, by mean and std"
        )
    # albumentations' defaults, of ImageNet; a recipe has them for pixels scaled to 0..1
    given = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), **normalize}
    fields = {}
    try:
        scale = float(given.get("max_pixel_value", 255.0)) / 255
        for name in ("mean", "std"):
            values = given[name] if isinstance(given[name], Sequence) else [given[name]] * 3
            fields[name] = tuple(float(value) * scale for value in values)
    except (TypeError, ValueError, OverflowError) as exc:
        raise SchemaError(f"Normalize: mean, std or max_pixel_value is no number: {exc}") from exc
    return fields
