"""Work inside a network namespace without leaving one's own.

``setns(2)`` with CLONE_NEWNET acts on the calling thread alone, so a short-lived thread enters the
namespace, opens what is needed and ends; sockets stay in the namespace in which they were made, and
/proc/sys/net shows the namespace of the thread that opens it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyroute2 import netns as pr_netns

NETNS_DIR = Path("/run/netns")
CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def enter(name: str) -> None:
    """Move the calling thread into namespace ``name``.

    Raises:
        OSError: there is none of that name, or no right to enter it.
    """
    fd = os.open(NETNS_DIR / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"setns {name}: {os.strerror(code)}")
    finally:
        os.close(fd)


def run_in(name: str, work: Callable[[], T]) -> T:
    """Result of ``work`` called in a thread inside the namespace; its exception is raised here."""

    def body() -> T:
        enter(name)
        return work()

    return in_thread(body)


def in_thread(work: Callable[[], T]) -> T:
    """Result of ``work`` called in a fresh thread.

    pyroute2 runs an event loop of its own, which a thread that already runs one does not allow.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name="lab")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def netlink_socket(
    name: str, protocol: int, kind: int = socket.SOCK_RAW, groups: int = 0
) -> socket.socket:
    """A netlink socket (NETLINK_ROUTE 0, NETLINK_NETFILTER 12) that lives in the namespace."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_NETLINK, kind | socket.SOCK_CLOEXEC, protocol)
        made.bind((0, groups))
        return made

    return run_in(name, make)


def ifindex(name: str, ifname: str) -> int:
    """Index of an interface in a namespace."""
    return run_in(name, lambda: socket.if_nametoindex(ifname))


def write_sysctls(values: dict[str, str | int]) -> None:
    """Set ``net/...`` values in the namespace of the calling thread; keys use slashes."""
    for key, value in values.items():
        Path("/proc/sys", key).write_text(f"{value}\n")


def ready() -> None:
    """Make ``/run/netns`` the shared mount that the first ``ip netns add`` of a boot makes of it.

    Not by two at once: each would mount it over the other's namespaces.
    """
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    if not any(line.split()[4] == str(NETNS_DIR) for line in mounts):
        name = f"first-{os.getpid()}"
        in_thread(lambda: pr_netns.create(name))
        pr_netns.remove(name)


def exists(name: str) -> bool:
    """Whether a namespace of that name is mounted."""
    return (NETNS_DIR / name).exists()


def listing(prefix: str) -> list[str]:
    """Names of all namespaces that begin with ``prefix``."""
    if not NETNS_DIR.is_dir():
        return []
    return sorted(p.name for p in NETNS_DIR.iterdir() if p.name.startswith(prefix))


def inode(name: str) -> int | None:
    """Inode of the namespace, as ``/proc/<pid>/ns/net`` of its processes shows it."""
    try:
        return (NETNS_DIR / name).stat().st_ino
    except OSError:
        return None


def pids(names: list[str]) -> list[int]:
    """All processes whose main thread is in one of the namespaces."""
    inodes = {n for n in (inode(name) for name in names) if n is not None}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "ns/net").stat().st_ino in inodes:
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile
    return found
