"""Cuts the output of a process into whole lines, for a prefix. Pure."""

from __future__ import annotations

LONGEST = 1 << 16
"""A longer line is cut."""


class Lines:
    """One stream. A carriage return ends a line, too, as progress bars use it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """All lines that are whole by now, each with its end."""
        found = (self._rest + data).splitlines(keepends=True)
        # Of a carriage return at the end it is not known whether a new line belongs to it.
        self._rest = found.pop() if found and not found[-1].endswith(b"\n") else b""
        while len(self._rest) > LONGEST:
            found.append(self._rest[:LONGEST] + b"\n")
            self._rest = self._rest[LONGEST:]
        return found

    def end(self) -> list[bytes]:
        """What is left, at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [rest if rest.endswith(b"\r") else rest + b"\n"] if rest else []
