"""Watches the MQTT library's socket on the event loop, in place of aiomqtt's own hooks.

aiomqtt adds descriptors to the loop in callbacks that run later, and removes them in the thread
that connects. Where a connection ends at once, the descriptor is closed by then, or is another
socket's. Here a descriptor is watched only while its socket is open, and is removed before it is
closed, whichever thread closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiomqtt

CLOSE_S = 5.0
"""How long a thread waits for the loop before it closes a socket that the loop may watch."""
LAST_READ_S = 1.0
"""How long a broker has for closing the connection after DISCONNECT."""


class SocketHooks:
    """Of one `aiomqtt.Client`, made on its loop before it connects."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client
        self._paho = client._client  # noqa: SLF001 - see the module
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._watched: Any = None
        self._fd = -1
        self._misc: asyncio.Task[None] | None = None
        self._paho.on_socket_open = self._opened
        self._paho.on_socket_close = self._closing
        self._paho.on_socket_register_write = self._wants_to_write
        self._paho.on_socket_unregister_write = self._has_written

    # -- called by paho, in whatever thread -------------------------------------------------------

    def _opened(self, _paho: Any, _userdata: Any, sock: Any) -> None:  # noqa: ANN401 - paho's
        self._on_loop(lambda: self._watch(sock))

    def _closing(self, _paho: Any, _userdata: Any, sock: Any) -> None:  # noqa: ANN401 - paho's
        self._on_loop(lambda: self._forget(sock), wait=True)

    def _wants_to_write(self, _paho: Any, _userdata: Any, sock: Any) -> None:  # noqa: ANN401
        self._on_loop(lambda: self._watch_writing(sock))

    def _has_written(self, _paho: Any, _userdata: Any, sock: Any) -> None:  # noqa: ANN401
        self._on_loop(lambda: self._forget_writing(sock))

    def _on_loop(self, work: Callable[[], None], *, wait: bool = False) -> None:
        if threading.get_ident() == self._thread:
            work()
            return
        done = threading.Event()

        def run() -> None:
            try:
                work()
            finally:
                done.set()

        with contextlib.suppress(RuntimeError):  # The loop has ended: it watches nothing.
            self._loop.call_soon_threadsafe(run)
            if wait:
                done.wait(CLOSE_S)

    # -- on the loop ------------------------------------------------------------------------------

    def _watch(self, sock: Any) -> None:  # noqa: ANN401 - a socket of whatever kind
        fd = sock.fileno()
        if fd < 0 or self._paho.socket() is not sock:
            return
        self._loop.add_reader(fd, self._read)
        self._watched, self._fd = sock, fd
        self._misc = self._loop.create_task(self._client._misc_loop())  # noqa: SLF001

    def _forget(self, sock: Any) -> None:  # noqa: ANN401
        if self._watched is not sock or sock is None:
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._watched, self._fd = None, -1
        if self._misc is not None:
            self._misc.cancel()

    def _watch_writing(self, sock: Any) -> None:  # noqa: ANN401
        if self._watched is sock and sock is not None:
            self._loop.add_writer(self._fd, self._write)

    def _forget_writing(self, sock: Any) -> None:  # noqa: ANN401
        if self._watched is sock and sock is not None:
            self._loop.remove_writer(self._fd)

    def _read(self) -> None:
        try:
            self._paho.loop_read()
            # TLS may have decoded more than was read (paho.mqtt.python issue 131).
            while (sock := self._paho.socket()) is not None and getattr(sock, "pending", int)():
                self._paho.loop_read()
        except Exception as error:
            self._failed(error)

    def _write(self) -> None:
        try:
            self._paho.loop_write()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        disconnected = self._client._disconnected  # noqa: SLF001 - as aiomqtt's hooks do
        if not disconnected.done():
            disconnected.set_exception(error)


@contextlib.asynccontextmanager
async def closed_by_broker(client: aiomqtt.Client) -> AsyncIterator[None]:
    """Keep the connection that is ended inside until the broker has closed it, for `LAST_READ_S`.

    Where a socket is closed with bytes that nobody has read, or gets some later, the kernel resets
    the connection. A broker that writes meanwhile takes that for a loss, does not read the
    DISCONNECT that came before it, and publishes the last will.

    Raises:
        OSError: no descriptor for it, or the broker reset the connection.
    """
    sock: Any = client._client.socket()  # noqa: SLF001 - aiomqtt has none
    if sock is None:
        yield
        return
    with socket.socket(fileno=os.dup(sock.fileno())) as last:
        last.setblocking(False)
        yield
        last.shutdown(socket.SHUT_WR)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_READ_S):
                while await loop.sock_recv(last, 65_536):
                    pass
