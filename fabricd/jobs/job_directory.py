"""A directory for the stats pages of one job, made by root where any user may write.

``stats/`` has mode 1733: whoever is first has a name there. So job directories lie in
``stats/jobs``, which root alone can write; what somebody else planted under that name is moved
aside. Every step goes by a descriptor of the directory above and follows no link, so nothing but
what was just made here is given away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from fabricd.jobs.directory import default_acl
from telemetry.statslisting import JOBS, SUBDIRECTORY, owned_by_root

TRIES = 100
"""Somebody may plant the parent's name again while we move it aside."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ACLS = "system.posix_acl_access", "system.posix_acl_default"


class JobDirectoryError(Exception):
    """It cannot be made or removed; the text says why, and what to do."""


def make(stats: Path, name: str, uid: int, gid: int) -> Path:
    """Make the directory of a job: its user writes there, fabricd reads, nobody else looks in.

    Args:
        stats: the stats directory.
        name: of the job's directory.
        uid: of the job's user.
        gid: of the job's group.

    Returns:
        Its path, to be mounted as the job's ``stats``.

    Raises:
        JobDirectoryError: among others, there is one of that name.
    """
    with _opened_parent(stats, name) as (parent, reader):
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            raise JobDirectoryError(
                f'there is a "{name}": end that job and remove it, or take another name'
            ) from None
        directory = os.open(name, _OPEN, dir_fd=parent)
        try:
            _let_read(directory, reader)
            os.fchown(directory, uid, gid)  # The last step: until here it is root's alone.
        except BaseException:
            os.rmdir(name, dir_fd=parent)
            raise
        finally:
            os.close(directory)
    return stats / JOBS / name


def remove(stats: Path, name: str) -> None:
    """Remove a job's directory with all that its user left there; no link is followed.

    Raises:
        JobDirectoryError: among others, there is none.
    """
    with _opened_parent(stats, name) as (parent, _):
        try:
            shutil.rmtree(name, dir_fd=parent)
        except FileNotFoundError:
            raise JobDirectoryError(f'there is no "{name}"') from None
        except RecursionError:
            raise JobDirectoryError(f'"{name}" is too deep: remove it with rm -rf') from None


@contextlib.contextmanager
def _opened_parent(stats: Path, name: str) -> Iterator[tuple[int, int]]:
    """The open parent of job directories, and the uid that reads pages."""
    if os.geteuid() != 0:
        raise JobDirectoryError("root alone makes and removes directories of jobs")
    if not SUBDIRECTORY.match(name):
        raise JobDirectoryError(
            f"{name!r}: up to 64 letters, digits and . _ -, of which the first is no sign"
        )
    try:
        top = os.open(stats, _OPEN)
        try:
            status = os.fstat(top)
            if not status.st_mode & stat.S_ISVTX:
                raise JobDirectoryError(f"{stats} has no sticky bit: not a stats directory")
            parent = _parent(top, status.st_uid)
        finally:
            os.close(top)
        try:
            yield parent, status.st_uid
        finally:
            os.close(parent)
    except OSError as error:
        raise JobDirectoryError(f"{stats}: {error.strerror}") from error


def _parent(top: int, reader: int) -> int:
    """Open ``jobs``, made anew unless it is root's."""
    for _ in range(TRIES):
        with contextlib.suppress(OSError):
            parent = os.open(JOBS, _OPEN, dir_fd=top)
            if owned_by_root(os.fstat(parent)):
                return parent
            os.close(parent)
        mine = f".{JOBS}-{secrets.token_hex(8)}"
        os.mkdir(mine, 0o700, dir_fd=top)
        try:
            made = os.open(mine, _OPEN, dir_fd=top)
            try:
                _let_read(made, reader, others=1)
            finally:
                os.close(made)
            with contextlib.suppress(FileNotFoundError):
                os.rename(JOBS, f".planted-{secrets.token_hex(8)}", src_dir_fd=top, dst_dir_fd=top)
            os.rename(mine, JOBS, src_dir_fd=top, dst_dir_fd=top)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.rmdir(mine, dir_fd=top)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
    raise JobDirectoryError(f'somebody takes the name "{JOBS}" again and again: see `ls -la`')


def _let_read(directory: int, reader: int, *, others: int = 0) -> None:
    """Mode 0750 or 0751 with the reader's right, by ACL; without ACLs root alone reads."""
    os.fchmod(directory, 0o750 | others)
    try:
        os.setxattr(directory, _ACLS[0], default_acl(reader, others=others))
        os.setxattr(directory, _ACLS[1], default_acl(reader))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.fchmod(directory, 0o700 | others)
