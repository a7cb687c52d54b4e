"""Begins, renews and ends the connection to the control fabric, as the configuration says.

Loads nothing of it while there is no ``[broker]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fabricd.config.loader import Config
from fabricd.config.tables import PeerTable

if TYPE_CHECKING:
    from fabricd.escalate.outbox import StoreThread
    from fabricd.escalate.service import Escalation
    from fabricd.runtime.host import Host


def known_peers(config: Config) -> tuple[PeerTable, ...]:
    """The hosts that an earlier fabricd found over the broker, if that is how they are found."""
    if config.broker is None or config.peers:
        return ()
    from fabricd.escalate.peers import PEERS_FILE, load

    return load(Path(config.paths.state_dir) / PEERS_FILE)


class EscalationSlot:
    """Holds the one `Escalation` of a daemon, or none."""

    def __init__(self, host: Host, failed: Callable[[str], None]) -> None:
        """Args: ``failed`` is called with the reason when it ends by itself."""
        self.now: Escalation | None = None
        self._host, self._failed = host, failed
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._thread: StoreThread | None = None

    def start(self) -> None:
        """Begin, if there is a broker. Raises ``OSError``: the job socket cannot be bound."""
        if self._host.config.broker is None:
            return
        from fabricd.escalate.outbox import StoreThread
        from fabricd.escalate.page_fences import PageFences
        from fabricd.escalate.service import Escalation

        self._thread = self._thread or StoreThread()
        page = self._host.publisher.page
        escalation = Escalation(self._host, self._thread, (PageFences(page),))
        escalation.open()
        self.now = escalation
        self._task = asyncio.create_task(escalation.run(), name="escalation")
        self._task.add_done_callback(self._ended)

    def configure(self, old: Config, new: Config) -> None:
        """The configuration has changed: begin anew if that concerns us."""
        if _concerns_us(old) == _concerns_us(new):
            return
        before = self._renewing
        self._renewing = asyncio.create_task(self._renew(before))

    async def _renew(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        await self.close()
        try:
            self.start()
        except OSError as error:
            self._failed(f"job socket: {error}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and self._task is task:
            self._failed(f"task escalation ended: {task.exception()!r}")

    async def close(self) -> None:
        """Say goodbye and end."""
        now, task, self.now, self._task = self.now, self._task, None, None
        if now is not None and task is not None:
            await now.goodbye()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _concerns_us(config: Config) -> tuple[object, ...]:
    return config.broker, config.host.name, bool(config.peers), config.probe.port
