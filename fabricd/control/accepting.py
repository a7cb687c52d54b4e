"""Accepts connections of a Unix socket at a pace, so that a flood of them costs little.

Who waits in connect(2) has a turn: the kernel serves those who wait in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import structlog

ACCEPT_S, ACCEPT_AT_ONCE = 0.01, 16
"""Between two looks for connections, and how many one takes: 1,600 a second."""
WAITING = 64
"""Connections that the kernel holds for us; further ones wait in connect(2)."""
RETRY_S = 0.2


async def connections(listening: socket.socket, what: str) -> AsyncIterator[socket.socket]:
    """Each new connection, for ever; whoever gets one closes it.

    Args:
        listening: that does not block.
        what: the socket's name, for the log.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, _ = await loop.sock_accept(listening)
        except OSError as error:  # No descriptors left: others end some time.
            structlog.get_logger().warning(f"{what} accepts nobody", error=str(error))
            await asyncio.sleep(RETRY_S)
            continue
        yield sock
        with contextlib.suppress(OSError):  # there are no more
            for _ in range(1, ACCEPT_AT_ONCE):
                sock, _ = listening.accept()
                sock.setblocking(False)
                yield sock
        await asyncio.sleep(ACCEPT_S)
