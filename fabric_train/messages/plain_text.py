"""What is said to people on standard error: other hosts' words do not act on a terminal."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line; what is not printable is replaced by ``?``."""
    sys.stderr.write(f"{_plain(text)}\n")
    sys.stderr.flush()


def rewrite(text: str) -> None:
    """Write it over what `rewrite` wrote last; the next line of anybody begins behind it."""
    sys.stderr.write(f"\r\x1b[K{_plain(text)}\r")
    sys.stderr.flush()


def _plain(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)
