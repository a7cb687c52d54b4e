"""The list of tests that were flaky, and whose cause was found: ``tests/known_flaky.toml``.

A test on the list has failed beside others and passed alone, and its cause was mended. If that
happens again, a cause is left: `lab.testrun.retry_alone` makes the run red. The file has one
``[[test]]`` for each of them::

    [[test]]
    id = "tests/lab/test_x.py::test_y"   # without [...]: with all its parameters
    first_seen = 2026-11-28
    cause = "Why it failed."
    mended = "What changed."
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from pathlib import Path

FILE = Path("tests/known_flaky.toml")
"""From the root of the checkout."""


class KnownFlakyError(ValueError):
    """The list cannot be used. The text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class KnownFlaky:
    """One test of the list."""

    id: str
    """Node id of pytest; without ``[...]`` it covers all parameters of the test."""
    first_seen: date
    cause: str
    mended: str

    def covers(self, test: str) -> bool:
        """Whether the test with this node id is meant."""
        return test in (self.id, self.id + test[len(_plain(test)) :])


def parse(text: str) -> list[KnownFlaky]:
    """The tests of a list.

    Raises:
        KnownFlakyError: it is no TOML, or a row is incomplete, wrong or there twice.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KnownFlakyError(str(error)) from None
    rows = document.pop("test", [])
    if document:
        raise KnownFlakyError(f"unknown key {next(iter(document))!r}: only [[test]] is known")
    if not isinstance(rows, list):
        raise KnownFlakyError("'test' is no list: write [[test]]")
    tests = [_row(row, f"test {number}") for number, row in enumerate(rows, start=1)]
    for number, test in enumerate(tests):
        for other in tests[:number]:
            if other.covers(test.id) or test.covers(other.id):
                raise KnownFlakyError(f"{test.id} is listed twice, also as {other.id}")
    return tests


def load(path: Path = FILE) -> list[KnownFlaky]:
    """The tests of the list in a file.

    Raises:
        KnownFlakyError: as `parse`, or the file is not readable.
    """
    try:
        return parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise KnownFlakyError(f"{path}: {error}") from None
    except KnownFlakyError as error:
        raise KnownFlakyError(f"{path}: {error}") from None


def find(tests: Sequence[KnownFlaky], test: str) -> KnownFlaky | None:
    """The row that covers the test with this node id."""
    return next((row for row in tests if row.covers(test)), None)


def missing(tests: Sequence[KnownFlaky], root: Path) -> list[str]:
    """Ids whose file or function is not in the checkout at ``root``. No test file is imported."""
    return [test.id for test in tests if not _is_in_tree(_plain(test.id), root)]


def _plain(test: str) -> str:
    """A node id without its parameters."""
    return test.partition("[")[0]


def _row(row: object, where: str) -> KnownFlaky:
    names = [field.name for field in fields(KnownFlaky)]
    if not isinstance(row, dict):
        raise KnownFlakyError(f"{where} is no table: write [[test]]")
    if unknown := [name for name in row if name not in names]:
        raise KnownFlakyError(f"{where}: unknown key {unknown[0]!r}")
    for name in names:
        if name not in row:
            raise KnownFlakyError(f"{where}: {name!r} is missing")
        value = row[name]
        if name == "first_seen":
            if not isinstance(value, date) or isinstance(value, datetime):
                raise KnownFlakyError(f"{where}: first_seen is a date, as 2026-11-28")
        elif not isinstance(value, str) or not value.strip():
            raise KnownFlakyError(f"{where}: {name!r} is a text, and not empty")
    if "::" not in row["id"]:
        raise KnownFlakyError(f"{where}: {row['id']!r} is no test: write FILE::FUNCTION")
    return KnownFlaky(**row)


def _is_in_tree(test: str, root: Path) -> bool:
    file, _, function = test.partition("::")
    try:
        tree = ast.parse((root / file).read_text())
    except (OSError, SyntaxError):
        return False
    return function in _functions(tree.body)


def _functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Names of functions, and of methods with the class before them."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}::")
