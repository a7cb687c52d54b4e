"""The stats directory: any job may add a page, and only this daemon reads them."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from pathlib import Path


def prepare_directory(path: Path, mode: int) -> None:
    """Make a directory with a mode; one that belongs to somebody else keeps its own."""
    path.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):
        path.chmod(mode)


STATS_MODE = 0o1733
"""Any user's job may put its page there, and take only its own away; only the owner lists it."""


def prepare_stats_directory(path: Path, uid: int | None = None) -> bool:
    """Make the stats directory, whose pages this user and no other job reads.

    A default ACL gives this user the right to read whatever is made there (and, for a job's own
    subdirectory, to list it). Setting it takes neither a capability nor a group, and unlike the
    setgid bit the unit's RestrictSUIDSGID allows it. A file system without ACLs gets the setgid
    bit, so that pages belong to this process's group.

    Args:
        path: the directory.
        uid: who may read; None: this process's user.

    Returns:
        False when only root will be able to read the pages.
    """
    prepare_directory(path, STATS_MODE)
    try:
        os.setxattr(
            path, "system.posix_acl_default", default_acl(os.geteuid() if uid is None else uid)
        )
        return True
    except OSError as error:
        if error.errno == errno.EPERM:
            return os.geteuid() == 0  # somebody else's directory
    try:
        path.chmod(0o2000 | STATS_MODE)
    except OSError:
        return os.geteuid() == 0
    return True


def default_acl(uid: int, *, others: int = 0) -> bytes:
    """``u::rwx,u:UID:r-x,g::---,m::r-x,o::---`` as the kernel has it (linux/posix_acl_xattr.h)."""
    unnamed = 0xFFFFFFFF
    entries = ((0x01, 7, unnamed), (0x02, 5, uid), (0x04, 0, unnamed), (0x10, 5, unnamed),
               (0x20, others, unnamed))  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
