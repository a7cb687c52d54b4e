"""Has those hosts probed whose documents are at the broker."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from fabricd.escalate.peers import PEERS_FILE, PeerDirectory, dump
from fabricd.escalate.refusals import Refusals
from fabricd.runtime.host import Host
from telemetry.messages.documents import HostDocument, HostStatus, parse
from telemetry.messages.envelope import Message
from telemetry.messages.topics import Kind
from telemetry.service.durable import replace_text

HOSTS = (Kind.HOST_DOCUMENT, Kind.HOST_STATUS)
MOST_NAMED = 5
APPLY_NS = 10**9
"""Between two changes of what is probed: the documents of a whole cluster come at once."""


class Discovery:
    """Told of documents and statuses of all hosts; changes the host's probing once a second."""

    def __init__(self, host: Host, refusals: Refusals) -> None:
        config = host.config
        self._host, self._refusals = host, refusals
        self._directory = PeerDirectory(
            config.host.name, config.probe.port, config.peers,
            config.probe.networks,
        )  # fmt: skip
        self._changed = False
        self._next_ns = time.monotonic_ns() + APPLY_NS
        self._file = Path(config.paths.state_dir) / PEERS_FILE
        self._storing: asyncio.Task[None] | None = None
        self._said: dict[str, tuple[str, ...]] = {}
        self._log = structlog.get_logger()

    def received(self, message: Message) -> None:
        """A document or status. Raises ``BadMessageError``; nothing has changed then."""
        owner = message.topic.owner
        if message.topic.kind is Kind.HOST_DOCUMENT:
            self._changed |= self._directory.document(owner, parse(HostDocument, message.data))
        else:
            status = parse(HostStatus, message.data)
            self._directory.status(
                owner, online=status.online, intended=status.intended, now=time.monotonic_ns()
            )

    def cleared(self, host: str) -> None:
        """A host's document was cleared."""
        self._changed |= self._directory.cleared(host)

    def tick(self, now: int) -> None:
        """Apply what has changed; ``now``: CLOCK_MONOTONIC ns."""
        self._changed |= self._directory.leave(now)
        if not self._changed or now < self._next_ns:
            return
        self._changed, self._next_ns = False, now + APPLY_NS
        peers = self._directory.peers()
        self._say(
            "addresses of two hosts: that of the host which had it first is probed",
            self._directory.doubles,
        )
        self._say(
            "addresses that are not probed, for they are in none of [probe] networks",
            self._directory.outside,
        )
        if peers == self._host.config.peers:
            return
        self._log.info("peers", hosts=len(peers), before=len(self._host.config.peers))
        self._host.discover(peers)
        before = self._storing
        self._storing = asyncio.create_task(self._store(before, dump(peers)))

    def _say(self, text: str, those: tuple[str, ...]) -> None:
        """Log ``those``, once until they are others."""
        before, self._said[text] = self._said.get(text, ()), those
        if those != before:
            self._log.warning(text, count=len(those), some=those[:MOST_NAMED])

    async def _store(self, before: asyncio.Task[None] | None, text: str) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        try:
            await asyncio.to_thread(replace_text, self._file, text)
        except OSError as error:
            self._log.error("peers not stored", file=str(self._file), error=error.strerror)
