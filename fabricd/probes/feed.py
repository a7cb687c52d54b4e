"""Keeps the connection to the prober: configure, subscribe, map the ring, start again when lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from fabricd.probes.client import ProbeConfig, ProberClient, ProberError, ProberGoneError
from fabricd.probes.records import (
    EventRecord,
    LinkRow,
    MtuRow,
    PathRow,
    RingHeader,
)
from fabricd.probes.ring import RingError, RingReader

RETRY_S = 0.25
REFUSED_RETRY_S = 5.0
STALE_NS = 1_000_000_000
"""A prober beats every 100 ms; one silent for this long is dead or stopped."""

Row = TypeVar("Row", LinkRow, PathRow)
Woken = Callable[[], None]
Told = Callable[[str, dict[str, int]], None]


class ProberFeed:
    """The prober as the daemon sees it.

    Attributes:
        incarnation: of the prober in use; 0: none yet.
        restarts: new incarnations seen since the daemon's start.
        refused: corrupt records and rows of all rings read so far.
        refusal: why the prober does not take the configuration; empty: it does, or there is none.
    """

    def __init__(self, run_dir: Path) -> None:
        self.incarnation = 0
        self.restarts = 0
        self.refusal = ""
        self.reader: RingReader | None = None
        self._directory = run_dir / "prober"
        self._config: ProbeConfig | None = None
        self._given = asyncio.Event()
        self._dirty = False
        self._epoch = 0
        self._refused = 0
        self._rdma_events: list[EventRecord] = []
        self._connected = False
        self._client: ProberClient | None = None
        self._no_views = 0  # the incarnation of a prober that is too old to be asked
        self._no_mtu = 0  # likewise
        self._log = structlog.get_logger()

    def close(self) -> None:
        """Release the ring."""
        if self.reader is not None:
            self.reader.close()

    @property
    def refused(self) -> int:
        """Records and rows that made no sense."""
        return self._refused + (self.reader.corrupt if self.reader else 0)

    @property
    def epoch(self) -> int:
        """Configuration epoch that rows and records must have."""
        return self._epoch

    def configure(self, config: ProbeConfig) -> None:
        """Use another configuration as soon as possible."""
        self._config = config
        self._given.set()
        self._dirty = True
        self._epoch = 0  # Rows of the old configuration are no answer any more.
        if self._client is not None:
            self._client.nudge()

    @property
    def configured(self) -> bool:
        """Whether there is anything to ask of the prober."""
        return self._config is not None

    def header(self) -> RingHeader | None:
        """The ring's header; None when there is no prober, or it no longer beats."""
        if self.reader is None:
            return None
        try:
            header = self.reader.header()
        except RingError:
            self._refused += 1
            return None
        age = time.monotonic_ns() - header.heartbeat_ns
        return header if header.running and age < STALE_NS else None

    def take_rdma_events(self) -> list[EventRecord]:
        """Records of RDMA links among those that `events` read since the last call."""
        taken, self._rdma_events = self._rdma_events, []
        return taken

    def events(self) -> list[EventRecord]:
        """New records of the present configuration, but for those of RDMA links."""
        if self.reader is None or self._config is None or not self._epoch:
            return []  # What there is by then is left for when the epoch is known.
        try:
            records = self.reader.events()
        except RingError:
            self._refused += 1
            return []
        out = []
        for record in records:
            if record.config != self._epoch:
                continue
            link, links = getattr(record, "link", 0), len(self._config.links)
            if link < links:
                out.append(record)
            elif link < links + len(self._config.rdma):
                self._rdma_events.append(record)
            else:
                self._refused += 1
        return out

    def links(self) -> list[LinkRow] | None:
        """Link rows by index; None when the prober does not live or has another configuration."""
        return self._rows(lambda reader: reader.links(), lambda config: len(config.links))

    def rdma_links(self) -> list[LinkRow]:
        """Rows of the RDMA links, in the order of the configuration; empty as for `rdma_paths`."""
        rows = self._rows(
            lambda reader: reader.links(rdma=True), lambda c: len(c.links) + len(c.rdma)
        )
        return [row for row in rows or () if row.rdma]

    def paths(self) -> list[PathRow] | None:
        """Path rows by index; None as for `links`."""
        return self._rows(lambda reader: reader.paths(), lambda config: len(config.paths))

    def all_paths(self) -> tuple[list[PathRow], list[PathRow]] | None:
        """Rows of the UDP paths, and of the RDMA paths; None as for `links`.

        The second are none where the prober is too old for RDMA probes.
        """
        config = self._config
        if config is None or not config.rdma:
            rows = self.paths()
            return None if rows is None else (rows, [])
        count, more = len(config.paths), len(config.rdma_paths())
        header = self.header()
        if header is None or header.rdma_path_count != more:
            rows = self.paths()
            return None if rows is None else (rows, [])
        rows = self._rows(lambda reader: reader.paths(rdma=True), lambda _: count + more)
        return None if rows is None else (rows[:count], rows[count:])

    async def views(self) -> list[tuple[int, int, int]]:
        """What the peers say they see (`fabricd.detect.neighbours`); empty without a prober."""
        client = self._client
        if client is None or self._no_views == self.incarnation:
            return []
        try:
            return await client.views()
        except ProberGoneError:
            return []
        except ProberError as error:
            self._no_views = self.incarnation
            self._log.warning("no view of the neighbours", reason=str(error))
            return []

    @property
    def without_mtu(self) -> bool:
        """Whether the prober in use refused to tell of large packets."""
        return self._no_mtu != 0 and self._no_mtu == self.incarnation

    async def mtu(self) -> list[MtuRow] | None:
        """Large packets of all paths, by index; None without a prober, or with an older one."""
        client, epoch = self._client, self._epoch
        if client is None or not epoch or self.without_mtu:
            return None
        try:
            rows = await client.mtu()
        except ProberGoneError:
            return None
        except ProberError as error:
            self._no_mtu = self.incarnation
            self._log.warning("no large probes", reason=str(error))
            return None
        config = self._config
        whole = config is not None and len(rows) == len(config.paths) and epoch == self._epoch
        return rows if whole else None

    def _rows(
        self, read: Callable[[RingReader], list[Row]], wanted: Callable[[ProbeConfig], int]
    ) -> list[Row] | None:
        header = self.header()
        if header is None or self.reader is None or self._config is None:
            return None
        if header.config_epoch != self._epoch:
            return None
        try:
            rows = read(self.reader)
        except RingError:
            self._refused += 1
            return None
        # Torn or corrupt rows are left out by the reader: then there is no whole table now.
        return rows if [row.index for row in rows] == list(range(wanted(self._config))) else None

    async def run(self, woken: Woken, told: Told) -> None:
        """Serve until cancelled; a prober is left alone until there is a configuration for it.

        Args:
            woken: called when new events may be there, the prober vanished or is back.
            told: called with what happened to the prober, and its numbers.
        """
        await self._given.wait()
        said = ""
        while True:
            pause = RETRY_S
            failed: list[Exception] = []
            noticed = partial(self._noticed, woken, failed)
            try:
                client = await ProberClient.connect(self._directory / "ctl.sock", noticed)
                try:
                    await self._serve(client, failed, woken, told)
                finally:
                    self._client = None
                    await client.close()
            except ProberGoneError as error:
                text = f"prober gone: {error}"
            except (ProberError, RingError, OSError) as error:
                text, pause = f"prober refused: {error}", REFUSED_RETRY_S
            else:
                text = "prober closed"
            if self._connected:
                self._connected = False
                told("vanished", {})
                said = ""
            if text != said:
                said = text
                self._log.warning("no prober", reason=text)
            woken()
            await asyncio.sleep(pause)

    async def _serve(
        self, client: ProberClient, failed: list[Exception], woken: Woken, told: Told
    ) -> None:
        await self._configure(client)
        self._open(told)
        await client.subscribe()
        self._client, self._connected = client, True
        woken()
        while True:
            await client.wait(0.25)
            if failed:
                raise failed.pop()
            changed = self._dirty
            if changed:
                await self._configure(client)
            if self.reader is None or self.reader.replaced():
                self._open(told)
                changed = True
            if changed:
                woken()

    def _noticed(self, woken: Woken, failed: list[Exception]) -> None:
        """In the socket's callback, where nobody would hear of what goes wrong with the prober."""
        try:
            woken()
        except (ProberError, RingError, OSError) as error:
            failed.append(error)
            if self._client is not None:
                self._client.nudge()

    async def _configure(self, client: ProberClient) -> None:
        if (config := self._config) is None:
            raise ProberError("no configuration yet")
        self._dirty = False
        try:
            epoch = await client.configure(config)
        except ProberGoneError:
            raise
        except ProberError as error:
            self.refusal = str(error)
            raise
        self.refusal = ""
        self._log.info(
            "prober configured", epoch=epoch, links=len(config.links), paths=len(config.paths)
        )
        # Another one may have come meanwhile (`_dirty` again): rows of this one's are none of its.
        if config is self._config:
            self._epoch = epoch

    def _open(self, told: Told) -> None:
        reader = RingReader(self._directory / "ring")
        if self.reader is not None:
            self._refused += self.reader.corrupt
            self.reader.close()
        self.reader = reader
        header = reader.header()
        if header.incarnation != self.incarnation:
            old, self.incarnation = self.incarnation, header.incarnation
            self.restarts += old != 0
            what = "restarted" if old else "appeared"
            told(what, {"pid": header.pid, "incarnation": header.incarnation})
            if not header.realtime:
                self._log.warning("the prober runs without SCHED_FIFO: verdicts may be later")
