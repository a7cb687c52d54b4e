"""docs/design/attacks.md: each attack has tests, and they are there."""

import ast
import re
from functools import cache

import pytest

from lab.docs.pages import DOCS, REPO

PAGE = DOCS / "design" / "attacks.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if re.match(r"\| (S?\d+[a-z]?|–) \|", line)
]
KNOWN = [f"S1{part}" for part in "abcdegh"] + [f"S{n}" for n in range(2, 12) if n != 5]
KNOWN += ["S5a", "S5b", *map(str, range(1, 18))]


@cache
def functions_in(path):
    tree = ast.parse((REPO / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_each_attack_that_is_known_has_a_row():
    assert {row[0].strip("| ") for row in ROWS} - {"–"} == set(KNOWN)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1][:40]}")
def test_its_tests_are_there(row):
    assert len(row) == 5
    named = re.findall(r"`(tests/[^`]+\.(?:py|cpp))(?:::(\w+))?`", row[4]) + re.findall(
        r"`([\w/]+/tests/[^`]+\.cpp)()`", row[4]
    )
    assert named, "an attack without a test"
    for path, name in named:
        assert (REPO / path).is_file(), path
        assert not name or name in functions_in(path), name
