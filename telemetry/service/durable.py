"""Small files that must be whole and must outlive a power cut: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from pathlib import Path

import structlog


def create(path: Path, mode: int) -> int:
    """Create a file that no other user can have prepared, open it to write, return its descriptor.

    The file never has more rights than ``mode``, not even between creation and the first byte: a
    descriptor that another user opens in that moment would read all that is written later. What
    lies there under that name, a link included, is removed first and never written through.

    Args:
        path: of the temporary file; a later rename gives it its name.
        mode: its permissions, whatever the umask.

    Raises:
        OSError: not created; FileExistsError: somebody else made one of that name meanwhile.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)  # A umask made it narrower at most.
    except OSError:
        os.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return fd


def open_lock(path: Path) -> int:
    """Open a file for flock(2), create it where there is none; returns its descriptor.

    Its mode is 0600: whoever can open a file, if only to read, can also lock it.

    Raises:
        OSError: cannot be opened; a symbolic link is refused.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)  # An earlier version made it 0644.
    except OSError:
        os.close(fd)
        raise
    return fd


def replace_text(path: Path, text: str, mode: int = 0o644, *, sync: bool = True) -> None:
    """Replace a file's content as a whole.

    Args:
        path: of the file.
        text: its new content.
        mode: its permissions, from its first moment on.
        sync: survive a power cut, too.

    Raises:
        OSError: not stored; the old content stands. Not raised for a directory that cannot be
            synced: the new content is in force by then, and only a power cut may undo it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = create(temporary, mode)
    try:
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if sync:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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


def require(path: Path, most: int) -> bytes:
    """A small file that has to be there.

    Raises:
        OSError: it is not there, cannot be read, or is longer than ``most`` bytes (EFBIG).
    """
    try:
        data = read(path, most)
    except ValueError:
        raise OSError(errno.EFBIG, f"longer than {most} bytes", str(path)) from None
    if data is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return data


def require_text(path: Path, most: int, encoding: str = "utf-8") -> str:
    """Like `require`, as a text; ends of lines are newlines.

    Raises:
        OSError: as of `require`.
        UnicodeDecodeError: not of that encoding; its ``object`` is the whole file.
    """
    text = require(path, most).decode(encoding)
    return io.IncrementalNewlineDecoder(None, translate=True).decode(text, final=True)
