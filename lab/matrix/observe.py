"""What a running job says of itself: fabric-perf's rows and the plugin's stats page, read on."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from lab.faults.truth import Row
from lab.node import Node
from lab.services.perf import Perf
from telemetry.statsdir import ProcessPage, StatsDirectory
from telemetry.statspage import StatsEvent, StatsEventKind, StatsPage

_WRITTEN_S = 1.0
"""Far longer than a page takes to be written. One that is never finished is a killed process's."""
_REST_S = 0.005


@dataclass
class Tail:
    """The rows of one rank, read on from where the last look ended."""

    path: Path
    bytes: int = 0
    """Of the collective done so far."""
    iterations: int = 0
    t_ns: int = 0
    """When those two were true."""
    corrupt_bytes: int = 0
    errors: list[Row] = field(default_factory=list)
    marks: list[Row] = field(default_factory=list)
    """Its rows ``start``, ``connected`` and ``closing``."""
    _at: int = 0

    def read(self) -> None:
        """Take in what was written since."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            if row["type"] == "sample":
                self.bytes, self.iterations = row["bytes"], row["iterations"]
                self.t_ns = row["t_ns"]
            elif row["type"] == "iteration":
                self.corrupt_bytes += row["corrupt_bytes"]
            elif row["type"] in {"start", "connected", "closing"}:
                self.marks.append(row)
            elif row["type"] == "error":
                self.errors.append(row)


@dataclass(frozen=True, slots=True)
class Chunks:
    """What one rail of one rank has carried: chunks and bytes of payload, both ways."""

    tx: int
    rx: int
    tx_bytes: int
    rx_bytes: int

    @property
    def moved(self) -> int:
        """Chunks, both ways."""
        return self.tx + self.rx


class RankView:
    """One rank: its host, its process, its rows, its stats page."""

    def __init__(self, perf: Perf, rank: int) -> None:
        self.rank = rank
        self.node: Node = perf.nodes[rank]
        self.process = perf.ranks[rank]
        self.log = perf.log(rank)
        self.tail = Tail(perf.jsonl(rank))
        self.events: list[StatsEvent] = []
        self._directory = StatsDirectory(self.node.run_dir / "stats")

    def _found(self) -> ProcessPage | None:
        """Its page; looks again while pages are left out because they are just being written."""
        deadline = time.monotonic() + _WRITTEN_S
        while True:
            for process in self._directory.scan(time.monotonic_ns()):
                if process.page.pid == self.process.pid:
                    return process
            if not self._directory.report.partial or time.monotonic() > deadline:
                return None
            time.sleep(_REST_S)

    def page(self) -> StatsPage | None:
        """Its stats page, None when it has none (yet, or any more)."""
        found = self._found()
        return None if found is None else found.page

    def read_events(self) -> list[StatsEvent]:
        """All events so far; those that the ring lost between two looks are missing."""
        found = self._found()
        if found is not None:
            self.events += self._directory.new_events(found).events
        return self.events

    def since(self, kind: StatsEventKind, t_ns: int) -> list[StatsEvent]:
        """Events of a kind from then on."""
        return [e for e in self.read_events() if e.kind is kind and e.time_ns >= t_ns]

    def rails(self) -> dict[int, Chunks]:
        """What each rail has carried so far, by number."""
        page = self.page()
        if page is None:
            return {}
        return {
            int(rail.netdev.removeprefix("rail")): Chunks(
                rail.tx_chunks, rail.rx_chunks, rail.tx_bytes, rail.rx_bytes
            )
            for rail in page.rails
        }

    def last_words(self) -> str:
        """The end of its log, for messages."""
        return self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""
