"""Tables of ``docs/reference`` that come from the code: keys of both configurations, and commands.

What a key means is written by people, in the last column of its row: it stays when the table is
made anew. All other columns are the code's.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import compute.cli
import compute.config
import fabricd.cli
from fabricd.config.tables import Config
from lab.docs.pages import DOCS

CONFIGURATION = DOCS / "reference" / "configuration.md"
COMPUTE = DOCS / "reference" / "compute.md"
COMMANDS = DOCS / "reference" / "commands.md"
TOP = "Top level"
BEGIN, END = "<!-- generated: python -m lab.docs -->", "<!-- end -->"
_HEAD = "| key | default | allowed | meaning |\n|---|---|---|---|\n"


class Key(NamedTuple):
    """One key of a table of the configuration."""

    name: str
    default: str
    allowed: str


def tables(model: type[BaseModel] = Config, path: str = "") -> Iterator[tuple[str, list[Key]]]:
    """Each table of a configuration as ``[name]`` or ``[[name]]``, with its plain keys.

    Keys outside of all tables are those of `TOP`.
    """
    keys: list[Key] = []
    below: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        inner, many = _model(field.annotation)
        if inner is None:
            keys.append(Key(name, _default(name, field), _allowed(field)))
        elif many or not path:
            full = f"{path}.{name}" if path else name
            below.append((f"[[{full}]]" if many else f"[{full}]", inner))
    if path or keys:
        yield path or TOP, keys
    for shown, inner in below:
        bare = shown.strip("[]")
        for found, inner_keys in tables(inner, bare):
            yield (shown if found == bare else found), inner_keys


def _model(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """The table that a type holds, and whether there may be several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    many = typing.get_origin(annotation) is tuple
    for part in typing.get_args(annotation):
        inner, inner_many = _model(part)
        if inner is not None:
            return inner, many or inner_many
    return None, False


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "host name" if name == "name" else "none"
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _allowed(field: FieldInfo) -> str:
    text = field.description or _inner_description(field.annotation)
    if not text and field.annotation is not None:
        kinds: dict[object, str] = {bool: "true or false", str: "text"}
        text = kinds.get(field.annotation, "")
    return text.replace("|", "\\|")


def _inner_description(annotation: object) -> str:
    for part in typing.get_args(annotation):
        for note in getattr(part, "__metadata__", ()):
            if isinstance(note, FieldInfo) and note.description:
                return note.description
        if text := _inner_description(part):
            return text
    return ""


def configuration(page: str) -> str:
    """The page with the tables of fabricd.toml as the code has them."""
    return _keys(page, Config, "##")


def compute_keys(page: str) -> str:
    """The page with the tables of compute.toml as the code has them."""
    return _keys(page, compute.config.Config, "###")


def _keys(page: str, model: type[BaseModel], level: str) -> str:
    """Tables of all keys of ``model``; meanings are taken from the page."""
    meanings: dict[tuple[str, str], str] = {}
    table = ""
    for line in page.splitlines():
        if found := re.match(r"#+ `?(.+?)`?$", line):
            table = found[1]
        elif found := re.match(r"\| `(\w+)` \|.*[^\\]\| ?(.*?) ?\|$", line):
            meanings[table, found[1]] = found[2]
    parts = []
    for name, keys in tables(model):
        rows = [
            f"| `{key}` | {default} | {allowed} | {meanings.get((name, key), '')} |"
            for key, default, allowed in keys
        ]
        shown = name if name == TOP else f"`{name}`"
        parts.append(f"{level} {shown}\n\n{_HEAD}" + "\n".join(rows) + "\n")
    return _put(page, "\n".join(parts))


def commands(page: str) -> str:
    """The page with the commands of fabricctl and fabric-compute, and their options."""
    parts = []
    for program, app in (("fabricctl", fabricd.cli.app), ("fabric-compute", compute.cli.app)):
        rows = [
            f"| `{' '.join([program, *words, *_arguments(command)])}` | {_options(command)} | "
            f"{_first(command)} |"
            for words, command in _walk(typer.main.get_command(app), [])
        ]
        head = "| command | options | what it does |\n|---|---|---|\n"
        parts.append(f"## {program}\n\n{head}" + "\n".join(rows) + "\n")
    return _put(page, "\n".join(parts))


def _walk(command: object, words: list[str]) -> Iterator[tuple[list[str], object]]:
    below = getattr(command, "commands", {})
    if not below:
        yield words, command
    for name in sorted(below):
        yield from _walk(below[name], [*words, name])


def _params(command: object, kind: str) -> list[Any]:
    return [p for p in getattr(command, "params", []) if p.param_type_name == kind]


def _arguments(command: object) -> list[str]:
    found = _params(command, "argument")
    names = [(p.metavar or p.name or "").strip("[]").upper() for p in found]
    names = [name.replace("|", "\\|") for name in names]
    return [n if p.required else f"[{n}]" for n, p in zip(names, found, strict=True)]


def _options(command: object) -> str:
    found = _params(command, "option")
    names = [max(p.opts, key=len) for p in found if p.name != "help"]
    return ", ".join(f"`{name}`" for name in names)


def _first(command: object) -> str:
    text = (getattr(command, "help", "") or "").strip().split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def _put(page: str, text: str) -> str:
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


PAGES: tuple[tuple[Path, Callable[[str], str]], ...] = (
    (CONFIGURATION, configuration),
    (COMPUTE, compute_keys),
    (COMMANDS, commands),
)


def main() -> None:
    """Rewrite all of `PAGES`."""
    for path, make in PAGES:
        path.write_text(make(path.read_text()))
