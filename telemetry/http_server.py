"""A small HTTP/1.1 server for a handful of paths, safe against whoever can reach its port.

It runs on one asyncio loop: a connection costs a descriptor and a task, never a thread. Everything
is bounded: connections, size of a header, time to send it, time to read the reply. A connection
serves one request. At the limit the oldest connection goes: an honest client is served within
milliseconds, so the oldest is one that does not send, or does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

MAX_CONNECTIONS = 32
MAX_HEADER = 8192
"""Bytes of request line and header fields together; Prometheus sends some 300."""
HEADER_S = 5.0
"""A client has so long to send its header."""
WRITE_S = 10.0
"""A client has so long to read the reply."""
BACKLOG = 128

TEXT = "text/plain; charset=utf-8"
_REQUEST_LINE = re.compile(rb"([!-~]{1,32}) ([!-~]{1,2048}) HTTP/1\.[01]\Z")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\Z")
_READS = ("GET", "HEAD")


class Reply(NamedTuple):
    """What a handler answers."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


class HttpError(Exception):
    """A request is refused.

    Attributes:
        status: of the reply.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request; names of header fields are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Reply]]


def parse_request(head: bytes) -> Request:
    """Parse request line and header fields (RFC 9112), up to the empty line.

    Raises:
        HttpError: 400, not HTTP/1; the path is not looked at.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.match(first)
    if match is None:
        raise HttpError(400, "not a request line of HTTP/1")
    headers: dict[str, str] = {}
    for line in lines:
        found = _FIELD.match(line)
        if found is None:
            raise HttpError(400, "not a header field")
        headers[found[1].decode("ascii").lower()] = found[2].decode("latin-1")
    path = match[2].decode("ascii").partition("?")[0]
    return Request(match[1].decode("ascii"), path, headers)


class HttpServer:
    """Serves GET and HEAD of fixed paths: 404 for others, 405 for other methods.

    Attributes:
        refused: connections and requests refused since the start, by reason (a small fixed set).
    """

    def __init__(
        self,
        routes: Mapping[str, Handler],
        *,
        max_connections: int = MAX_CONNECTIONS,
        header_s: float = HEADER_S,
        write_s: float = WRITE_S,
    ) -> None:
        """Nothing is bound yet.

        Args:
            routes: path → handler; a handler that raises is answered with status 500.
            max_connections: held at once.
            header_s: seconds for a client to send its header.
            write_s: seconds for a client to read the reply.
        """
        self.refused: Counter[str] = Counter()
        self._routes = routes
        self._max = max_connections
        self._header_s = header_s
        self._write_s = write_s
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serve a bound socket.

        Raises:
            OSError: it cannot listen.
        """
        self._server = await asyncio.start_server(
            self._accept, sock=sock, limit=MAX_HEADER, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._max:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).transport.abort()
            oldest.cancel()
            self.refused["connections"] += 1
        self._connections[task] = writer
        try:
            writer.transport.set_write_buffer_limits(0)
            await self._serve(reader, writer)
        except OSError:
            pass  # The client went away.
        finally:
            self._connections.pop(task, None)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = ""
        try:
            async with asyncio.timeout(self._header_s):
                head = await reader.readuntil(b"\r\n\r\n")
            request = parse_request(head)
            method = request.method
            reply = await self._answer(request)
        except asyncio.IncompleteReadError:
            return
        except TimeoutError:
            self.refused["timeout"] += 1
            reply = _refusal(408, "the header did not arrive in time")
        except asyncio.LimitOverrunError:
            self.refused["header"] += 1
            reply = _refusal(431, f"a header over {MAX_HEADER} bytes")
        except HttpError as error:
            self.refused["request"] += 1
            reply = _refusal(error.status, str(error))
        writer.write(_encode(reply, with_body=method != "HEAD"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._write_s):
                await writer.drain()
                return
        self.refused["timeout"] += 1

    async def _answer(self, request: Request) -> Reply:
        handler = self._routes.get(request.path)
        if handler is None:
            return _refusal(404, "there are " + ", ".join(sorted(self._routes)))
        if request.method not in _READS:
            reply = _refusal(405, "only GET and HEAD")
            return reply._replace(headers=(("Allow", ", ".join(_READS)),))
        try:
            return await handler(request)
        except Exception as error:
            return _refusal(500, f"internal error: {type(error).__name__}")


def _refusal(status: int, text: str) -> Reply:
    return Reply(status, f"{text}\n".encode())


def _encode(reply: Reply, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in reply.headers),
    ]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head + reply.body if with_body else head
