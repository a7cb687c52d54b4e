"""Which test files read a clock: ``python -m lab.testrun.clock_readers FOLDER…``, a path a line.

The tier `booted` runs only these files (lab/test.sh): the time of a pure core is a parameter, so
the machine's uptime cannot change its result. A file counts if it imports `time` or `asyncio` or
defines a coroutine, or if a module of ours that it imports directly does. Indirect imports do not
count: with them nearly every file would. The nightly step `booted` runs all files.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SHARED = Path("tests/unit/shared")
CLOCKS = {"time", "asyncio"}


@dataclass(frozen=True, slots=True)
class Source:
    """What one file says of itself."""

    imports: frozenset[str]
    """Modules, wherever they are imported; ``from a import b`` gives a and a.b."""
    reads_clock: bool


@cache
def read(path: Path) -> Source:
    """A file, parsed once.

    Raises:
        SyntaxError: it is no Python.
    """
    imports: set[str] = set()
    coroutines = False
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            imports.add(node.module)
            imports |= {f"{node.module}.{alias.name}" for alias in node.names}
        coroutines = coroutines or isinstance(node, ast.AsyncFunctionDef)
    return Source(frozenset(imports), coroutines or bool(imports & CLOCKS))


def imported_files(path: Path, root: Path) -> Iterator[Path]:
    """Files of the checkout ``root`` that ``path`` imports itself."""
    for name in read(path).imports:
        relative = Path(*name.split("."))
        for base in (root, root / SHARED, path.parent):
            for file in (base / relative.with_suffix(".py"), base / relative / "__init__.py"):
                if file.is_file():
                    yield file


def clock_readers(folder: Path, root: Path = REPO) -> list[Path]:
    """The test files below ``folder`` that read a clock, sorted.

    Raises:
        SyntaxError: a file is no Python.
    """
    return [
        path
        for path in sorted(folder.rglob("test_*.py"))
        if read(path).reads_clock
        or any(read(file).reads_clock for file in imported_files(path, root))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the files; exit status 1: there are none, so something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m lab.testrun.clock_readers")
    parser.add_argument("folders", type=Path, nargs="+")
    folders: list[Path] = parser.parse_args(argv).folders
    found = [path for folder in folders for path in clock_readers(folder)]
    print("\n".join(map(str, found)))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
