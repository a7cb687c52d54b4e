"""Reads the lines of one fabric-run straight from its socket: no more is held than one line.

A user has many connections, and a line may be long. So only few long lines of one user are held at
once; what waits for its turn waits in the sender's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator

from fabricd.control.pace import Pace
from fabricd.escalate.job_lines import MAX_LINE, Line, LineError, parse_line

SHORT, CHUNK = 16_384, 65_536
"""Bytes that a connection may hold without a turn, and that one call reads of a longer line."""
LONG_AT_ONCE = 4
"""Long lines of one user."""
LONG_S = 30.0
"""Within which a long line has to come whole."""


class LineTurns:
    """Whose long lines are being read."""

    def __init__(self, at_once: int = LONG_AT_ONCE) -> None:
        """Args: ``at_once``: of one user."""
        self._at_once = at_once
        self._held: Counter[int] = Counter()
        self._freed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def turn(self, user: int) -> AsyncIterator[None]:
        """Wait for a turn, and have it for as long as the context lasts."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._held[user] < self._at_once)
            self._held[user] += 1
        try:
            yield
        finally:
            self._held[user] -= 1
            if not self._held[user]:
                del self._held[user]
            async with self._freed:
                self._freed.notify_all()


class LineReader:
    """The lines of one connection."""

    def __init__(self, sock: socket.socket, user: int, turns: LineTurns, pace: Pace) -> None:
        """Args: ``sock``: that does not block; ``user``: whose turns and pace count."""
        self._sock, self._user, self._turns, self._pace = sock, user, turns, pace
        self._held = bytearray()

    async def next(self) -> Line:
        """The next line.

        Raises:
            LineError: it is none of ours, is too long, or takes too long to come.
            EOFError, OSError: the connection has ended.
        """
        while b"\n" not in self._held and len(self._held) < SHORT:
            await self._more(SHORT)
        if b"\n" in self._held:
            return await self._line()
        async with self._turns.turn(self._user):
            try:
                async with asyncio.timeout(LONG_S):
                    while b"\n" not in self._held[-CHUNK:]:
                        if len(self._held) > MAX_LINE:
                            raise LineError(f"line over {MAX_LINE} bytes")
                        await self._more(CHUNK)
            except TimeoutError:
                raise LineError(f"a line has not come whole within {LONG_S:g} s") from None
            return await self._line()

    async def _more(self, most: int) -> None:
        data = await asyncio.get_running_loop().sock_recv(self._sock, most)
        if not data:
            raise EOFError
        self._held += data

    async def _line(self) -> Line:
        end = self._held.index(b"\n") + 1
        line = bytes(self._held[:end])
        del self._held[:end]
        await asyncio.sleep(self._pace.delay_s(self._user, len(line)))
        return parse_line(line)
