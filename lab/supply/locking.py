"""Writes ``requirements/*.txt`` by uv: ``./run lock [--upgrade | --upgrade-package NAME …]``.

Without an option versions stay as they are where they still fit pyproject.toml. Needs the standard
library alone and ``uv`` in PATH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "requirements"
PYTHON = "3.11"
"""The oldest Python; a lock has lines for newer ones where versions differ, with markers."""
LARGE = "torch"
"""Comes with 3 GB of GPU libraries, or as a CPU build that few indexes have: locks of its own."""
WHEELS_ALONE = "--only-binary :all:"
FROM_SOURCE = "--no-binary deepspeed"
"""What comes without wheels: its setup runs when a test asks for an environment of its own."""


def name(requirement: str) -> str:
    """The distribution's name of a requirement, as it is written."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    if found is None:
        raise ValueError(f"no requirement: {requirement!r}")
    return found[0]


def _project(path: Path) -> dict[str, list[str]]:
    """Requirements by what asks for them: ``dependencies``, each extra, ``build``."""
    table = tomllib.loads(path.read_text())
    project = table["project"]
    return {
        "dependencies": project["dependencies"],
        **project.get("optional-dependencies", {}),
        "build": table["build-system"]["requires"],
    }


def _input(lock: str) -> list[str]:
    """The requirements of a lock that no pyproject.toml has: ``requirements/NAME.in``."""
    lines = (FOLDER / f"{lock}.in").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _development() -> list[str]:
    groups = _project(REPO / "pyproject.toml")
    wanted = [item for group in ("dependencies", "dev", "sniff") for item in groups[group]]
    return [item for item in dict.fromkeys(wanted) if name(item) != LARGE]


def _package() -> list[str]:
    groups = _project(REPO / "pyproject.toml")
    wanted = {"cyclonedx-python-lib", "packageurl-python", "packaging"}
    return groups["build"] + [item for item in groups["dev"] if name(item) in wanted]


def _cpu_torch() -> list[str]:
    """The CPU build of the release that ``torch.txt`` has."""
    found = re.search(r"^torch==([0-9.]+)", (FOLDER / "torch.txt").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("torch.txt has no torch")
    return [f"torch=={found[1]}+cpu"]


@dataclass(frozen=True)
class Lock:
    """One file of ``requirements/``.

    Attributes:
        requirements: what it is made of.
        constraints: locks whose versions it takes, where both have a package.
        options: further ones of uv.
    """

    requirements: Callable[[], list[str]]
    constraints: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


LOCKS = {
    "runtime": Lock(lambda: _project(REPO / "pyproject.toml")["dependencies"]),
    "development": Lock(_development, ("runtime",)),
    "sniff": Lock(lambda: _project(REPO / "pyproject.toml")["sniff"], ("development",)),
    "package": Lock(_package, ("development",)),
    "torch": Lock(
        lambda: _project(REPO / "fabric_train" / "pyproject.toml")["dependencies"],
        ("development",),
    ),
    "torch-cpu": Lock(_cpu_torch, ("development",)),
    "torchft": Lock(lambda: _input("torchft"), ("torch-cpu",), ("--no-emit-package", LARGE)),
    "frameworks": Lock(lambda: _input("frameworks"), ("torch-cpu",), ("--no-emit-package", LARGE)),
    # Its versions of what torch needs, too, are not those of torch-cpu: datasets wants older ones.
    "torchtitan": Lock(
        lambda: [*_input("torchtitan"), *_cpu_torch()], options=("--no-emit-package", LARGE)
    ),
    "megatron": Lock(lambda: _input("megatron"), ("torch-cpu",), ("--no-emit-package", LARGE)),
    "deepspeed": Lock(
        lambda: _input("deepspeed"),
        ("torch-cpu", "frameworks"),
        ("--no-emit-package", LARGE, *FROM_SOURCE.split()),
    ),
    "lock": Lock(lambda: _input("lock")),
}
"""In the order in which they are made: constraints first."""


def find_links() -> list[str]:
    """Where pip looks besides indexes; uv does not read pip's settings."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    values = re.findall(r"find-links='(.*)'$", listing, re.MULTILINE)
    return [place for value in values for place in value.replace("\\n", " ").split()]


def arguments(lock: str, options: Sequence[str], links: Sequence[str]) -> list[str]:
    """The call of uv that makes a lock of ``NAME.in`` in the directory that it runs in."""
    argv = ["uv", "--no-config", "pip", "compile", f"{lock}.in", "--output-file", f"{lock}.txt"]
    argv += ["--generate-hashes", "--universal", "--python-version", PYTHON]
    # Wheels alone, and the file says so: no code of a package runs while it is installed.
    argv += [*WHEELS_ALONE.split(), "--emit-build-options"]
    # Where a package comes from is the machine's affair. The hash says that it is the same.
    argv += ["--no-emit-index-url", "--no-emit-find-links"]
    argv += ["--custom-compile-command", "./run lock", "--quiet"]
    for constraint in LOCKS[lock].constraints:
        argv += ["--constraints", f"{constraint}.txt"]
    for place in links:
        argv += ["--find-links", place]
    return [*argv, *LOCKS[lock].options, *options]


def wheels_first(text: str) -> str:
    """``text`` of a lock, its exception to wheels behind the rule: pip drops what is before it."""
    return text.replace(f"{FROM_SOURCE}\n{WHEELS_ALONE}\n", f"{WHEELS_ALONE}\n{FROM_SOURCE}\n")


def main() -> int:
    """Entry point; returns uv's status when a lock cannot be made: it and later ones stay."""
    parser = argparse.ArgumentParser(prog="./run lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions that fit")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME")
    args = parser.parse_args()
    options = ["--upgrade"] if args.upgrade else []
    for package in args.upgrade_package:
        options += ["--upgrade-package", package]
    with tempfile.TemporaryDirectory() as scratch:
        # Names in comments are those of files here.
        for path in FOLDER.glob("*.txt"):
            shutil.copy(path, scratch)
        for lock, made in LOCKS.items():
            Path(scratch, f"{lock}.in").write_text("\n".join(made.requirements()) + "\n")
            cpu = "torch-cpu" in (lock, *made.constraints) or LARGE in made.options
            links = find_links() if cpu else []
            argv = arguments(lock, options, links)
            done = subprocess.run(
                argv, cwd=scratch, check=False, env=os.environ | {"NO_COLOR": "1"}
            )
            if done.returncode != 0:
                print(f"requirements/{lock}.txt and later ones stay as they are", file=sys.stderr)
                return done.returncode
            made_file = Path(scratch, f"{lock}.txt")
            made_file.write_text(wheels_first(made_file.read_text()))
            shutil.copy(made_file, FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
