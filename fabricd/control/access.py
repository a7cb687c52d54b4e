"""Who may do what on the control socket, by user and groups (unix(7), SO_PEERCRED).

Root may everything. Members of ``[control] admin_group`` may everything on the socket; members of
``read_group`` may ask, not change. Others cannot even connect: the socket's mode and ACL say the
same, and a group that does not exist on this system gives nobody anything.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SO_PEERGROUPS = 59
"""Of asm-generic/socket.h (Linux 4.13); the socket module has no name for it."""
_MAX_GROUPS = 65536
_UNNAMED = 0xFFFFFFFF
_ACL = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end, as the kernel noted at connect(2)."""

    pid: int
    uid: int
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Access:
    """The groups in force, as numbers; None: there is none."""

    read: int | None = None
    admin: int | None = None

    @classmethod
    def of(cls, read_group: str, admin_group: str) -> Access:
        """Look the names up on this system."""
        return cls(_gid(read_group), _gid(admin_group))

    def may_ask(self, caller: Caller) -> bool:
        """Whether a caller may read."""
        own = caller.uid == os.geteuid()
        return own or self.may_change(caller) or self.read in caller.groups

    def may_change(self, caller: Caller) -> bool:
        """Whether a caller may change what the daemon does."""
        return caller.uid == 0 or self.admin in caller.groups

    def guard(self, path: Path) -> None:
        """Let the socket's file say the same: mode 0660, its group, an ACL for the admins.

        What this process may not set (it is no member of the group, there are no ACLs on that
        file system) stays narrower, never wider.
        """
        path.chmod(0o600)
        with contextlib.suppress(OSError):
            os.removexattr(path, _ACL)  # of an earlier group, which the mode below would revive
        ours = False
        if self.read is not None:
            with contextlib.suppress(OSError):
                os.chown(path, -1, self.read)
            ours = path.stat().st_gid == self.read
        if ours:
            path.chmod(0o660)
        if self.admin is None or (ours and self.admin == self.read):
            return
        with contextlib.suppress(OSError):
            os.setxattr(path, _ACL, _acl(self.admin, group=6 if ours else 0))


def caller_of(sock: socket.socket) -> Caller:
    """The peer of a connected Unix socket."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return Caller(pid, uid, frozenset({gid, *_peer_groups(sock)}))


def _peer_groups(sock: socket.socket) -> tuple[int, ...]:
    size = 64
    while size <= _MAX_GROUPS:
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * size)
            return struct.unpack(f"{len(raw) // 4}I", raw)
        except OSError as error:
            if error.errno != errno.ERANGE:
                return ()  # An old kernel: the primary group alone counts.
            size *= 8
    return ()


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError:
        return None


def _acl(gid: int, *, group: int) -> bytes:
    """``u::rw-,g::GROUP,g:GID:rw-,m::rw-,o::---`` as linux/posix_acl_xattr.h has it."""
    entries = ((0x01, 6, _UNNAMED), (0x04, group, _UNNAMED), (0x08, 6, gid), (0x10, 6, _UNNAMED),
               (0x20, 0, _UNNAMED))  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
