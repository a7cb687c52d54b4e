"""How much of the broker one host may fill: no host's retained documents displace another's.

The access list cannot count: a host may write ``host/NAME/job/ANYTHING``, retained. So each
fabric-compute counts what the broker sends it of these topics, well-formed or not. What is beyond
a host's share is dropped unread, cleared at the broker, and counted by host.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import structlog

from telemetry.broker.interface import NotConnectedError

MOST_TOPICS = 1000
"""As `ReplayGuard` has it; of well-behaved hosts `JobRegistry` keeps 128 places."""
MOST_BYTES = 16 << 20
"""Retained of one host's jobs; a document has 512 KiB at most, and some KiB mostly."""
MOST_PENDING_BYTES = 32 << 20
"""Names of topics that wait to be cleared. What is not cleared comes again when we reconnect."""
AT_ONCE = 50
MOST_NAMED = 64
"""Hosts that are named in metrics; what others exceed is counted as ``other``."""
LOG_EVERY_S = 60.0
RETRY_S = 0.5


class HostQuota:
    """What the broker holds of each host's jobs, as far as it was taken. Pure."""

    def __init__(
        self, prefix: str, most_topics: int = MOST_TOPICS, most_bytes: int = MOST_BYTES
    ) -> None:
        self._start = f"{prefix}/host/"
        self._most_topics, self._most_bytes = most_topics, most_bytes
        self._sizes: dict[str, dict[str, int]] = {}
        """Host → topic → bytes."""
        self._bytes: Counter[str] = Counter()

    def host_of(self, topic: str) -> str | None:
        """Whose job's document is on a topic; None: it is no such topic."""
        if not topic.startswith(self._start):
            return None
        host, _, rest = topic[len(self._start) :].partition("/")
        return host if rest.startswith("job/") else None

    def take(self, host: str, topic: str, size: int) -> bool:
        """Take a document of ``size`` bytes; False: it is beyond the host's share.

        One of 0 bytes was cleared. What is refused takes the topic out of what the host has: it
        is to be cleared.
        """
        sizes = self._sizes.setdefault(host, {})
        self._bytes[host] -= sizes.pop(topic, 0)
        fits = len(sizes) < self._most_topics and self._bytes[host] + size <= self._most_bytes
        if size and fits:
            sizes[topic] = size
            self._bytes[host] += size
        if not sizes:
            del self._sizes[host], self._bytes[host]
        return fits or size == 0

    def reset(self) -> None:
        """A new connection: the broker sends what it holds again."""
        self._sizes.clear()
        self._bytes.clear()


class Clearing:
    """Clears what is beyond hosts' shares.

    Attributes:
        cleared: host → documents cleared; at most `MOST_NAMED` hosts, and ``other``.
    """

    def __init__(
        self,
        prefix: str,
        clear: Callable[[Sequence[str]], Awaitable[None]],
        clock: Callable[[], float],
        quota: HostQuota | None = None,
    ) -> None:
        """Args: ``clear`` takes retained messages away, by topics, or raises `NotConnectedError`.

        ``clock``: monotonic seconds.
        """
        self.cleared: Counter[str] = Counter()
        self._quota = quota or HostQuota(prefix)
        self._clear, self._clock = clear, clock
        self._pending: dict[str, str] = {}
        """Topic → host."""
        self._pending_bytes = 0
        self._wake = asyncio.Event()
        self._logged: dict[str, float] = {}
        self._log = structlog.get_logger()

    def admits(self, topic: str, size: int) -> bool:
        """Whether a message is within its host's share; else it will be cleared."""
        host = self._quota.host_of(topic)
        if host is None or self._quota.take(host, topic, size):
            return True
        if topic not in self._pending and self._pending_bytes < MOST_PENDING_BYTES:
            self._pending[topic] = host
            self._pending_bytes += len(topic)
            self._wake.set()
        return False

    def reset(self) -> None:
        """The connection is another one: what is beyond a share comes again."""
        self._quota.reset()
        self._pending.clear()
        self._pending_bytes = 0

    async def run(self) -> None:
        """Clear, a few topics at a time: others of the event loop have their turns."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                now = list(itertools.islice(self._pending.items(), AT_ONCE))
                try:
                    await self._clear([topic for topic, _ in now])
                except NotConnectedError:  # not yet, or no more: then `reset` forgets them
                    await asyncio.sleep(RETRY_S)
                    continue
                self._count([host for _, host in now])
                for topic, _ in now:
                    if self._pending.pop(topic, None) is not None:
                        self._pending_bytes -= len(topic)
                await asyncio.sleep(0)

    def _count(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            known = host in self.cleared or len(self.cleared) < MOST_NAMED
            self.cleared[host if known else "other"] += 1
        now = self._clock()
        for host in sorted(set(hosts)):
            if now - self._logged.get(host, -LOG_EVERY_S) < LOG_EVERY_S:
                continue
            if len(self._logged) >= 10 * MOST_NAMED:
                self._logged.clear()
            self._logged[host] = now
            self._log.error(
                "a host has filled its share of the broker: what is beyond it is cleared",
                host=host, cleared=self.cleared.get(host, self.cleared["other"]),
            )  # fmt: skip
