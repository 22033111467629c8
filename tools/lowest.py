"""Print exact versions for a run of the suite at the lower bounds of pyproject.toml.

Dependencies get the version that their bound names, the tools of the suite that of constraints.txt,
and so does torch: no older CPU build is on PyPI. albumentations is left out, as nothing needs it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bounds(lines: list[str]) -> dict[str, str]:
    """Return package and lower bound of each requirement, without extras of ocrstore itself."""
    found = (re.match(r"([\w.-]+)>=([\w.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


def lowest() -> dict[str, str]:
    """Return the exact version of each package of the run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    tools = ["torch", *bounds(extras["dev"])]
    asked = extras.keys() - {"augment", "bench", "docs", "dev"}
    lines = [line for name in asked for line in extras[name]]
    pinned = dict(re.findall(r"^([\w.-]+)==(.*)$", (ROOT / "constraints.txt").read_text(), re.M))
    lowest = bounds([*project["dependencies"], *lines])
    return {**{name: pinned[name] for name in tools}, **lowest, "torch": pinned["torch"]}


if __name__ == "__main__":
    for package, version in sorted(lowest().items()):
        print(f"{package}=={version}")
