"""What a script imports, as far as it says so itself; it is read, and not run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

_MODULE = "fabric_train.frameworks.transparent"
_MOST = 4 << 20
OURS = "fabric_train"
_WITH_LOOPS = ("transformers", "lightning", "pytorch_lightning")
"""Have training loops of their own, which are taken over."""
_WITHOUT = ("accelerate", "deepspeed")
"""Serve a loop that is the script's."""


class RefusedScriptError(Exception):
    """The script cannot be run as it is. The text says why."""


def text_of(script: str) -> str:
    """Its text. Raises ``RefusedScriptError``, ``OSError``."""
    with Path(script).open("rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise RefusedScriptError(f"{script}: more than {_MOST} bytes are no script")
    return data.decode("utf-8", "replace")


def check_script(name: str, text: str) -> None:
    """Raises ``RefusedScriptError`` for a script that `--transparent` cannot be for."""
    try:
        imported = imports_of(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RefusedScriptError(f"{name}: {error}") from None
    if OURS in imported:
        raise RefusedScriptError(
            f"{name} imports fabric_train: what it says itself and --transparent exclude each other"
        )
    for theirs in _WITHOUT:
        if theirs in imported and not imported & {*_WITH_LOOPS}:
            raise RefusedScriptError(
                f"{name} imports {theirs}, and neither transformers nor Lightning: its loop is its "
                "own, and nobody else knows where a step of it ends. Add the lines of "
                "fabric_train to it, without --transparent"
            )


def imports_of(text: str) -> set[str]:
    """Names of the top packages that ``text`` imports anywhere. Raises ``SyntaxError``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def transparent_python(script: str, args: Sequence[str]) -> list[str]:
    """Command line of one process that runs ``script`` by ``transparent``.

    Raises ``RefusedScriptError``, ``OSError``.
    """
    check_script(script, text_of(script))
    return [sys.executable, "-m", _MODULE, script, *args]
