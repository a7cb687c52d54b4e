"""Where in a TOML text does each key stand? A key → line index for error messages.

`tomllib` gives values without positions. This scans a text that `tomllib` has already accepted, so
it need not judge, only follow: table headers, dotted and quoted keys, the four kinds of strings,
arrays and inline tables (TOML 1.0). Its work grows in proportion to the length of the text.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from typing import Any

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^\s,\]}#]+(?: \d[^\s,\]}#]*)?")
_BLANK = re.compile(r"(?:\s+|#[^\n]*)*")
_NEWLINE = re.compile(r"\n")
_ENDS = {
    mark: re.compile(
        rf"(?:\\.|[^\\])*?(?={mark}|\Z)" if mark[0] == '"' else rf".*?(?={mark}|\Z)", re.DOTALL
    )
    for mark in ('"', "'", '"""', "'''")
}
"""Opening mark of a string → all that stands before the closing one."""


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every key, table and array element of a valid TOML document.

    Args:
        text: accepted by `tomllib.loads`; otherwise the answer is undefined (but it ends).

    Returns:
        ``("links", 0, "netdev") → 12``. Tables count from their header's line.
    """
    return _Scanner(text).run()


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of a path, or of its nearest enclosing thing; 1 when there is none."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1


def _unescaped(quote: str, key: str) -> str:
    """A quoted key as `tomllib` names it."""
    if quote == "'" or "\\" not in key:
        return key
    try:
        return str(tomllib.loads(f'key = "{key}"')["key"])
    except tomllib.TOMLDecodeError:
        return key


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.newlines = [match.start() for match in _NEWLINE.finditer(text)]
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.arrays: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank():
            before = self.at
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            if self.at == before:  # Not TOML after all: end rather than hang.
                break
        return self.lines

    def _line(self) -> int:
        return bisect_left(self.newlines, self.at) + 1

    def _note(self, path: Path) -> None:
        line = self._line()
        for size in range(len(path), 0, -1):
            if path[:size] in self.lines:
                return  # Whatever it is in was noted before it.
            self.lines[path[:size]] = line

    def _peek(self, size: int = 1) -> str:
        return self.text[self.at : self.at + size]

    def _skip_blank(self) -> bool:
        """Skip white space, newlines and comments; False at the end."""
        if match := _BLANK.match(self.text, self.at):
            self.at = match.end()
        return self.at < len(self.text)

    def _resolve(self, keys: list[str]) -> Path:
        """A header's keys as a path: arrays of tables stand for their last element."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self.arrays:
                path = (*path, self.arrays[path])
        return path

    def _header(self) -> Path:
        double = self._peek(2) == "[["
        self.at += 2 if double else 1
        keys = self._key()
        if double:
            parent = (*self._resolve(keys[:-1]), keys[-1])
            self.arrays[parent] = self.arrays.get(parent, -1) + 1
            table: Path = (*parent, self.arrays[parent])
        else:
            table = self._resolve(keys)
        self._note(table)
        self.at += 2 if double else 1
        return table

    def _key(self) -> list[str]:
        keys = []
        while True:
            self._skip_blank()
            if self._peek() in ('"', "'"):
                keys.append(_unescaped(self._peek(), self._string()))
            else:
                match = _BARE.match(self.text, self.at)
                if not match:
                    return keys
                keys.append(match.group())
                self.at = match.end()
            self._skip_blank()
            if self._peek() != ".":
                return keys
            self.at += 1

    def _pair(self, table: Path) -> None:
        self._skip_blank()
        start = self.at
        keys = self._key()
        end, self.at = self.at, start
        path: Path = (*table, *keys)
        for size in range(len(table) + 1, len(path) + 1):
            self._note(path[:size])
        self.at = end
        if self._peek() == "=":
            self.at += 1
            self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_blank()
        char = self._peek()
        if char in ('"', "'"):
            self._string()
        elif char == "[":
            self._sequence("]", path, self._element)
        elif char == "{":
            self._sequence("}", path, lambda where, _index: self._pair(where))
        elif match := _SCALAR.match(self.text, self.at):
            self.at = match.end()

    def _element(self, path: Path, index: int) -> None:
        self._note((*path, index))
        self._value((*path, index))

    def _sequence(self, closing: str, path: Path, item: Any) -> None:  # noqa: ANN401
        self.at += 1
        index = 0
        while self._skip_blank() and self._peek() != closing:
            before = self.at
            if self._peek() == ",":
                self.at += 1
                continue
            item(path, index)
            index += 1
            if self.at == before:
                break
        self.at += 1

    def _string(self) -> str:
        quote = self._peek()
        mark = quote * 3 if self._peek(3) == quote * 3 else quote
        self.at += len(mark)
        start = self.at
        match = _ENDS[mark].match(self.text, start)
        self.at = match.end() if match else len(self.text)
        value = self.text[start : self.at]
        self.at += len(mark)
        # Up to two quotes may stand before a multi-line string's end mark.
        while len(mark) == 3 and self._peek() == quote:
            self.at += 1
        return value
