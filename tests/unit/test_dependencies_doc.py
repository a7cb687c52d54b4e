"""docs/dependencies.md names and justifies every dependency."""

import re
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DOC = (REPO / "docs" / "dependencies.md").read_text()


def test_every_python_dependency_has_a_row():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[<>=!~\[; ]", item, maxsplit=1)[0] for item in wanted}
    rows = {name for name in names if re.search(rf"^\| `{re.escape(name)}`", DOC, re.MULTILINE)}
    assert names - rows == set()


def test_every_debian_package_is_named():
    named = set(re.findall(r"`([^` ]+)`", DOC))
    for path in sorted((REPO / "lab" / "packages").glob("*.txt")):
        lines = path.read_text().splitlines()
        wanted = {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}
        assert wanted - named == set(), path.name
