"""Small files that must be whole and must outlive a power cut: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import structlog


def replace_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file's content as a whole, durably.

    Raises:
        OSError: not stored; the old content stands. Not raised for a directory that cannot be
            synced: the new content is in force by then, and only a power cut may undo it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        # Whoever is told "not stored" goes on with what the file no longer says.
        structlog.get_logger().error("directory not synced", path=str(path), error=error.strerror)


def read(path: Path, most: int) -> bytes | None:
    """A small file; None: there is none.

    Raises:
        ValueError: it is longer than ``most`` bytes.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        return None
    if len(data) > most:
        raise ValueError("too long")
    return data
