"""Has those hosts probed whose documents are at the broker."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from fabricd.escalate.address_owners import Conflict
from fabricd.escalate.peers import PEERS_FILE, PeerDirectory, load_proven
from fabricd.escalate.refusals import Refusals
from fabricd.runtime.host import Host
from telemetry.events import EventKind
from telemetry.messages.documents import HostDocument, HostStatus, parse
from telemetry.messages.envelope import Message
from telemetry.messages.topics import Kind
from telemetry.service.durable import replace_text

HOSTS = (Kind.HOST_DOCUMENT, Kind.HOST_STATUS)
MOST_NAMED = 5
MOST_CONFLICTS = 64
"""Pairs of hosts that are named in the timeline and in metrics."""
APPLY_NS = 10**9
"""Between two changes of what is probed: the documents of a whole cluster come at once."""


class Discovery:
    """Told of documents and statuses of all hosts; changes the host's probing once a second."""

    def __init__(self, host: Host, refusals: Refusals) -> None:
        config = host.config
        self._host, self._refusals = host, refusals
        self._file = Path(config.paths.state_dir) / PEERS_FILE
        self._directory = PeerDirectory(
            config.host.name, config.probe.port, config.peers,
            config.probe.networks, load_proven(self._file),
        )  # fmt: skip
        self.conflicts: tuple[Conflict, ...] = ()
        """Hosts that name the same addresses: the first `MOST_CONFLICTS` pairs."""
        self._changed = self._answered = False
        self._next_ns = self._ask_ns = time.monotonic_ns() + APPLY_NS
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
        if now >= self._ask_ns:
            self._ask_ns = now + APPLY_NS
            self._answered |= self._directory.answered(self._answers())
        if not (self._changed or self._answered) or now < self._next_ns:
            return
        answered, self._changed, self._answered = self._answered, False, False
        self._next_ns = now + APPLY_NS
        peers = self._directory.peers(now)
        self._tell_conflicts()
        self._host.detectors.localization.open_addresses = self._directory.open()
        self._say(
            "addresses that are not probed, for they are in none of [probe] networks",
            self._directory.outside,
        )
        if peers != self._host.config.peers:
            self._log.info("peers", hosts=len(peers), before=len(self._host.config.peers))
            self._host.discover(peers)
        elif not answered:
            return
        before = self._storing
        text = self._directory.stored(peers)
        self._storing = asyncio.create_task(self._store(before, text))

    def _answers(self) -> list[tuple[int, str]]:
        """Where the prober has authenticated answers from: number of the host, address."""
        rows = self._host.prober.tables.rows(recent=True) or ()
        return [(row.host_id, row.address) for row in rows if row.established]

    def _tell_conflicts(self) -> None:
        """A row in the timeline for each pair of hosts that contradict each other, or no more."""
        before = {(one.host, one.other): one for one in self.conflicts}
        self.conflicts = self._directory.conflicts[:MOST_CONFLICTS]
        now = {(one.host, one.other): one for one in self.conflicts}
        for pair, one in now.items():
            known = before.get(pair)
            if known is not None and known.answered == one.answered:
                continue
            self._host.events.record(
                EventKind.ADDRESS, _in_words(one),
                host=one.host, other=one.other, addresses=one.addresses, address=one.example,
                answered=one.answered, conflict=True,
            )  # fmt: skip
        for host, other in sorted(before.keys() - now.keys()):
            self._host.events.record(
                EventKind.ADDRESS, f"{host} and {other} name no address in common any more",
                host=host, other=other, conflict=False,
            )  # fmt: skip

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


def _in_words(conflict: Conflict) -> str:
    more = conflict.addresses - 1
    what = conflict.example + (f" and {more} more addresses" if more else "")
    answered = conflict.answered
    who = f"{answered} answers there" if answered else "neither has answered there"
    return f"{conflict.host} and {conflict.other} both name {what}: {who}"
