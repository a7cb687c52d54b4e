"""Files by which an operator of this management host says what may be done: mode and stop."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from compute.core import Mode
from telemetry.service import durable

MODES: tuple[Mode, ...] = get_args(Mode)
MAX_BYTES = 4096


def read_mode(path: Path) -> tuple[Mode, str]:
    """The promoted mode, and why it is ``observe`` where the file cannot be used."""
    try:
        content = durable.read(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        return "observe", f"{path}: {error}"
    if content is None:
        return "observe", ""
    text = content.decode(errors="replace").strip()
    for mode in MODES:
        if text == mode:
            return mode, ""
    return "observe", f'{path}: "{text[:32]}"; allowed: {", ".join(MODES)}'


def write_mode(path: Path, mode: Mode) -> None:
    """Promote or demote, durably. Raises ``OSError``."""
    durable.replace_text(path, f"{mode}\n")


def read_stop(path: Path) -> tuple[bool, str]:
    """Whether the stop file is there, and its first line as the reason.

    A file that cannot be looked at counts as there: somebody wanted to say something.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False, ""
    except OSError as error:
        return True, f"{path}: {error.strerror}"
    try:
        content = durable.read(path, MAX_BYTES) or b""
    except (OSError, ValueError):
        content = b""
    lines = content.decode(errors="replace").splitlines()
    return True, (lines[0].strip()[:500] if lines else "") or f"{path} is there"


def write_stop(path: Path, reason: str) -> None:
    """Stop this fabric-compute. Raises ``OSError``."""
    durable.replace_text(path, f"{reason or 'stopped by an operator'}\n")
