"""A netlink socket that asks and waits. Thin; speaks of the network namespace it was opened in.

Not for an event loop: a driver that asks its firmware may keep it waiting for milliseconds, so a
daemon reads its sources in a thread. One thread per socket.
"""

from __future__ import annotations

import os
import socket
import struct
import time

from pyroute2.netlink import nlmsg

from telemetry.counters.messages import family_msg
from telemetry.counters.nlattr import (
    HEADER,
    NLMSG_DONE,
    NLMSG_ERROR,
    Message,
    decode,
    error_code,
    first,
    layout,
    messages,
)
from telemetry.counters.polled import SourceOff
from telemetry.counters.types import CounterError

NETLINK_ROUTE, NETLINK_GENERIC, NETLINK_RDMA = 0, 16, 20
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
TIMEOUT_S = 2.0
_LARGEST = 1 << 17
_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY = 16, 3
_CTRL = layout(family_msg)
GENL_HEADER = struct.Struct("=BBH")  # command, version, reserved


class Netlink:
    """One socket of a protocol, opened when first needed and after an answer did not come."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._families: dict[str, int] = {}

    def ask(
        self, kind: int, payload: bytes, *, dump: bool = False, ack: bool = False
    ) -> list[Message]:
        """Send a request; returns what answers it, errors and ends excluded.

        ``ack``: the request has no answer but that it was done.

        Raises:
            SourceOff: the kernel does not know the protocol.
            OSError: the kernel refused it, with its errno; or no answer came in `TIMEOUT_S`.
            CounterError: the answer is no netlink message.
        """
        link = self._open()
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        flags = NLM_F_REQUEST | (NLM_F_DUMP if dump else 0) | (NLM_F_ACK if ack else 0)
        length = HEADER.size + len(payload)
        link.send(HEADER.pack(length, kind, flags, self._sequence, 0) + payload)
        try:
            return self._answers(link, dump=dump)
        except (OSError, CounterError) as error:
            if isinstance(error, CounterError | TimeoutError):
                self.close()  # an answer that comes late must not pass for the next one
            raise

    def generic(self, family: str, payload: bytes) -> list[Message]:
        """Like `ask`, for a generic netlink family by its name."""
        if family not in self._families:
            self._families[family] = self._family(family)
        return self.ask(self._families[family], payload)

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._families.clear()

    def _open(self) -> socket.socket:
        if self._socket is None:
            try:
                self._socket = socket.socket(
                    socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, self._protocol
                )
            except OSError as error:
                raise SourceOff(f"this kernel has no netlink {self._protocol}") from error
            self._socket.settimeout(TIMEOUT_S)
            self._socket.bind((0, 0))
        return self._socket

    def _answers(self, link: socket.socket, *, dump: bool) -> list[Message]:
        out: list[Message] = []
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            data = link.recv(_LARGEST)
            if len(data) == _LARGEST:
                raise CounterError(f"netlink: answer of more than {_LARGEST} bytes")
            for message in messages(data):
                if message.sequence != self._sequence:
                    continue
                if message.type in (NLMSG_ERROR, NLMSG_DONE):
                    code = error_code(message)
                    if code:
                        raise OSError(code, os.strerror(code))
                    return out
                out.append(message)
            if out and not dump:
                return out
        raise TimeoutError("netlink did not answer")

    def _family(self, name: str) -> int:
        request = family_msg()
        request["cmd"], request["version"] = _CTRL_CMD_GETFAMILY, 1
        request["attrs"].append(["CTRL_ATTR_FAMILY_NAME", name])
        try:
            answer = self.ask(_GENL_ID_CTRL, encoded(request))
        except FileNotFoundError as error:
            raise SourceOff(f"this kernel has no {name} netlink") from error
        for message in answer:
            found = first(decode(message.payload[GENL_HEADER.size :], _CTRL), "CTRL_ATTR_FAMILY_ID")
            if isinstance(found, int):
                return found
        raise CounterError(f"no id of the netlink family {name}")


def encoded(message: nlmsg) -> bytes:
    """What follows the header of a pyroute2 message."""
    message.encode()
    return bytes(message.data[HEADER.size :])
