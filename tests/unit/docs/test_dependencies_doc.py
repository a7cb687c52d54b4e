"""docs/dependencies.md justifies every dependency; something uses each, and nothing uses others.

A Python dependency is used where a module imports it. What is run or loaded instead is in `TOOLS`,
with the line that does so.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
DOC = (REPO / "docs" / "dependencies.md").read_text()
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
PRODUCT = ["fabricd", "telemetry", "clocksync", "compute"]
TRAIN = ["fabric_train"]
"""A wheel of its own."""
DEVELOPMENT = ["lab", "bench", "tests", "examples"]
DEBIAN = {"pyverbs": "python3-pyverbs"}
"""Modules of Debian packages."""
TOOLS = {
    "jsonschema": ("tests/unit/lab/test_supply_bill.py", "JsonStrictValidator("),
    "mkdocs-material": ("lab/lint.sh", "mkdocs build --strict"),
    "mypy": ("lab/lint.sh", "step 'mypy --strict' mypy"),
    "pytest-asyncio": ("pyproject.toml", "asyncio_mode = "),
    "pytest-timeout": ("pyproject.toml", "\ntimeout = "),
    "pytest-xdist": ("lab/test.sh", '-n "$CORES" --dist loadfile'),
    "ruff": ("lab/lint.sh", "ruff check ."),
    "scikit-build-core": ("pyproject.toml", 'build-backend = "scikit_build_core.build"'),
}

OWN_VENV = {
    "torchft": "torchft", "accelerate": "frameworks", "lightning": "frameworks",
    "transformers": "frameworks", "torchtitan": "torchtitan", "megatron-core": "megatron",
    "einops": "megatron", "deepspeed": "deepspeed",
}  # fmt: skip
"""What a bench or a test installs into an environment of its own, because it is what we compare
with, or whose loops we take over: its lock in ``requirements/``."""


def names(requirements: Iterable[str]) -> set[str]:
    """Distribution names of requirements."""
    return {re.split(r"[<>=!~\[; ]", item, maxsplit=1)[0] for item in requirements}


MODULES = {
    "cyclonedx-python-lib": "cyclonedx", "megatron-core": "megatron",
    "packageurl-python": "packageurl",
}  # fmt: skip
"""Of distributions whose module has another name."""


def module(distribution: str) -> str:
    return MODULES.get(distribution, distribution.replace("-", "_"))


REQUIRED = names(PROJECT["dependencies"])
EXTRAS = {extra: names(items) for extra, items in PROJECT["optional-dependencies"].items()}
ALL = REQUIRED.union(*EXTRAS.values())


def imported(source: str) -> set[str]:
    """Top-level modules that a source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
    return found


def foreign(packages: Iterable[str]) -> set[str]:
    """What these packages import that is neither Python's nor ours."""
    files = [path for package in packages for path in (REPO / package).rglob("*.py")]
    scripts = (REPO / "tests", REPO / "examples")  # which lie in the path of those beside them
    ours = {path.stem for path in files if any(path.is_relative_to(one) for one in scripts)}
    ours |= {*PRODUCT, *TRAIN, *DEVELOPMENT}
    found = set().union(*(imported(path.read_text()) for path in files))
    return found - ours - set(sys.stdlib_module_names) - modules(OWN_VENV)


def modules(distributions: Iterable[str]) -> set[str]:
    return {module(name) for name in distributions}


def test_every_python_dependency_has_a_row():
    rows = {name for name in ALL if re.search(rf"^\| `{re.escape(name)}`", DOC, re.MULTILINE)}
    assert ALL - rows == set()


def test_every_row_is_a_dependency():
    before, _, _ = DOC.partition("## Debian packages")
    rows = set(re.findall(r"^\| `([^`]+)`", before, re.MULTILINE))
    assert rows - ALL == set(DEBIAN.values())


@pytest.mark.patient
def test_something_imports_every_dependency():
    product, all_of_it = foreign(PRODUCT), foreign([*PRODUCT, *DEVELOPMENT])
    assert modules(REQUIRED | EXTRAS["sniff"]) - product == set()
    assert modules(ALL - set(TOOLS)) - all_of_it == set()
    project = tomllib.loads((REPO / "fabric_train" / "pyproject.toml").read_text())["project"]
    assert foreign(TRAIN) == names(project["dependencies"])


@pytest.mark.patient
def test_every_import_is_a_dependency():
    product = modules(REQUIRED | EXTRAS["sniff"]) | set(DEBIAN)
    assert foreign(PRODUCT) - product == set()
    assert foreign(DEVELOPMENT) - product - modules(EXTRAS["dev"]) == set()


@pytest.mark.parametrize("peer", OWN_VENV)
def test_what_we_compare_with_has_a_version(peer):
    lock = (REPO / "requirements" / f"{OWN_VENV[peer]}.txt").read_text()
    assert re.search(rf"^{peer}[a-z-]*==", lock, re.MULTILINE)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_not_imported_is_run(tool):
    path, line = TOOLS[tool]
    assert line in (REPO / path).read_text()
    assert tool in ALL


def test_every_import_is_found_wherever_it_is():
    source = "import a.b, c as d\ndef f():\n    from e.f import g\n    from . import h\n"
    assert imported(source) == {"a", "c", "e"}


def test_every_debian_package_is_named():
    named = set(re.findall(r"`([^` ]+)`", DOC))
    for path in sorted((REPO / "lab" / "packages").glob("*.txt")):
        lines = path.read_text().splitlines()
        wanted = {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}
        assert wanted - named == set(), path.name
