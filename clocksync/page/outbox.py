"""The page on which a clock service leaves messages to send (``fabric/clock_outbox.h``)."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from clocksync.page.latch import Kind, LatchFile, seal

SIZE: Final = 32
"""Of a message."""
MOST: Final = 8
"""Messages for all paths; each link may have one more, for its own."""
LINKS: Final = 32
KIND: Final = Kind("clock-outbox", magic=0x44574346, version=2, record=16 + (MOST + LINKS) * SIZE)


class OutboxPage:
    """Where the prober of this host finds what it is to tell."""

    def __init__(self, directory: Path) -> None:
        """Take over the page that is there, or make one; ``directory``: the prober's.

        Raises:
            OSError: it cannot be written.
        """
        self._file = LatchFile(KIND, directory, _record([], {}))

    def write(self, messages: Sequence[bytes], links: Mapping[int, bytes] | None = None) -> None:
        """Have these told, from now on and for a second.

        Args:
            messages: at most `MOST`, on all paths.
            links: one more for the paths of some links, by the prober's index.
        """
        self._file.write(_record(messages, links or {}))

    def close(self) -> None:
        """Let go of it; the prober stops telling after a second."""
        self._file.close()


def _record(messages: Sequence[bytes], links: Mapping[int, bytes]) -> bytes:
    if len(messages) > MOST:
        raise ValueError(f"{len(messages)} messages, not {MOST} at most")
    data = b"".join(messages).ljust(MOST * SIZE, b"\0")
    data += b"".join(links.get(index, bytes(SIZE)) for index in range(LINKS))
    return seal(struct.pack("<QQ", 0, time.monotonic_ns()) + data)
