"""Gives a host its routes back whenever one of its rails is brought up by hand.

The kernel drops a device's routes at an administrative down and restores only the connected ones.
Faults restore what they took; this is for ``ip link set railN down`` typed by somebody else.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading

from lab.network import build, netns
from lab.network.rtlink import IFF_UP, RTM_NEWLINK
from lab.topology import HOST_IFINDEX, Topology

RTMGRP_LINK = 1
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")


def link_messages(data: bytes) -> list[tuple[int, int]]:
    """(ifindex, flags) of every RTM_NEWLINK in a datagram of rtnetlink."""
    found = []
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= size <= len(data) - at:
            break  # cut short
        if kind == RTM_NEWLINK and size >= _HEADER.size + _LINK.size:
            _, _, index, flags, _ = _LINK.unpack_from(data, at + _HEADER.size)
            found.append((index, flags))
        at += (size + 3) & ~3
    return found


class RouteRestorer:
    """One thread that listens in all hosts of a lab."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._stop_r, self._stop_w = os.pipe()
        self._hosts: dict[int, tuple[int, socket.socket]] = {}
        for host in range(topology.hosts):
            sock = netns.netlink_socket(topology.ns("host", host), 0, groups=RTMGRP_LINK)
            self._hosts[sock.fileno()] = (host, sock)
        self._up: dict[tuple[int, int], bool] = {}
        self._thread = threading.Thread(target=self._run, name="route restorer", daemon=True)

    def start(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its sockets."""
        os.write(self._stop_w, b"x")
        self._thread.join()
        for _, sock in self._hosts.values():
            sock.close()
        os.close(self._stop_r)
        os.close(self._stop_w)

    def _run(self) -> None:
        poll = select.poll()
        for fd in (self._stop_r, *self._hosts):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._stop_r:
                    return
                self._heard(*self._hosts[fd])

    def _heard(self, host: int, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
        except OSError:  # ENOBUFS: something was lost, so anything may have come up
            self._restore(host, None)
            return
        for index, flags in link_messages(data):
            now, before = bool(flags & IFF_UP), self._up.get((host, index), True)
            self._up[host, index] = now
            if now and not before and index >= HOST_IFINDEX:
                self._restore(host, f"rail{index - HOST_IFINDEX}")

    def _restore(self, host: int, ifname: str | None) -> None:
        # The namespace may be going away with the lab.
        with contextlib.suppress(OSError):
            build.restore_routes(self._topology, "host", host, ifname)
