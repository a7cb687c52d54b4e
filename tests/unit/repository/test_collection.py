"""Collecting the unit tests is quick: importing their modules loads no large library.

A test that needs one imports it in a function, or by ``on_demand`` (tests/unit/shared).
"""

import ast
import tomllib
from collections import deque
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
RULES = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
LARGE = set(RULES["flake8-tidy-imports"]["banned-module-level-imports"])
"""The libraries that ruff's rule TID253 bans, which knows exceptions and follows no import."""
LOADERS = {"importorskip", "import_module", "__import__"}


def loaded_names(body):
    """Dotted names of what statements at the top of a module import when it is imported."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "this repository has no relative imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(call := getattr(node, "value", None), ast.Call):
            name = ast.unparse(call.func).rpartition(".")[2]
            if name in LOADERS and call.args and isinstance(call.args[0], ast.Constant):
                yield call.args[0].value
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from loaded_names(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "handlers", "orelse", "finalbody"):
                yield from loaded_names(getattr(node, part, ()))


class ImportGraph:
    """What imports of modules load. Files are paths below ``root``; ``places`` are folders there.

    A module of a place is imported by its bare name, as pytest's ``pythonpath`` allows.
    """

    def __init__(self, root, places=()):
        self._root, self._places = root, ("", *places)
        self.files_of, self.loaded_by = cache(self._files_of), cache(self._loaded_by)

    def _files_of(self, name, place):
        """The files that importing a dotted name from a place runs, packages first."""
        path, files = self._root / place, []
        for part in name.split("."):
            path /= part
            found = [
                file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()
            ]
            files += [str(file.relative_to(self._root)) for file in found]
            if not path.is_dir():
                break
        return files

    def _loaded_by(self, file):
        """What a file itself imports: our files, and large libraries."""
        files, large = {}, set()
        for name in loaded_names(ast.parse((self._root / file).read_bytes()).body):
            if (top := name.partition(".")[0]) in LARGE:
                large.add(top)
            for place in (*self._places, str(Path(file).parent)):
                if found := self.files_of(name, place):
                    files.update(dict.fromkeys(found))
                    break
        return list(files), large

    def way_to_a_large_library(self, file):
        """The shortest chain of files from this one to a large library, with it; or none."""
        came_from, waiting = {file: None}, deque([file])
        while waiting:
            at = waiting.popleft()
            files, large = self.loaded_by(at)
            if large:
                chain = [min(large)]
                while at:
                    chain.insert(0, at)
                    at = came_from[at]
                return chain
            new = [one for one in files if one not in came_from]
            came_from.update(dict.fromkeys(new, at))
            waiting.extend(new)
        return []


def test_no_unit_test_module_loads_a_large_library_when_it_is_imported():
    graph = ImportGraph(REPO, ["tests/unit/shared"])
    names = ("tests/conftest.py", "tests/unit/**/conftest.py", "tests/unit/**/test_*.py")
    files = [str(file.relative_to(REPO)) for name in names for file in REPO.glob(name)]
    files = [file for file in files if "/." not in file]  # pytest skips hidden folders, too
    assert len(files) > 200
    chains = [graph.way_to_a_large_library(file) for file in files]
    assert not [" imports ".join(chain) for chain in chains if chain]


SOURCES = {
    "ours/__init__.py": "",
    "ours/plain.py": "import json\nfrom ours.light import thing\n",
    "ours/light.py": "def thing():\n    import torch\n",
    "ours/typed.py": "if TYPE_CHECKING:\n    import torch\nelse:\n    import json\n",
    "ours/heavy/__init__.py": "from ours.heavy import core\n",
    "ours/heavy/core.py": "try:\n    from torch.nn import Linear\nexcept ImportError:\n    pass\n",
    "ours/heavy/small.py": "import json\n",
    "shared/helper.py": "from ours.heavy.small import json\n",
    "tests/beside.py": "import helper\n",
}


@pytest.mark.parametrize(
    ("source", "chain"),
    [
        ("import ours.plain, ours.typed\nfrom ours import light\n", []),
        ("def test():\n    import torch\n    import scapy.all\n", []),
        ("from scapy.layers import inet\n", ["scapy"]),
        ('torch = pytest.importorskip("torch")\n', ["torch"]),
        ("class TestIt:\n    with x:\n        import matplotlib as mpl\n", ["matplotlib"]),
        (
            "from ours.heavy.small import json\n",
            ["ours/heavy/__init__.py", "ours/heavy/core.py", "torch"],
        ),
        ("from ours.heavy import core\n", ["ours/heavy/core.py", "torch"]),
        (
            "import beside\n",
            ["tests/beside.py", "shared/helper.py", "ours/heavy/__init__.py",
             "ours/heavy/core.py", "torch"],
        ),
    ],
)  # fmt: skip
def test_a_way_to_a_large_library_is_found(tmp_path, source, chain):
    for name, text in {**SOURCES, "tests/test_it.py": source}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = ImportGraph(tmp_path, ["shared"]).way_to_a_large_library("tests/test_it.py")
    assert found == (["tests/test_it.py", *chain] if chain else [])


def test_modules_of_unit_tests_have_names_of_their_own():
    """Their folders are no packages: two of one name cannot be collected together."""
    places = {}
    for path in (REPO / "tests" / "unit").rglob("*.py"):
        if path.name not in ("__init__.py", "conftest.py"):
            places.setdefault(path.name, []).append(str(path.relative_to(REPO)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
