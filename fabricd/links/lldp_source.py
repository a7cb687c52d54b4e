"""Where LLDP comes from: lldpd's ``lldpctl`` if it is there and answers, else a packet socket.

That needs AF_PACKET and CAP_NET_RAW, of which the unit has neither.

Off unless ``[topology] lldp = true``. What does not work says so once, and is no reason for
anything else: without LLDP a rail has one leaf, or the configuration names it.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping

from fabricd.links import lldp
from fabricd.links.lldp import LldpError, Neighbour

ASK_S = 30.0
"""Switches send every 30 s, with a time to live of 120 s (802.1AB's defaults)."""
_LLDPCTL_S = 5.0
_MOST_BYTES = 1 << 20
_SOL_PACKET, _ADD_MEMBERSHIP, _MR_MULTICAST = 263, 1, 0
"""linux/if_packet.h"""


class LldpTable:
    """Neighbours by netdev, each as long as it said. Pure."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Neighbour, int]] = {}

    def take(self, netdev: str, neighbour: Neighbour, now: int) -> None:
        """A neighbour said something at ``now`` (ns); a TTL of 0: shutdown."""
        if neighbour.ttl_s == 0:
            self._known.pop(netdev, None)
        else:
            self._known[netdev] = (neighbour, now + neighbour.ttl_s * 10**9)

    def neighbours(self, now: int) -> dict[str, Neighbour]:
        """Those that are still valid."""
        self._known = {name: item for name, item in self._known.items() if item[1] > now}
        return {name: item[0] for name, item in self._known.items()}


class LldpSource:
    """Keeps the table; ``changed`` is called when what is known is something else.

    Attributes:
        note: where it comes from, or why it does not; for ``fabricctl status``.
    """

    def __init__(self, netdevs: Iterable[str], changed: Callable[[], None]) -> None:
        self.note = "off"
        self.refused = 0
        self._netdevs = frozenset(netdevs)
        self._joined: dict[str, int] = {}
        self._changed = changed
        self._table = LldpTable()
        self._seen: Mapping[str, Neighbour] = {}
        self._socket: socket.socket | None = None

    def neighbours(self) -> Mapping[str, Neighbour]:
        """By netdev, of the links that were asked for."""
        return self._seen

    def watch(self, netdevs: Iterable[str]) -> None:
        """Other links count from now on."""
        self._netdevs = frozenset(netdevs)
        self._join()
        self._publish()

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                program = shutil.which("lldpctl")
                answered = program is not None and await self._ask(program)
                if answered:
                    self._close()
                elif self._socket is None:
                    self._open()
                else:
                    self._join()
                self._publish()
                await asyncio.sleep(ASK_S)
        finally:
            self._close()

    async def _ask(self, program: str) -> bool:
        """Whether lldpd said what it knows; if not, ``note`` says why."""
        try:
            done = await asyncio.to_thread(
                subprocess.run, [program, "-f", "json"],
                capture_output=True, timeout=_LLDPCTL_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode != 0 or len(done.stdout) > _MOST_BYTES:
                text = done.stderr.decode("utf-8", "replace").strip()[:200]
                raise LldpError(f"lldpctl: {text or f'exit status {done.returncode}'}")
            found = lldp.parse_lldpctl(done.stdout)
        except (OSError, subprocess.SubprocessError, LldpError) as error:
            self.note = f"lldpctl: {error}"
            return False
        self.note = "lldpctl"
        now = time.monotonic_ns()
        for netdev, neighbour in found.items():
            if netdev in self._netdevs:
                self._table.take(netdev, neighbour, now)
        return True

    def _open(self) -> None:
        """Frames of LLDP alone, from any device; the switch's multicast address on ours."""
        try:
            packet = socket.socket(
                socket.AF_PACKET,
                socket.SOCK_RAW | socket.SOCK_NONBLOCK,
                socket.htons(lldp.ETHERTYPE),
            )
        except OSError as error:
            first = self.note if self.note.startswith("lldpctl") else "no lldpctl"
            self.note = (
                f"off: {first}, and no packet socket ({error.strerror}: AF_PACKET, CAP_NET_RAW)"
            )
            return
        self._socket = packet
        self._joined = {}
        self._join()
        self.note = "packet socket"
        asyncio.get_running_loop().add_reader(packet.fileno(), self._read)

    def _join(self) -> None:
        """The switch's multicast address, on each device that is there (or there anew)."""
        if self._socket is None:
            return
        for netdev in sorted(self._netdevs):
            try:
                index = socket.if_nametoindex(netdev)
                if self._joined.get(netdev) == index:
                    continue
                join = struct.pack("iHH8s", index, _MR_MULTICAST, 6, lldp.MULTICAST)
                self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, join)
                self._joined[netdev] = index
            except OSError:
                continue  # it is not there yet

    def _read(self) -> None:
        assert self._socket is not None
        for _ in range(64):
            try:
                frame, where = self._socket.recvfrom(2048)
            except BlockingIOError:
                break
            except OSError:
                break
            netdev, outgoing = where[0], where[2] == socket.PACKET_OUTGOING
            if netdev not in self._netdevs or outgoing:
                continue
            try:
                self._table.take(netdev, lldp.parse_frame(frame), time.monotonic_ns())
            except LldpError:
                self.refused += 1
        self._publish()

    def _publish(self) -> None:
        known = self._table.neighbours(time.monotonic_ns())
        found = {name: known[name] for name in known if name in self._netdevs}
        if found != self._seen:
            self._seen = found
            self._changed()

    def _close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
