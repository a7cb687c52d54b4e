"""Tells a full file system from other errors of a checkpoint.

torch.save says of it only that a position in its archive is not the expected one.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE = 1 << 20  # bytes


class CheckpointFullError(OSError):
    """There is no room for a checkpoint. The text says where, and how much is missing and free."""


def write_probe(directory: Path) -> None:
    """Write some bytes there, and take them away. Raises ``OSError``."""
    path = directory / f"probe-{secrets.token_hex(8)}"
    try:
        with path.open("wb", buffering=0) as file:
            file.write(bytes(_PROBE))
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)


def full(
    directory: Path, staging: Path | None, error: BaseException,
    probe: Callable[[Path], None] = write_probe,
) -> CheckpointFullError | None:  # fmt: skip
    """What to raise in place of ``error``, with which writing into ``staging`` has ended.

    ``staging`` None: it could not be made. None: there is room, so the error has another cause.
    """
    if isinstance(error, CheckpointFullError):
        return error
    code = error.errno if isinstance(error, OSError) else None
    if code not in _FULL and staging is not None:
        try:
            probe(staging)
        except OSError as refused:
            code = refused.errno
    if code not in _FULL:
        return None
    files = staging.rglob("*") if staging is not None else ()
    written = sum(path.stat().st_size for path in files if path.is_file())
    room = os.statvfs(directory)
    free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    quota = ", by its quota" * (code == errno.EDQUOT)
    return CheckpointFullError(
        code,
        f"no room for a checkpoint{quota}: {_in_words(written)} of it were written, "
        f"{_in_words(free)} of {_in_words(size)} are free. It is not published; those before it, "
        "and the job, are as they were",
        str(directory),
    )


def _in_words(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
