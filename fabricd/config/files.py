"""One configuration out of several files: ``fabricd.toml``, ``conf.d/*.toml``, ``peers_file``.

Later files win. Tables merge key by key; entries of ``[[links]]`` and ``[[peers]]`` merge with the
entry of an earlier file that has the same name (``netdev``, ``host``) or are appended; anything
else is replaced. The entries of ``peers_file`` are appended and merge with none.

Each value remembers its file and line, for the messages. Lines are counted when a message needs
them: a good configuration needs none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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


class Origin(NamedTuple):
    """Where a key stands.

    Attributes:
        file: its name.
        line: from 1.
        key: the path of the key in the merged document; for ``peers_file``, in that file.
    """

    file: str
    line: int
    key: Key


class _Mark(NamedTuple):
    layer: int
    source: Key
    """The path in the file of that layer."""


@dataclass(slots=True)
class _Layer:
    file: str
    text: str
    shared: bool = False
    lines: dict[Key, int] | None = None

    def has(self, path: Key) -> bool:
        if self.lines is None:
            self.lines = key_lines(self.text)
        return path in self.lines

    def line(self, path: Key) -> int:
        return line_of(self.lines or {}, path)


@dataclass(slots=True)
class Layers:
    """The merged document.

    Attributes:
        raw: as `tomllib` would give it.
    """

    raw: dict[str, Any] = field(default_factory=dict)
    _layers: list[_Layer] = field(default_factory=list)
    _whole: dict[Key, _Mark] = field(default_factory=dict)
    """Merged path → the layer that set this value and all that is in it."""
    _merged: dict[Key, _Mark] = field(default_factory=dict)
    """Merged path → the last layer that added something to this table."""

    @property
    def files(self) -> list[str]:
        """The files laid in, first to last."""
        return [layer.file for layer in self._layers]

    def lay(self, file: str, raw: dict[str, Any], text: str) -> None:
        """Lay the next file over what is there; ``raw`` is ``text`` as `tomllib` reads it.

        ``raw`` becomes part of the merged document.
        """
        self._layers.append(_Layer(file, text))
        self._table(self.raw, raw, (), ())

    def append_peers(self, file: str, entries: list[Any], text: str) -> None:
        """Append the ``[[peers]]`` of ``peers_file``, whose text is ``text``."""
        self._layers.append(_Layer(file, text, shared=True))
        peers = self.raw.setdefault("peers", [])
        if not isinstance(peers, list):
            return  # Refused for what it is.
        self._merged["peers",] = self._mark(("peers",))
        for number, entry in enumerate(entries):
            self._whole["peers", len(peers)] = self._mark(("peers", number))
            peers.append(entry)

    def origin(self, path: Key) -> Origin:
        """File and line of a key, or of the nearest thing around it."""
        at = path
        while at:
            mark = self._owner(at)
            layer = self._layers[mark.layer]
            if layer.has(mark.source):
                shown = (*mark.source, *path[len(at) :]) if layer.shared else path
                return Origin(layer.file, layer.line(mark.source), shown)
            at = at[:-1]
        return Origin(self._layers[0].file if self._layers else "", 1, path)

    def _mark(self, source: Key) -> _Mark:
        return _Mark(len(self._layers) - 1, source)

    def _owner(self, path: Key) -> _Mark:
        """The last layer that set this value, or that merged something into this table."""
        best = _Mark(0, path)
        for size in range(1, len(path) + 1):
            mark = self._whole.get(path[:size])
            if mark is not None and mark.layer >= best.layer:
                best = _Mark(mark.layer, (*mark.source, *path[size:]))
        merged = self._merged.get(path)
        return merged if merged is not None and merged.layer > best.layer else best

    def _table(self, base: dict[str, Any], over: dict[str, Any], at: Key, source: Key) -> None:
        for key, value in over.items():
            here, there = (*at, key), (*source, key)
            old = base.get(key)
            if isinstance(old, dict) and isinstance(value, dict):
                self._merged[here] = self._mark(there)
                self._table(old, value, here, there)
            elif here in _NAMES and _are_tables(old) and _are_tables(value):
                self._entries(base[key], value, here, there)
            else:
                base[key] = value
                self._whole[here] = self._mark(there)

    def _entries(self, base: list[Any], over: list[Any], at: Key, source: Key) -> None:
        name = _NAMES[at]
        earlier = {e[name]: i for i, e in enumerate(base) if isinstance(e.get(name), str)}
        for number, entry in enumerate(over):
            there = (*source, number)
            index = earlier.get(entry.get(name)) if isinstance(entry.get(name), str) else None
            if index is None:
                self._whole[(*at, len(base))] = self._mark(there)
                base.append(entry)
            else:
                self._merged[(*at, index)] = self._mark(there)
                self._table(base[index], entry, (*at, index), there)


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
