"""Gives a host its routes back whenever one of its rails, or its address, is put back by hand.

The kernel drops a device's routes at an administrative down and restores only the connected ones.
With an address go the routes that have it as their source. Faults restore what they took; this is
for ``ip link set railN down`` and ``ip addr add`` typed by somebody else.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading

from pyroute2.netlink.exceptions import NetlinkError

from lab.network import build, netns
from lab.network.rtlink import IFF_UP, RTM_NEWLINK
from lab.topology import HOST_IFINDEX, Topology

GROUPS = 0x1 | 0x10 | 0x100
"""RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR."""
RTM_NEWADDR = 20
_LOG = logging.getLogger("lab.route_restorer")
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")


def link_messages(data: bytes) -> list[tuple[int, int]]:
    """(ifindex, flags) of every RTM_NEWLINK in a datagram of rtnetlink."""
    bodies = _messages(data, RTM_NEWLINK, _LINK)
    return [(index, flags) for _, _, index, flags, _ in bodies]


def new_addresses(data: bytes) -> list[int]:
    """The ifindex of every RTM_NEWADDR in a datagram of rtnetlink."""
    return [index for *_, index in _messages(data, RTM_NEWADDR, _ADDRESS)]


def _messages(data: bytes, wanted: int, body: struct.Struct) -> list[tuple[int, ...]]:
    """The fixed parts of all messages of a type; what is cut short is left out."""
    found = []
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= size <= len(data) - at:
            break
        if kind == wanted and size >= _HEADER.size + body.size:
            found.append(body.unpack_from(data, at + _HEADER.size))
        at += (size + 3) & ~3
    return found


class RouteRestorer:
    """One thread that listens in all hosts of a lab."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._stop_r, self._stop_w = os.pipe()
        self._hosts: dict[int, tuple[int, socket.socket]] = {}
        for host in range(topology.hosts):
            sock = netns.netlink_socket(topology.ns("host", host), 0, groups=GROUPS)
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
            if now and not before:
                self._restore_rail(host, index)
        for index in sorted(set(new_addresses(data))):
            self._restore_rail(host, index)

    def _restore_rail(self, host: int, index: int) -> None:
        if HOST_IFINDEX <= index < HOST_IFINDEX + self._topology.rails:
            self._restore(host, f"rail{index - HOST_IFINDEX}")

    def _restore(self, host: int, ifname: str | None) -> None:
        # The namespace may be going away with the lab. Whatever else is wrong on one host ends the
        # work for none: the log has it.
        try:
            build.restore_routes(self._topology, "host", host, ifname)
        except NetlinkError as error:
            _LOG.warning("routes of h%d %s not restored: %s", host, ifname or "", error)
        except OSError:
            return
