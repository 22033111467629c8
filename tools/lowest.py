"""Print what to install for a run of the suite at the lower bounds of pyproject.toml.

Dependencies get exactly the version that their bound names, torch that of constraints.txt (no older
CPU build is on PyPI); the tools of the suite are the newest that fit. albumentations is left out, as
nothing needs it, and DALI, which has an environment of its own.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def bounds(lines: list[str]) -> dict[str, str]:
    """Return package and lower bound of each requirement, without extras of ocrstore itself."""
    found = (re.match(r"([\w.-]+)>=([\w.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


def lowest() -> dict[str, str]:
    """Return the lowest version of each package that ocrstore and its extras ask for."""
    asked = EXTRAS.keys() - {"augment", "bench", "dali", "docs", "dev"}
    lines = [line for name in asked for line in EXTRAS[name]]
    torch = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)[0]
    return {**bounds([*PROJECT["dependencies"], *lines]), "torch": torch}


if __name__ == "__main__":
    versions = lowest()
    for package, version in sorted(versions.items()):
        print(f"{package}=={version}")
    for package, version in bounds(EXTRAS["dev"]).items():
        if package not in versions:
            print(f"{package}>={version}")
