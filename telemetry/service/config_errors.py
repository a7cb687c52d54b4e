"""What is wrong in a configuration file, where, and what would be allowed, in words.

A configuration is a tree of `Table`. `explain` translates pydantic's errors by the descriptions of
its fields. Each field that can be wrong has one.
"""

from __future__ import annotations

import re
import types
import typing
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

Path = tuple[str | int, ...]


class Table(BaseModel):
    """Keys that are not known are refused; values stay what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a configuration file."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return (
            f"{where}: {self.text}" if self.key == "(file)" else f"{where}: {self.key}: {self.text}"
        )


class ConfigError(Exception):
    """The configuration cannot be used. ``problems`` has all, in order of file and line."""

    def __init__(self, problems: list[Problem]) -> None:
        files = list(dict.fromkeys(p.file for p in problems))
        self.problems = sorted(problems, key=lambda p: (files.index(p.file), p.line, p.key))
        super().__init__("\n".join(str(p) for p in self.problems))


def syntax_problem(message: str, text: str, file: str) -> Problem:
    """``message`` of a `tomllib.TOMLDecodeError` about ``text``."""
    match = re.search(r"\(at line (\d+), column \d+\)", message)
    line = int(match.group(1)) if match else text.count("\n") + 1
    what = re.sub(r" \(at .*\)$", "", message)
    return Problem(file, line, "(syntax)", f"{what}; allowed: TOML 1.0")


def dotted(path: Path) -> str:
    """A path as it is written: ``links[0].rail``."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f"{'.' if out else ''}{part}"
    return out or "(file)"


def explain(item: Any, root: type[Table], reference: str) -> tuple[Path, str]:  # noqa: ANN401
    """One error of pydantic (a dict) as (path, text that says what is allowed).

    ``root`` is the whole configuration. ``reference`` is the page that lists all keys.
    """
    path = _real_path(root, tuple(item["loc"]))
    if item["type"] == "extra_forbidden":
        keys = ", ".join(_fields(root, path[:-1]))
        return path, f"unknown key; allowed here: {keys}"
    allowed = _allowed(root, path) or f"see {reference}"
    if item["type"] == "missing":
        return path, f"missing; needed: {allowed}"
    return path, f"got {_short(item['input'])}; allowed: {allowed}"


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else text[:57] + "..."


def _real_path(root: type[Table], loc: Path) -> Path:
    """Pydantic's location without the names of union members."""
    out: Path = ()
    for part in loc:
        value = _without_indices(out)
        if isinstance(part, str) and value and _table(root, value) is None:
            break  # Below a plain value, or one of a list of them, only union tags follow.
        out = (*out, part)
    return out


def _without_indices(path: Path) -> Path:
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _table(root: type[Table], path: Path) -> type[Table] | None:
    """The table class at a path; None for a plain value."""
    table: type[Table] | None = root
    for part in path:
        if table is None:
            return None
        if isinstance(part, int):
            continue
        field = table.model_fields.get(part)
        table = _table_in(field.annotation) if field else None
    return table


def _table_in(annotation: object) -> type[Table] | None:
    """The table class that an annotation is, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    inner = typing.get_args(annotation)
    return next((found for one in inner if (found := _table_in(one)) is not None), None)


def _fields(root: type[Table], path: Path) -> list[str]:
    table = _table(root, path)
    return list(table.model_fields) if table else []


def _allowed(root: type[Table], path: Path) -> str:
    if path and isinstance(path[-1], int) and _table(root, path) is not None:
        return f"a table with the keys {', '.join(_fields(root, path))}"
    path = _without_indices(path)  # of an element of a list of plain values
    owner, key = _table(root, path[:-1]), path[-1] if path else ""
    if owner is None or key not in owner.model_fields:
        return ""
    field = owner.model_fields[str(key)]
    if text := field.description or _described(field.annotation):
        return text
    if _table(root, path) is not None:
        return f"a table with the keys {', '.join(_fields(root, path))}"
    return ""


def _described(annotation: object) -> str:
    """The description of the one member of a union that has one: ``Address | None``."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return ""
    for member in typing.get_args(annotation):
        for said in typing.get_args(member)[1:]:
            if isinstance(said, FieldInfo) and said.description:
                return said.description
    return ""
