"""TOML of people, whatever they wrote."""

from __future__ import annotations

import tomllib
from typing import Any

DEEPEST = 64
"""Values within values. What reads a document goes down by recursion, as the library does."""


def read_toml(text: str) -> dict[str, Any]:
    """``text`` as a document. Raises ``tomllib.TOMLDecodeError``, also for what is nested too deep.

    Thousands of brackets end the library by another error, and with it a daemon that looks at its
    file again.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(text) from None
    if _is_deep(document):
        raise _too_deep(text)
    return document


def _is_deep(document: dict[str, Any]) -> bool:
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def _too_deep(text: str) -> tomllib.TOMLDecodeError:
    """Names the first of the lines with the most opening brackets."""
    lines = text.splitlines() or [""]
    line = max(range(len(lines)), key=lambda at: lines[at].count("[") + lines[at].count("{"))
    return tomllib.TOMLDecodeError(
        f"values within values, more than {DEEPEST} deep (at line {line + 1}, column 1)"
    )
