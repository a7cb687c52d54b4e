"""The connection of a fabric-run to the fabricd of its host: ``jobs.sock``, one JSON object a line.

fabricd may restart at any time: the ranks go on, this side connects again, registers the same
incarnation and sends its document anew; fabricd sends the newest orders and fences anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fabric_train.messages.documents import (
    AgentDocument,
    DocumentError,
    JobOrder,
    parse,
    to_data,
)

NAME = "jobs.sock"
VERSION = 1
MAX_LINE = 512 << 10  # bytes, without the line's end: as fabricd has it
_MAX_QUEUED = 4 * MAX_LINE
_ANSWER_S = 10.0
_START_S = 15.0  # for a fabricd that starts at the same time, as after a boot
_RETRY_S = (0.1, 5.0)
_CONNECT_S = 5  # behind others, who are served in order


class DaemonError(Exception):
    """fabricd is not there, or does not take this fabric-run. The text says which and where."""


@dataclass(frozen=True)
class Welcome:
    """fabricd has registered this fabric-run: it is the one of ``job`` on ``host``."""

    host: str
    boot_id: str


@dataclass(frozen=True)
class Order:
    """The newest order of the fabric-compute of that name."""

    compute: str
    order: JobOrder


@dataclass(frozen=True)
class Fence:
    """Nothing of ``incarnation`` of the job on ``host`` may be talked to any more."""

    id: str
    host: str
    incarnation: str


@dataclass(frozen=True)
class Stop:
    """This incarnation is fenced: all its ranks end now."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """fabricd does not take this fabric-run."""

    reason: str


@dataclass(frozen=True)
class Silent:
    """These hosts are silent to this host's probes, on all rails."""

    hosts: list[str]


DaemonMessage = Welcome | Order | Fence | Stop | Refused | Silent
_CLASSES: dict[str, type[DaemonMessage]] = {
    "welcome": Welcome,
    "order": Order,
    "fence": Fence,
    "stop": Stop,
    "refused": Refused,
    "silent": Silent,
}


def parse_line(line: bytes) -> DaemonMessage:
    """What fabricd says in one line. Raises ``DocumentError``."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"no JSON: {error}") from None
    if not isinstance(data, dict):
        raise DocumentError(f"no object: {data!r:.80}")
    kind = data.pop("kind", None)
    cls = _CLASSES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise DocumentError(f"unknown kind {kind!r:.80}")
    message: DaemonMessage = parse(cls, data)
    if isinstance(message, Order):
        parse(JobOrder, data["order"])  # its version and its phase, too
    return message


class DaemonEvents(Protocol):
    """What the owner of the connection hears."""

    def welcomed(self, host: str) -> None:
        """Registered, for the first time or again."""

    def ordered(self, compute: str, order: JobOrder) -> None:
        """A fabric-compute wants ``order``."""

    def fenced(self, fence: Fence) -> None:
        """To be applied, and then acknowledged by ``acknowledge``."""

    def stopped(self, reason: str) -> None:
        """This incarnation is fenced."""

    def silent(self, hosts: Sequence[str]) -> None:
        """These hosts are silent on all rails, and no others."""


class JobSocket:
    """One registered fabric-run. ``report`` gets lines for people."""

    def __init__(
        self,
        directory: Path,
        job: str,
        incarnation: str,
        events: DaemonEvents,
        report: Callable[[str], None],
    ) -> None:
        self._path = directory / NAME
        self._job = job
        self._incarnation = incarnation
        self._events = events
        self._report = report
        self._writer: asyncio.StreamWriter | None = None
        self._host = ""
        self._document: AgentDocument | None = None
        self.bad_lines = 0

    async def open(self) -> asyncio.StreamReader:
        """Connect and register. Raises ``DaemonError``."""
        reader, writer = await self._connect()
        try:
            self._write(writer, {"kind": "register", "version": VERSION, "job": self._job,
                                 "incarnation": self._incarnation})  # fmt: skip
            async with asyncio.timeout(_ANSWER_S):
                line = await reader.readline()
            message = parse_line(line)
        except (OSError, ValueError, DocumentError, TimeoutError) as error:
            writer.close()
            text = str(error) or f"no answer within {_ANSWER_S:g} s"
            raise DaemonError(f"fabricd at {self._path} does not welcome this: {text}") from None
        if isinstance(message, Stop):
            self._events.stopped(message.reason)
        if not isinstance(message, Welcome):
            writer.close()
            reason = getattr(message, "reason", f"it says {message!r:.80}")
            raise DaemonError(f"fabricd refuses job {self._job}: {reason}")
        if self._host and message.host != self._host:
            writer.close()
            raise DaemonError(f"fabricd is of host {message.host} now, and was of {self._host}")
        self._host = message.host
        self._writer = writer
        self._events.welcomed(message.host)
        if self._document is not None:
            self._send({"kind": "document", "document": to_data(self._document)})
        return reader

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the socket. A daemon whose run directory is there may still be starting."""
        deadline = asyncio.get_running_loop().time() + (0.0 if self._host else _START_S)
        while True:
            try:
                sock = await _connected(str(self._path))
                return await asyncio.open_unix_connection(sock=sock, limit=MAX_LINE)
            except OSError as error:
                waits = asyncio.get_running_loop().time() < deadline
                if not waits or not self._path.parent.is_dir():
                    raise DaemonError(f"no fabricd at {self._path} ({error.strerror})") from None
            await asyncio.sleep(_RETRY_S[0])

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Receive until cancelled; connects again by itself."""
        wait, reported = _RETRY_S[0], ""
        while True:
            if refusal := await self._receive(reader):
                if refusal != reported:
                    self._report(refusal)
                reported = refusal
            else:
                self._report("fabricd is gone; the ranks go on")
                wait, reported = _RETRY_S[0], ""
            self._disconnect()
            while True:
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311
                wait = min(2 * wait, _RETRY_S[1])
                try:
                    reader = await self.open()
                except DaemonError as error:
                    if str(error) != reported:
                        reported = str(error)
                        self._report(reported)
                    continue
                if not refusal:
                    self._report("fabricd is back")
                break

    async def _receive(self, reader: asyncio.StreamReader) -> str:
        """Receive until the connection ends; returns why fabricd refuses us, if it does."""
        while True:
            try:
                line = await reader.readline()
            except OSError:
                return ""
            except ValueError:
                self._count_bad(f"a line of more than {MAX_LINE} B")
                return ""
            if not line.endswith(b"\n"):
                return ""
            try:
                message = parse_line(line)
            except DocumentError as error:
                self._count_bad(str(error))
                continue
            match message:
                case Order():
                    self._events.ordered(message.compute, message.order)
                case Fence():
                    self._events.fenced(message)
                case Stop():
                    self._events.stopped(message.reason)
                case Silent():
                    self._events.silent(message.hosts)
                case Refused():
                    return f"fabricd refuses job {self._job}: {message.reason}"
                case Welcome():
                    self._count_bad("a second welcome")

    def publish(self, document: AgentDocument) -> None:
        """Replace what fabricd knows of this host's part of the job."""
        self._document = document
        self._send({"kind": "document", "document": to_data(document)})

    def acknowledge(self, fence: str) -> None:
        """The fence with this id is applied here."""
        self._send({"kind": "fenced", "id": fence})

    async def close(self, *, leave: bool) -> None:
        """End the connection. ``leave``: the job has ended, and fabricd forgets the document."""
        if leave:
            self._send({"kind": "leave"})
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _send(self, message: dict[str, Any]) -> None:
        writer = self._writer
        if writer is None or writer.is_closing():
            return
        if writer.transport.get_write_buffer_size() > _MAX_QUEUED:
            writer.transport.abort()  # it does not read; the newest document is sent when it does
        else:
            self._write(writer, message)

    def _write(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode()
        if len(line) > MAX_LINE:
            self._report(
                f"{message['kind']} of {len(line)} B is not sent to fabricd: at most {MAX_LINE} B"
            )
            return
        writer.write(line + b"\n")

    def _count_bad(self, text: str) -> None:
        self.bad_lines += 1
        self._report(f"fabricd says what is no message: {text} (so far: {self.bad_lines})")


async def _connected(path: str) -> socket.socket:
    """Connect, and wait for one's turn where others stand before fabricd. Raises ``OSError``."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except BlockingIOError:  # The queue is full; who waits in the kernel is served in order.
            sock.setblocking(True)
            limit = struct.pack("ll", _CONNECT_S, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            await asyncio.to_thread(sock.connect, path)
            sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
