"""The control socket: newline-delimited JSON over a Unix stream socket.

Whatever comes in is untrusted: a line over 64 KiB, or one that is not a JSON object with a text
``op``, is counted, answered once and its connection closed. A reader that does not read is dropped.
No user can take all places, and root and the admins have places of their own (`places`). No user
can take all of the daemon's time either (`work_pace`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from fabricd.control.accepting import WAITING, connections
from fabricd.control.access import Access, Caller, caller_of
from fabricd.control.pace import Pace
from fabricd.control.places import (
    CONNECTIONS,
    LARGE_REQUESTS,
    Busy,
    PlaceQueue,
    Places,
    Standing,
    standing,
)
from fabricd.control.work_pace import WorkPace
from fabricd.process.cpu_meter import Metered

MAX_LINE = 65536
IDLE_S = 30.0
"""A connection without a request is closed after that; who follows events asks for nothing."""
DRAIN_S = 5.0
ANSWER_S = 120.0
"""The most for sending one large answer: who reads slowly does not keep its place for ever."""
TURNED_AWAY, TURN_AWAY_S = 16, 1.0
"""Connections without a place of which the request is waited for, and how long."""
PATIENCE = 16.0
"""So many a second of one user."""
WAIT_S = 5.0
"""How long a large request waits for a place: shorter than `fabricctl` waits for an answer."""
FOLLOW_QUEUE = 4096
ROWS = 200
"""Rows of a timeline encoded at once: a millisecond or two, in which the loop decides nothing."""
FAT_ROWS = 4
"""The same for processes, with all their rails and groups."""

Document = dict[str, Any]


class RequestError(Exception):
    """The request cannot be served; its text goes to the client."""


@dataclass(frozen=True, slots=True)
class ListInParts:
    """An answer that is a list too long to be held: each part is sent before the next is made.

    Attributes:
        parts: each some members of the list as JSON, with commas between them. Where it cannot go
            on it raises `RequestError`, and the answer ends as refused.
    """

    parts: AsyncGenerator[bytes, None]


Handler = Callable[[Document, Caller], Awaitable[Any]]


def parse_request(line: bytes) -> Document:
    """One request.

    Raises:
        RequestError: not a JSON object with a text ``op``.
    """
    if len(line.rstrip(b"\n")) > MAX_LINE:
        raise RequestError(f"line over {MAX_LINE} bytes")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}"[:200]) from None
    if not isinstance(document, dict) or not isinstance(document.get("op"), str):
        raise RequestError('not an object with a text "op"')
    return document


class ControlServer:
    """Serves one socket.

    Attributes:
        refused: lines, connections and large requests refused since the start.
        dropped: followers dropped because they did not read.
    """

    def __init__(
        self,
        path: Path,
        *,
        changing: frozenset[str] = frozenset(),
        large: frozenset[str] = frozenset(),
        access: Access | None = None,
    ) -> None:
        """Prepare; `start` binds.

        Args:
            path: of the socket.
            changing: the operations that change something.
            large: the operations that take much time or memory: few are served at once.
            access: who may ask and change; default: root alone.
        """
        self.access = access or Access()
        self._changing = changing
        self._large = large
        self._large_places = PlaceQueue(LARGE_REQUESTS, WAIT_S)
        self._places = Places(CONNECTIONS)
        self._work = WorkPace()
        self._patience = Pace(time.monotonic, rate=PATIENCE, burst=TURNED_AWAY, least=1)
        self._leaving: set[asyncio.Task[None]] = set()
        self.refused = 0
        self.dropped = 0
        self._path = path
        self._handlers: dict[str, Handler] = {}
        self._followers: set[asyncio.Queue[bytes | None]] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()

    async def start(self, handlers: dict[str, Handler]) -> None:
        """Bind and listen; an old socket of that name is replaced.

        Args:
            handlers: by ``op``; ``events`` is served here.

        Raises:
            OSError: cannot be bound.
        """
        self._handlers = handlers
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.bind(str(self._path))
            self.access.guard(self._path)
            listening.listen(WAITING)
        except OSError:
            listening.close()
            raise
        self._listening = listening
        self._accepting = asyncio.create_task(self._run(listening), name="control socket")

    def regard(self, access: Access) -> None:
        """Let others ask from now on; what is connected is looked at again with its next line."""
        self.access = access
        try:
            access.guard(self._path)
        except OSError as error:
            self._log.error("control socket's mode not set", error=str(error))

    async def stop(self) -> None:
        """Close everything."""
        tasks = [*self._clients, *self._leaving]
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def broadcast(self, document: Document) -> None:
        """Give one event to all followers; those that are too far behind are dropped."""
        if not self._followers:
            return
        line = encode(document)
        for queue in list(self._followers):
            if queue.qsize() >= FOLLOW_QUEUE:
                self._followers.discard(queue)
                self.dropped += 1
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(line)

    async def _run(self, listening: socket.socket) -> None:
        async for sock in connections(listening, "control socket"):
            began = time.thread_time()
            try:
                caller = caller_of(sock)
            except OSError:  # It is gone already.
                sock.close()
                continue
            rank = standing(self.access, caller)
            if why := self._places.full(rank, caller.uid):
                self._turn_away(sock, caller, why)
            else:
                self._places.take(rank, caller.uid)
                spent = partial(self._work.spent, rank, caller.uid)
                self._begin(self._clients, Metered(self._client(sock, caller, rank), spent))
            self._work.spent(rank, caller.uid, time.thread_time() - began)

    def _begin(self, tasks: set[asyncio.Task[None]], work: Awaitable[None]) -> None:
        async def done() -> None:
            await work

        task = asyncio.create_task(done())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _client(self, sock: socket.socket, caller: Caller, rank: Standing) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_LINE)
            await self._serve(reader, writer, caller)
        except (OSError, TimeoutError):
            pass  # The client went away, or does not read.
        except Exception as error:
            self._log.error("connection failed", error=repr(error))
        finally:
            self._places.give_back(rank, caller.uid)
            if writer is None:
                sock.close()
            else:
                transport = writer.transport
                if not transport.is_closing() and transport.get_write_buffer_size():
                    transport.abort()
                writer.close()

    def _turn_away(self, sock: socket.socket, caller: Caller, why: str) -> None:
        """Say that there is no place, after the request: who is writing may not read before.

        Of few connections is a request waited for: turning away must not be work.
        """
        self.refused += 1
        text = f"busy: {why} (connections); close some, or try again in {IDLE_S:.0f} s"
        answer = encode({"ok": False, "error": text})
        with contextlib.suppress(OSError):
            if sock.recv(MAX_LINE).endswith(b"\n"):
                _say(sock, answer)
                return
        if len(self._leaving) < TURNED_AWAY and self._patience.takes(caller.uid, 1):
            self._begin(self._leaving, _after_request(sock, answer))
        else:
            _say(sock, answer)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller
    ) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                if error.partial.strip():
                    self.refused += 1
                return
            except (asyncio.LimitOverrunError, ValueError):
                await self._refuse(writer, f"line over {MAX_LINE} bytes")
                return
            if not self.access.may_ask(caller):
                await self._refuse(writer, "only root and the groups of [control] may ask")
                return
            try:
                request = parse_request(line)
            except RequestError as error:
                await self._refuse(writer, str(error))
                return
            await self._work.turn(standing(self.access, caller), caller.uid)
            if request["op"] == "events":
                await self._follow(reader, writer)
                return
            if not await self._answer(request, caller, writer):
                return

    async def _answer(
        self, request: Document, caller: Caller, writer: asyncio.StreamWriter
    ) -> bool:
        handler = self._handlers.get(request["op"])
        if handler is None:
            known = ", ".join(sorted([*self._handlers, "events"]))
            await self._refuse(writer, f'unknown op "{request["op"][:32]}"; allowed: {known}')
            return False
        if request["op"] in self._changing and not self.access.may_change(caller):
            text = "only root and the members of [control] admin_group may change anything"
            await self._send(writer, encode({"ok": False, "error": text}))
            return True
        if request["op"] not in self._large:
            await self._send(
                writer, await encode_in_turns(await self._ask(handler, request, caller))
            )
            return True
        try:
            rank = standing(self.access, caller)
            async with self._large_places.place(rank, caller.uid), asyncio.timeout(ANSWER_S):
                answer = await self._ask(handler, request, caller)
                await self._send_large(writer, answer, partial(self._work.turn, rank, caller.uid))
        except Busy as error:
            self.refused += 1
            text = f"busy: {error} (large requests at once); wait for those, or ask for less"
            await self._send(writer, encode({"ok": False, "error": text}))
        return True

    async def _ask(self, handler: Handler, request: Document, caller: Caller) -> Document:
        try:
            return {"ok": True, "data": await handler(request, caller)}
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> Document:
        """What is answered instead."""
        if isinstance(error, RequestError):
            return {"ok": False, "error": str(error)}
        self._log.error("request failed", error=repr(error))
        return {"ok": False, "error": f"internal error: {type(error).__name__}"}

    async def _send_large(
        self,
        writer: asyncio.StreamWriter,
        answer: Document,
        turn: Callable[[], Awaitable[None]],
    ) -> None:
        """Send an answer; of a `ListInParts` no more than a part is held, each after a ``turn``."""
        data = answer.get("data")
        if not isinstance(data, ListInParts):
            await self._send(writer, await encode_in_turns(answer))
            return
        head, end = b'{"data":[', b'],"ok":true}\n'
        try:
            async with contextlib.aclosing(data.parts) as parts:
                async for part in parts:
                    await self._send(writer, head + part)
                    head = b","
                    await turn()
        except OSError:  # Of the client; TimeoutError is one, too.
            raise
        except Exception as error:
            end = b"]," + encode(self._failed(error))[1:]
        await self._send(writer, (head if head != b"," else b"") + end)

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._followers.add(queue)
        gone = asyncio.create_task(reader.read(1))
        try:
            await self._send(writer, encode({"ok": True, "data": "following"}))
            while True:
                item = asyncio.create_task(queue.get())
                await asyncio.wait({item, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not item.done():
                    item.cancel()
                    return
                line = item.result()
                if line is None:
                    return
                await self._send(writer, line)
        finally:
            gone.cancel()
            self._followers.discard(queue)

    async def _refuse(self, writer: asyncio.StreamWriter, why: str) -> None:
        self.refused += 1
        await self._send(writer, encode({"ok": False, "error": why}))

    async def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        writer.write(line)
        async with asyncio.timeout(DRAIN_S):
            await writer.drain()


async def _after_request(sock: socket.socket, answer: bytes) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TURN_AWAY_S):
            while (data := await loop.sock_recv(sock, MAX_LINE)) and not data.endswith(b"\n"):
                pass
    except (OSError, TimeoutError):
        pass
    finally:
        _say(sock, answer)


def _say(sock: socket.socket, line: bytes) -> None:
    """The last line of a connection."""
    with sock, contextlib.suppress(OSError):
        sock.send(line)


async def encode_in_turns(document: Document) -> bytes:
    """As `encode`; long lists by and by, so that the loop goes on meanwhile.

    A thread is no help: the encoder does not let go of the interpreter before it is through.
    Lists are looked for as ``data`` and in it: rows of a timeline, processes of `jobs`.
    """
    data = document.get("data")
    head = {key: value for key, value in document.items() if key != "data"}
    if isinstance(data, list) and len(data) > ROWS:
        return _with(head, "data", await _list_in_turns(data, ROWS)) + b"\n"
    if isinstance(data, dict):
        for key, value in data.items():
            if isinstance(value, list) and len(value) > FAT_ROWS:
                rest = {name: other for name, other in data.items() if name != key}
                inner = _with(rest, key, await _list_in_turns(value, FAT_ROWS))
                return _with(head, "data", inner) + b"\n"
    return encode(document)


async def _list_in_turns(rows: list[Any], at_once: int) -> bytes:
    parts = []
    for first in range(0, len(rows), at_once):
        parts.append(encode_value(rows[first : first + at_once])[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"


def _with(document: Document, key: str, value: bytes) -> bytes:
    """An object with one member more, which is JSON already."""
    head = encode_value(document)[:-1] + (b"," if document else b"")
    return head + encode_value(key) + b":" + value + b"}"


def encode(document: Document) -> bytes:
    """One line."""
    return encode_value(document) + b"\n"


def encode_value(value: object) -> bytes:
    """JSON as it goes over the socket."""
    return json.dumps(value, separators=(",", ":"), default=str).encode()
