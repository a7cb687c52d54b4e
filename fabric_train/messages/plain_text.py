"""What is said to people on standard error: other hosts' words do not act on a terminal."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line; what is not printable is replaced by ``?``."""
    line = "".join(one if one.isprintable() else "?" for one in text)
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
