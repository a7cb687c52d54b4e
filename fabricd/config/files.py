"""One configuration out of several files: ``fabricd.toml``, then ``conf.d/*.toml`` beside it.

Later files win. Tables merge key by key; entries of ``[[links]]`` and ``[[peers]]`` merge with the
entry of an earlier file that has the same name (``netdev``, ``host``) or are appended; anything
else is replaced. Each value remembers its file and line, for the messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telemetry.service.toml_lines import Path as Key
from telemetry.service.toml_lines import key_lines, line_of

DIRECTORY = "conf.d"
_NAMES: dict[Key, str] = {("links",): "netdev", ("peers",): "host"}


def override_files(main: Path) -> list[Path]:
    """The override files of a main file, in the order in which they count.

    By name, as bytes; names that begin with a dot or end otherwise than ``.toml`` are editors' and
    packagers' leavings.

    Raises:
        OSError: the directory is there but cannot be listed.
    """
    directory = main.parent / DIRECTORY
    try:
        found = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    wanted = [p for p in found if p.suffix == ".toml" and not p.name.startswith(".")]
    return sorted(wanted, key=lambda p: p.name.encode(errors="surrogateescape"))


@dataclass(slots=True)
class Layers:
    """The merged document.

    Attributes:
        raw: as `tomllib` would give it.
        files: those laid in, first to last.
    """

    raw: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    _origins: dict[Key, tuple[str, int]] = field(default_factory=dict)

    def lay(self, file: str, raw: dict[str, Any], text: str) -> None:
        """Lay the next file over what is there; ``raw`` is ``text`` as `tomllib` reads it."""
        self.files.append(file)
        self._table(self.raw, raw, (), (), _Where(file, key_lines(text)))

    def origin(self, path: Key) -> tuple[str, int]:
        """File and line of a key, or of the nearest thing around it."""
        while path:
            if path in self._origins:
                return self._origins[path]
            path = path[:-1]
        return (self.files[0] if self.files else "", 1)

    def _table(
        self, base: dict[str, Any], over: dict[str, Any], at: Key, source: Key, where: _Where
    ) -> None:
        for key, value in over.items():
            here, there = (*at, key), (*source, key)
            old = base.get(key)
            if isinstance(old, dict) and isinstance(value, dict):
                self._origins[here] = where.of(there)
                self._table(old, value, here, there, where)
            elif here in _NAMES and _are_tables(old) and _are_tables(value):
                self._entries(base[key], value, here, there, where)
            else:
                self._replace(base, key, value, here, there, where)

    def _entries(
        self, base: list[Any], over: list[Any], at: Key, source: Key, where: _Where
    ) -> None:
        name = _NAMES[at]
        earlier = {e[name]: i for i, e in enumerate(base) if isinstance(e.get(name), str)}
        for number, entry in enumerate(over):
            there = (*source, number)
            index = earlier.get(entry.get(name)) if isinstance(entry.get(name), str) else None
            if index is None:
                base.append(None)
                self._replace(base, len(base) - 1, entry, (*at, len(base) - 1), there, where)
            else:
                self._origins[(*at, index)] = where.of(there)
                self._table(base[index], entry, (*at, index), there, where)

    def _replace(
        self,
        base: Any,  # noqa: ANN401 - a table or a list
        key: str | int,
        value: Any,  # noqa: ANN401
        at: Key,
        source: Key,
        where: _Where,
    ) -> None:
        for known in [k for k in self._origins if k[: len(at)] == at]:
            del self._origins[known]
        base[key] = _copied(value)
        for path in _paths(value):
            self._origins[(*at, *path)] = where.of((*source, *path))


@dataclass(frozen=True, slots=True)
class _Where:
    file: str
    lines: dict[Key, int]

    def of(self, path: Key) -> tuple[str, int]:
        return self.file, line_of(self.lines, path)


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _copied(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _paths(value: object) -> Iterable[Key]:
    """The value itself and everything in it."""
    yield ()
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        for path in _paths(item):
            yield (key, *path)
