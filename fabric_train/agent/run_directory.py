"""``run_directory``: the private directory of a running fabric-run, for its Unix socket.

A fabric-run that is killed leaves its directory behind; the next one of the same user removes it.
Each holds a lock on its own (``flock`` on the directory, which the kernel ends with the process, in
whatever PID namespace it lived), so only directories of ended processes are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "fabric-agent-"
SOCKET = "agent.sock"
"""All that a fabric-run keeps there."""


@contextlib.contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """Make a directory below ``parent`` (default: where temporary files go), and remove it after.

    Raises:
        OSError: it cannot be made.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_stale(parent)
    while True:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent)
        with made as name, _opened(name) as lock:
            if lock is None:  # Another fabric-run took it for a stale one before it was locked.
                continue
            yield Path(name)
            return


def remove_stale(parent: Path) -> list[str]:
    """Remove directories of this user's ended fabric-runs below ``parent``; their names.

    A directory that is a link, another user's, locked, or holds more than the socket stays.
    """
    removed = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
        for name in names:
            with contextlib.suppress(OSError):
                _remove(parent / name)
                removed.append(name)
    return removed


def _remove(path: Path) -> None:
    """Raises ``OSError``: it stays."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path}: not made by a fabric-run of this user")
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=directory)
        path.rmdir()
    finally:
        os.close(directory)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[int | None]:
    """Hold the lock on a directory; None: it is not there any more."""
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield directory if os.fstat(directory).st_nlink else None
    finally:
        os.close(directory)
