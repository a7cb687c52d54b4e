"""UTC for chronyd, on hosts whose operators ask for that: it steers the system's clock, not we.

A sample a second to the socket of a ``refclock SOCK`` (chrony.conf(5); the layout is that of
chrony's refclock_sock.c): the wall clock, and how far UTC by the page of TAI is from it. chronyd
filters, weighs it against its other sources and slews as it is told to; nothing here sets a clock.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from clocksync.page.clock_page import ClockError, State
from clocksync.page.tai_page import TaiLine
from clocksync.pair.crossing import Wall
from clocksync.pair.model import SECOND
from fabricd.clock.clocks import Clocks
from fabricd.clock.phc import wall

_SAMPLE: Final = struct.Struct("@qqdiiii")
"""struct timeval, the offset in seconds, pulse, leap, padding, magic."""
_MAGIC: Final = 0x534F434B
_LEAP: Final = {0: 0, 1: 1, -1: 2}
"""LEAP_Normal, LEAP_InsertSecond, LEAP_DeleteSecond."""
EVERY_NS: Final = SECOND
WIDEST_NS: Final = 100_000
"""The wall clock was not read so much as come upon: the next second has another reading."""
MOST_BOUND_NS: Final = 100_000
"""A sample does not say how sure it is; its ``delay`` in chrony.conf does, once for all."""


def sample(wall_ns: int, utc_ns: int, leap: int) -> bytes:
    """One of them.

    Args:
        wall_ns: the system's clock at a moment.
        utc_ns: UTC at it.
        leap: seconds at the end of the day, +1, -1 or 0.
    """
    # The stamp is in microseconds; the offset is of the stamp, so that nothing of it is lost.
    seconds, us = divmod(wall_ns // 1000, 10**6)
    return _SAMPLE.pack(seconds, us, (utc_ns - wall_ns) / SECOND, 0, _LEAP[leap], 0, _MAGIC)


class Chrony:
    """The socket of one chronyd, which may come and go."""

    def __init__(self, path: Path, read: Callable[[], Wall] = wall) -> None:
        """Args: ``path``: as chrony.conf has it; ``read``: the wall clock beside the raw one."""
        self.path = path
        self.told = 0
        """Samples that it has taken."""
        self.why = "no TAI was told yet"
        """Why it is not told anything now; empty: it is."""
        self._read = read
        self._due_ns = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._log = structlog.get_logger()

    def step(self, said: TaiLine, clocks: Clocks, now_ns: int) -> None:
        """Tell it what time it is, once a second; nothing while that is held over.

        Args:
            said: TAI over our clock.
            clocks: ours, beside the raw clock.
            now_ns: our clock.
        """
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + EVERY_NS
        try:
            self._tell(said, clocks)
        except OSError as error:
            # A queue that is full is a chronyd that is busy, or stopped.
            self._say(f"{self.path}: {error.strerror or error}")

    def anew(self) -> None:
        """Our clock is another."""
        self._due_ns = 0

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()

    def _tell(self, said: TaiLine, clocks: Clocks) -> None:
        offset = said.source.utc_offset_s
        if said.line.state is not State.LOCKED:
            self._say(f"TAI is {said.line.state.name.lower()}")
            return
        if offset is None:
            self._say("no master says what UTC is")
            return
        read = self._read()
        if read.after_ns - read.before_ns > WIDEST_NS:
            took_us = (read.after_ns - read.before_ns) / 1000
            self._say(f"reading the wall clock takes {took_us:.0f} us")
            return
        middle = (read.before_ns + read.after_ns) // 2
        try:
            now = said.line.at(int(clocks.own(np.array([middle], np.int64))[0]))
        except ClockError as error:
            self._say(str(error))
            return
        if now.bound_ns > MOST_BOUND_NS:
            self._say(f"TAI is within {now.bound_ns / 1000:.0f} us only")
            return
        utc_ns = now.ns - offset * SECOND
        self._socket.sendto(sample(read.wall_ns, utc_ns, said.source.leap), str(self.path))
        self.told += 1
        self._say("")

    def _say(self, why: str) -> None:
        if why != self.why:
            self.why = why
            if why:
                self._log.warning("chronyd is not told the time", reason=why)
            else:
                self._log.info("chronyd is told the time", socket=str(self.path))
