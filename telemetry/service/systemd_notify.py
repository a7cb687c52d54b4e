"""What systemd is told (sd_notify(3)), and the sockets that it passes (sd_listen_fds(3))."""

from __future__ import annotations

import contextlib
import os
import socket
import time

_FIRST_FD = 3
_PATIENCE_S = 1.0
"""How long a message may wait for room in systemd's queue: the caller has a cycle to keep."""


class Notifier:
    """READY, RELOADING, STOPPING and the watchdog; nothing when systemd does not listen."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        # "@": the name is an abstract one, of the network namespace.
        self._address = f"\0{address[1:]}" if address[:1] == "@" else address

    def ready(self, status: str) -> None:
        """Started, or reloaded."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it. systemd 253 wants the time, 252 ignores it."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """A graceful stop begins."""
        self._say("STOPPING=1")

    def watchdog(self) -> None:
        """One full cycle was done."""
        self._say("WATCHDOG=1")

    def _say(self, *lines: str) -> None:
        if not self._address:
            return
        # What systemd does not hear ends nobody: its own time-outs are the answer.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_PATIENCE_S)
            sock.sendto("\n".join(lines).encode(errors="replace"), self._address)


def passed_sockets() -> dict[str, socket.socket]:
    """The listening TCP sockets that systemd passed, by their FileDescriptorName; taken once.

    The environment that names them is cleared, and no child inherits them. What is no listening
    TCP socket is closed.
    """
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    count, pid = os.environ.pop("LISTEN_FDS", ""), os.environ.pop("LISTEN_PID", "")
    if not count.isdecimal() or pid != str(os.getpid()):
        return {}
    found: dict[str, socket.socket] = {}
    for number in range(min(int(count), 64)):
        try:
            sock = socket.socket(fileno=_FIRST_FD + number)
        except OSError:
            continue  # No socket, or not open.
        sock.set_inheritable(False)
        name = names[number] if number < len(names) else ""
        if name and name not in found and _listens(sock):
            found[name] = sock
        else:
            sock.close()
    return found


def _listens(sock: socket.socket) -> bool:
    tcp = sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)
    return tcp and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
