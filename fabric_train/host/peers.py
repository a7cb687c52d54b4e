"""TCP connections between the agents of a job: one between any two hosts.

The host whose name comes first connects, and tries again for as long as the other is a member.
Heartbeats go both ways. What is no message ends its connection, is counted, and is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from fabric_train.host import peer_messages as wire
from fabric_train.host.peer_messages import PeerMessage
from fabric_train.messages import frames
from fabric_train.messages.addresses import split
from fabric_train.messages.documents import Member
from fabric_train.messages.frames import MessageError
from fabric_train.rules import heartbeats

_GREETING_S = 5.0
_RETRY_S = (0.05, 1.0)  # first and longest wait before a host is called again
UNAUTHENTICATED = 64
"""Connections that have not proved who they are yet. Beyond that the oldest goes: an agent's does
within milliseconds."""
_MAX_QUEUED = 2 * frames.MAX_BODY  # bytes for a peer that does not read
_BEAT_QUEUED = 1 << 20  # a heartbeat behind more than this says nothing
_USER_TIMEOUT_MS = 10_000


class PeerEvents(Protocol):
    """What the owner of the connections hears."""

    def peer_connected(self, host: str) -> None:
        """A connection with the agent on ``host`` is open."""

    def peer_received(self, host: str, message: PeerMessage) -> None:
        """That agent says ``message``. Raises ``MessageError`` for what no agent says."""

    def heard(self, hears: Sequence[str], misses: Sequence[str]) -> None:
        """Whom this agent hears and misses; on each change."""


class _Connection:
    """One stream of messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.decoder = wire.decoder()
        self._here: deque[PeerMessage] = deque()
        self.incarnation = ""
        self.on_data: Callable[[], None] = lambda: None
        one = writer.get_extra_info("socket")
        if one is not None:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)

    async def receive(self) -> PeerMessage | None:
        """The next message; None at the end. Raises ``MessageError``, ``ConnectionError``."""
        while not self._here:
            data = await self._reader.read(1 << 16)
            if not data:
                return None
            self.on_data()
            for message in self.decoder.feed(data):
                self._here.append(message)
        return self._here.popleft()

    def send(self, message: PeerMessage) -> None:
        """Queue ``message``; a peer that does not read is given up."""
        if self.queued > _MAX_QUEUED:
            self.abort()
        elif not self.writer.is_closing():
            self.writer.write(wire.CODEC.encode(message))

    @property
    def queued(self) -> int:
        return self.writer.transport.get_write_buffer_size()

    def abort(self) -> None:
        self.writer.transport.abort()


class Peers:
    """The other agents of a job, as the agent on ``host`` sees them."""

    def __init__(
        self,
        job: str,
        host: str,
        incarnation: str,
        token: str,
        events: PeerEvents,
        report: Callable[[str], None],
    ) -> None:
        self._identity = (job, host, incarnation)
        self._token = token
        self._events = events
        self._report = report
        self._server: asyncio.Server | None = None
        self._members: dict[str, Member] = {}
        self._connections: dict[str, _Connection] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unauthenticated: dict[_Connection, None] = {}
        """Oldest first."""
        self._fenced: set[tuple[str, str]] = set()
        self._heartbeats = heartbeats.Heartbeats(time.monotonic())
        self._reported: tuple[list[str], list[str]] = ([], [])
        self.bad_connections = 0

    async def open(self, listener: socket.socket) -> None:
        """Take connections at ``listener``, and begin to tick."""
        self._server = await asyncio.start_server(self._accept, sock=listener)
        self._start(self._tick())

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._tasks, *self._dials.values()]
        for task in tasks:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def set_members(self, members: Sequence[Member]) -> None:
        """The hosts of the newest generation, this one among them or not."""
        mine = self._identity[1]
        wanted = {
            one.host: one
            for one in members
            if one.host != mine and (one.host, one.incarnation) not in self._fenced
        }
        for host, connection in list(self._connections.items()):
            known = wanted.get(host)
            left = known is None and host in self._members
            if left or (known is not None and known.incarnation != connection.incarnation):
                self._drop(host)
        for host in [host for host in self._dials if self._members[host] != wanted.get(host)]:
            self._dials.pop(host).cancel()
        self._members = wanted
        self._heartbeats.set_members(wanted.keys(), time.monotonic())
        for host, member in wanted.items():
            if mine < host and host not in self._dials:
                self._dials[host] = asyncio.create_task(self._dial(member))
        self._notify()

    def fence(self, host: str, incarnation: str) -> None:
        """Nothing is exchanged with that agent ever again."""
        self._fenced.add((host, incarnation))
        known, connection = self._members.get(host), self._connections.get(host)
        if connection is not None and connection.incarnation == incarnation:
            self._drop(host)
        if known is not None and known.incarnation == incarnation:
            self.set_members([one for one in self._members.values() if one is not known])
            self._heartbeats.forget(host)

    def send(self, host: str, message: PeerMessage) -> bool:
        """Send to the agent on ``host``. False: there is no connection."""
        connection = self._connections.get(host)
        if connection is None or connection.writer.is_closing():
            return False
        connection.send(message)
        return True

    @property
    def hears(self) -> list[str]:
        """Hosts that this agent hears."""
        return self._heartbeats.hears()

    async def _tick(self) -> None:
        beats = 0.0
        while True:
            now = time.monotonic()
            self._heartbeats.tick(now)
            if now - beats >= heartbeats.INTERVAL_S - heartbeats.TICK_S / 2:
                beats = now
                for connection in list(self._connections.values()):
                    if connection.queued < _BEAT_QUEUED:
                        connection.send(wire.Heartbeat())
            self._notify()
            await asyncio.sleep(heartbeats.TICK_S)

    def _notify(self) -> None:
        now = (self._heartbeats.hears(), self._heartbeats.misses())
        if now != self._reported:
            self._reported = now
            self._events.heard(*now)

    async def _dial(self, member: Member) -> None:
        """Connect to ``member``, again and again, until cancelled."""
        wait, reported = _RETRY_S[0], ""
        while True:
            began = time.monotonic()
            try:
                await self._connect(member)
            except (OSError, MessageError, TimeoutError) as error:
                text = f"agent on {member.host}: {str(error) or 'no answer'}"
                if isinstance(error, MessageError) and text != reported:
                    reported = text
                    self._count_bad(text)
            if time.monotonic() - began > _GREETING_S:
                wait = _RETRY_S[0]
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311
            wait = min(2 * wait, _RETRY_S[1])

    async def _connect(self, member: Member) -> None:
        address, port = split(member.address)
        async with asyncio.timeout(_GREETING_S):
            reader, writer = await asyncio.open_connection(address, port)
        connection = _Connection(reader, writer)
        try:
            async with asyncio.timeout(_GREETING_S):
                challenge = await connection.receive()
                if not isinstance(challenge, wire.Challenge) or challenge.version != wire.VERSION:
                    raise MessageError(f"greets with {challenge!r:.100}")
                greeting = wire.hello(challenge, member.token, *self._identity)
                connection.send(greeting)
                answer = await connection.receive()
            if isinstance(answer, wire.PeerRefused):
                raise MessageError(f"refuses: {answer.reason:.200}")
            if answer is None:
                return
            if not isinstance(answer, wire.PeerWelcome) or not wire.is_proven(
                challenge, greeting, answer, member.token
            ):
                raise MessageError("does not prove that it has its token")
            await self._serve(member.host, member.incarnation, connection)
        finally:
            connection.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start(self._greet(_Connection(reader, writer)))

    async def _greet(self, connection: _Connection) -> None:
        peer = connection.writer.get_extra_info("peername")
        if len(self._unauthenticated) >= UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.abort()
            self._count_bad(f"{UNAUTHENTICATED} connections have not greeted yet: one is ended")
        self._unauthenticated[connection] = None
        greeted: wire.PeerHello | None = None
        try:
            try:
                async with asyncio.timeout(_GREETING_S):
                    greeted = await self._challenge(connection)
            finally:
                self._unauthenticated.pop(connection, None)
            if greeted is not None:
                await self._serve(greeted.host, greeted.incarnation, connection)
        except (MessageError, TimeoutError) as error:
            who = f"agent on {greeted.host}" if greeted else f"connection from {peer}"
            self._count_bad(f"{who}: {str(error) or 'no greeting'}")
        except OSError:
            pass
        finally:
            connection.abort()

    async def _challenge(self, connection: _Connection) -> wire.PeerHello | None:
        challenge = wire.new_challenge()
        connection.send(challenge)
        greeting = await connection.receive()
        if greeting is None:
            return None
        if not isinstance(greeting, wire.PeerHello) or greeting.version != wire.VERSION:
            raise MessageError(f"greets with {greeting!r:.100}")
        answer = wire.welcome(challenge, greeting, self._token)
        if answer is None:
            raise MessageError("it does not know the token of this agent")
        member = self._members.get(greeting.host)
        reason = ""
        if greeting.job != self._identity[0]:
            reason = f"this is job {self._identity[0]}"
        elif (greeting.host, greeting.incarnation) in self._fenced:
            reason = f"incarnation {greeting.incarnation} of {greeting.host} is fenced"
        elif member is not None and member.incarnation != greeting.incarnation:
            reason = f"incarnation {member.incarnation} of {greeting.host} is the member"
        if reason:
            connection.send(wire.PeerRefused(reason))
            with contextlib.suppress(OSError):
                await connection.writer.drain()
            return None
        connection.send(answer)
        return greeting

    async def _serve(self, host: str, incarnation: str, connection: _Connection) -> None:
        """Receive until the connection ends. Raises ``MessageError``, ``OSError``."""
        wire.trust(connection.decoder)
        connection.incarnation = incarnation
        if host in self._connections:
            self._drop(host)
        self._connections[host] = connection
        self._heartbeats.connected(host, time.monotonic())
        connection.on_data = lambda: self._heartbeats.received(host, time.monotonic())
        self._notify()
        self._events.peer_connected(host)
        try:
            while (message := await connection.receive()) is not None:
                if not isinstance(message, wire.Heartbeat):
                    self._events.peer_received(host, message)
        finally:
            if self._connections.get(host) is connection:
                self._drop(host)
                self._notify()

    def _drop(self, host: str) -> None:
        connection = self._connections.pop(host)
        connection.on_data = lambda: None
        connection.abort()
        self._heartbeats.disconnected(host)

    def _count_bad(self, text: str) -> None:
        self.bad_connections += 1
        count = self.bad_connections
        if count & (count - 1) == 0:  # 1, 2, 4, …: whoever scans ports must not fill the log
            self._report(f"{text} (bad connections so far: {count})")

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
