"""Owns a pipeline as a row of steps: their names, their transforms, and which could be baked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ocrstore.errors import SchemaError
from ocrstore.pipeline import CHOOSING, SEQUENCES, Verdict, judge, make_transform
from ocrstore.profiling.records import Kind

Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step before it is measured."""

    name: str
    tree: Tree
    transform: Any
    """The albumentations object that the pipeline calls."""
    kind: Kind
    reason: str


class StepList:
    """A pipeline's steps, and the pipeline itself as an object to call."""

    def __init__(self, described: str) -> None:
        tree = json.loads(described)
        self.transform = make_transform(tree)
        pairs = list(_flatten(tree, self.transform))
        names = _distinct([_name(one) for one, _ in pairs])
        verdicts = classify([one for one, _ in pairs])
        self.steps = tuple(
            PlannedStep(name, one, made, kind, reason)
            for name, (one, made), (kind, reason) in zip(names, pairs, verdicts, strict=True)
        )

    @property
    def bakeable(self) -> int:
        """How many leading steps could be baked."""
        kinds = [step.kind for step in self.steps]
        return next((i for i, kind in enumerate(kinds) if kind != "bakeable"), len(kinds))


def read_steps(path: Path) -> str:
    """Read a pipeline saved by albumentations, or the pipeline of a recipe file; canonical JSON."""
    import yaml

    from ocrstore.pipeline import read_pipeline, to_json

    try:
        described = yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise SchemaError(f"{path}: not a readable pipeline file: {exc}") from exc
    if isinstance(described, Mapping) and "pipeline" in described:
        inner = described["pipeline"]
        if isinstance(inner, str):
            return read_pipeline(path.parent / inner)
        if isinstance(inner, Mapping):
            return to_json(inner)
    if not isinstance(described, Mapping) or not described.keys() & {
        "transform",
        "__class_fullname__",
    }:
        raise SchemaError(
            f"{path}: holds no albumentations pipeline; write one with "
            "albumentations.save(pipeline, path, data_format='yaml'), or name a recipe that has one"
        )
    return to_json(described)


def classify(trees: Sequence[Tree]) -> list[tuple[Kind, str]]:
    """Say of each step whether it could be baked: the first that cannot ends what can.

    A step that fails on its own is judged with those before it: a crop may need what a resize left.
    """
    found: list[tuple[Kind, str]] = []
    leading = True
    for number, tree in enumerate(trees):
        verdict = _judge(compose_json([tree]))
        if verdict.kind == "unfit" and leading and number:
            verdict = _judge(compose_json(trees[: number + 1]))
        if verdict.kind == "deterministic":
            found.append(("bakeable" if leading else "deterministic", ""))
        else:
            found.append((verdict.kind, verdict.reason))
            leading = False
    return found


@lru_cache(maxsize=256)
def _judge(described: str) -> Verdict:
    try:
        return judge(described)
    except Exception as exc:  # a transform of somebody else's may raise anything
        return Verdict("unfit", f"it could not be tried on a probe picture: {exc}")


def compose_json(trees: Sequence[Tree]) -> str:
    """Describe steps as one pipeline, in canonical JSON."""
    composed = {"__class_fullname__": "Compose", "p": 1.0, "transforms": [dict(t) for t in trees]}
    return json.dumps(composed, sort_keys=True)


def write_split(steps: StepList, folder: Path) -> tuple[Path, Path]:
    """Write what can be baked as a recipe, and the rest as a pipeline for `transform=`."""
    import yaml

    bake, rest = folder / "bake.yaml", folder / "rest.yaml"
    count = steps.bakeable
    if not count:
        raise SchemaError("no leading step of the pipeline can be baked: there is nothing to split")
    whole = count == len(steps.steps)
    recipe: dict[str, Any] = {
        "pipeline": json.loads(compose_json([step.tree for step in steps.steps[:count]]))
    }
    if not whole:  # maps cannot be drawn before the random steps have moved the polygons
        recipe["columns"] = ["tensor", "inverse_matrix"]
    others = json.loads(compose_json([step.tree for step in steps.steps[count:]]))
    folder.mkdir(parents=True, exist_ok=True)
    bake.write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")
    rest.write_text(yaml.safe_dump({"transform": others}, sort_keys=False), "utf-8")
    return bake, rest


def _flatten(tree: Tree, made: Any) -> Iterator[tuple[Tree, Any]]:
    """Give the steps in the order they run; what chooses, or may not run at all, is one step."""
    short = _short(tree)
    if short in SEQUENCES and float(tree.get("p", 1.0)) >= 1.0:
        for child, inner in zip(tree.get("transforms") or (), made.transforms, strict=True):
            yield from _flatten(child, inner)
    else:
        yield tree, made


def _short(tree: Tree) -> str:
    return str(tree["__class_fullname__"]).rpartition(".")[2]


def _name(tree: Tree) -> str:
    short = _short(tree)
    inner = [_name(child) for child in tree.get("transforms") or ()]
    if not inner:
        return short
    return f"{short}({(' | ' if short in CHOOSING else ', ').join(inner)})"


def _distinct(names: list[str]) -> list[str]:
    """Number the names that stand more than once."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
