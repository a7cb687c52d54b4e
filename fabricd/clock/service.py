"""The clock service of a host: the prober's samples in, the clock page and the messages out.

Ten times a second it takes what the prober has sampled, hears the neighbours' messages, fits a line
to some of the paths (`fabricd.clock.fit_scheduler`), takes one step in the mesh
(`clocksync.mesh.host`) and publishes.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from time import monotonic_ns

import structlog

from clocksync.mesh.codec import ClockMessageError, decode, encode
from clocksync.mesh.ecmp_rerouter import EcmpRerouter
from clocksync.mesh.host import MeshHost
from clocksync.mesh.messages import ClockMessage, Origin, Phc, Trace, link_id, phc
from clocksync.mesh.model import HostRules
from clocksync.mesh.trace import TaiKeeper
from clocksync.page.clock_page import NOTHING, ClockPage, Line, State
from clocksync.page.outbox import OutboxPage
from clocksync.page.ports import PortPage
from clocksync.page.tai_page import NO_TAI, TaiLine, TaiPage
from clocksync.pair.model import SECOND, Rules
from fabricd.clock.boot import Boot, BootError, load, still, store, this_boot
from fabricd.clock.chrony import Chrony
from fabricd.clock.clocks import Clocks, RawClocks
from fabricd.clock.fit_scheduler import DEAF_NS, FitScheduler
from fabricd.clock.paths import ClockPath, PathTable
from fabricd.clock.phc import Phcs
from fabricd.clock.ptp import PtpEdge
from fabricd.clock.restart_handover import RestartHandover
from fabricd.clock.samples import Exchanged
from fabricd.clock.status_reader import NAME
from fabricd.clock.status_writer import chrony, ptp, status_document, tai
from telemetry.service import durable

STEP_S = 0.1
JUDGE_NS = SECOND
FOUND_NS = 600 * SECOND
"""A peer takes less to boot; the page has few places."""
SUSPENDED_NS = 10_000_000
"""The host slept when CLOCK_BOOTTIME has gained so much on CLOCK_MONOTONIC."""
LOOKS = 5
UNKNOWN = Boot("?", 0)
"""No boot has this name."""


class ClockService:
    """One host's. `tick` ten times a second; not for two threads at once."""

    def __init__(
        self, host: int, run_dir: Path, *, priority: int, clocks: Clocks | None = None,
        rules: HostRules | None = None, phcs: Phcs | None = None, rate: float = 0.0,
        edge: PtpEdge | None = None, may_move: bool = True, paths: Rules | None = None,
        chrony: Chrony | None = None,
    ) -> None:  # fmt: skip
        """Open the pages.

        Args:
            host: id on the wire (`fabricd.probes.client.host_id`).
            run_dir: the host's.
            priority: 0 to 254, the smaller the sooner it is reference; 255: never.
            clocks: default: the host's own.
            rules: of the mesh.
            phcs: NICs' clocks; default: this host's own.
            rate: of fabric time over the raw clock as it was kept; that of this boot's page is
                better.
            edge: of a host with PTP masters.
            may_move: asymmetric paths are probed from other source ports.
            paths: rules of the paths' estimators.
            chrony: of a host whose chronyd is to be told UTC.

        Raises:
            OSError: a page cannot be written.
        """
        self.clocks: Clocks = clocks or RawClocks()
        self.page = ClockPage(run_dir)
        self._outbox = OutboxPage(run_dir / "prober")
        self._ports = PortPage(run_dir / "prober")
        self._found = dict(self._ports.held) if may_move else {}
        """Ports that an earlier service had asked for."""
        self._found_end: int | None = None
        """Until then their paths may come; our clock."""
        self._directory = run_dir
        # Epochs never come again: whoever holds an old page sees that time is another.
        epoch = max(time.time_ns() // SECOND, self.page.last.epoch + 1 if self.page.last else 0)
        now = self.clocks.now()
        self._log = structlog.get_logger()
        # One look may come out too low, which later would pass for sleep.
        self._asleep_ns = max(_asleep() for _ in range(LOOKS))
        self._tai_page = TaiPage(run_dir)
        found, before = self._believed(now)
        self._handover = RestartHandover(found, now)
        self.core = MeshHost(host, priority, now, epoch, rules, self._handover.rate(rate))
        self.core.mover = EcmpRerouter(may_move=may_move)
        self.edge, self.chrony = edge, chrony
        self.tai = TaiKeeper(host, before if before.line.raw_ns <= now else NO_TAI, epoch=epoch)
        self.refused = 0
        """Messages that made no sense."""
        self.line: Line | None = None
        """As published last."""
        self.phcs = phcs or Phcs()
        self.table = PathTable(
            run_dir, lambda path: self.core.drop(path.number), self._rerouted, paths
        )
        self.fit_scheduler = FitScheduler(self.core, self.phcs, self.clocks)
        self._judge_ns = 0
        self._said = State.UNSYNCED

    def tick(self) -> None:
        """Take what came, step, publish."""
        asleep = _asleep()
        if asleep - self._asleep_ns > SUSPENDED_NS:
            self._forget("the host slept")
            # Before the file says that the pages are of after it.
            self._unsay()
            asleep = max(_asleep() for _ in range(LOOKS))
            self._remember(this_boot(asleep))
        self._asleep_ns = max(asleep, self._asleep_ns)
        came = self.table.read(self.clocks.now())
        now = self.clocks.now()
        if self.core.went_back(now):
            self._forget("its clock went back")
        for index, each in came.items():
            self._take(self.table.by_index[index], each, now)
        stamping = [path for path in self.table.by_index.values() if path.hardware[0]]
        self.phcs.read({path.phc for path in stamping if path.phc is not None}, now)
        if self.fit_scheduler.fit(self.table.by_index.values(), now):
            self._forget("its clock was stepped")
        self.glance()
        now = self.clocks.now()
        paths = self.table.all()
        software = not paths or not all(path.hardware[0] for path in paths)
        self.core.stamps_off_ns = self.table.clock_read_ns / 2 if software else 0.0
        line = self.core.step(now, self._handover.wall_ns(now, time.time_ns()))
        published = self._handover.cross(line, now, alone=not self.core.status.neighbours)
        if published is not None:
            self.line = line = published
            self.page.write(line)
        # After the step, and with nothing of it: no master's time moves fabric time.
        own = None if self.edge is None else self.edge.tick(self.clocks)
        now = self.clocks.now()
        said = self.tai.step(now, self.core.seen(now), own)
        self._tai_page.write(said)
        if self.chrony is not None:
            self.chrony.step(said, self.clocks, now)
        if now >= self._judge_ns:
            self._judge_ns = now + JUDGE_NS
            self._judge(now)
        messages = [*self.core.messages(), *self.tai.messages()]
        self._outbox.write(messages, self._phc_messages(stamping, now))
        if self.core.status.state is not self._said:
            self._said = self.core.status.state
            self._log.info(
                "clock", state=self._said.name.lower(), reference=f"{line.reference:08x}",
                bound_ns=round(line.bound_ns),
            )  # fmt: skip

    def glance(self) -> None:
        """Between steps too: whether the reference has fallen silent on all paths to it."""
        held = self.core.election.reference
        if held is None or self.core.election.is_reference:
            return
        silence = self.table.silent(held.id, monotonic_ns())
        if silence is not None:
            # What it said until then may be passed on a step later.
            self.core.silent(held.id, self.clocks.now() - silence + round(STEP_S * SECOND))

    def close(self) -> None:
        """Let go of all files; the page grows old, and readers see that."""
        self.table.close()
        self.phcs.close()
        if self.edge is not None:
            self.edge.close()
        if self.chrony is not None:
            self.chrony.close()
        self._outbox.close()
        self._tai_page.close()
        self._ports.close()
        self.page.close()

    def store(self) -> None:
        """Leave the document beside the page, for who cannot ask a service."""
        path = self._directory / NAME
        document = status_document(self.core, self.table.all(), self.phcs) | {
            "refused_messages": self.refused,
            "refused_words": self.refused,  # the former name, for one release
            "fits": self.fit_scheduler.fits, "tai": tai(self.tai),
            "ptp": None if self.edge is None else ptp(self.edge, self.clocks.now()),
            "chrony": None if self.chrony is None else chrony(self.chrony),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            durable.replace_text(path, json.dumps(document), sync=False)

    def _believed(self, now: int) -> tuple[Line | None, TaiLine]:
        """What an earlier service left on the pages, as far as it is true over this clock."""
        boot = this_boot(self._asleep_ns)
        line, said = self.page.last, self._tai_page.last
        try:
            then = load(self._directory)
        except (BootError, OSError) as error:
            self._log.warning("of which boot the clock page is is not known", reason=str(error))
            then = UNKNOWN
        found = None if line is None else still(line, then, boot, now)
        tai_line = still(said.line, then, boot, now)
        if line is not None and found is None:
            self._log.warning("the clock page is of another boot, or the host slept")
        if (found, tai_line) != (line, said.line):
            # Before the file says that the pages are of this boot and of after this sleep.
            self._unsay()
            if found is not None:
                self.page.write(found)
            if tai_line is not None:
                self._tai_page.write(said._replace(line=tai_line))
        self._remember(boot)
        return found, NO_TAI if tai_line is None else said._replace(line=tai_line)

    def _unsay(self) -> None:
        """No time is on the pages, until there is one again."""
        self.page.write(NOTHING)
        self._tai_page.write(NO_TAI)

    def _remember(self, boot: Boot) -> None:
        try:
            store(self._directory, boot)
        except OSError as error:
            # What is there is of before: the next service believes too little, not too much.
            self._log.warning("of which boot the clock page is is not kept", reason=str(error))

    def _forget(self, why: str) -> None:
        self._log.warning("clock starts anew", reason=why)
        self.core.stepped(self.clocks.now())
        self.tai.forget()
        if self.edge is not None:
            self.edge.forget()
        if self.chrony is not None:
            self.chrony.anew()
        self._handover.drop()
        self.phcs.anew()
        self._judge_ns, self._found_end = 0, None
        for path in self.table.all():
            path.anew()

    def _rerouted(self, path: ClockPath) -> None:
        path.deaf_ns = self.clocks.now() + DEAF_NS
        self.core.rerouted(path.number)

    def _judge(self, now: int) -> None:
        """Paths whose two ways differ: name them, and have them probed from another port."""
        # Packets over RDMA leave from a queue pair, which no port moves.
        paths = {path.number: path for path in self.table.all() if not path.rdma}
        mover = self.core.mover
        self.core.taken = {key: taken for key, taken in self.core.taken.items() if key in paths}
        for number in [number for number in mover.paths if number not in paths]:
            mover.drop(number)
        for number, path in paths.items():
            mover.watch(number, path.mark, self._found.pop(path.ends, 0))
            self.core.taken[number] = path.taken
        for change in self.core.judge(now):
            key = paths[change.path].key
            self._log.info(
                "clock path", device=key.netdev, peer=key.address, host=f"{key.host:08x}",
                state=change.state.value, port=change.port or None,
                surplus_ns=None if change.surplus_ns is None else round(change.surplus_ns),
            )  # fmt: skip
        if not paths:
            return  # the prober is to come: what it was told holds
        self._found_end = self._found_end or now + FOUND_NS
        if now >= self._found_end:
            self._found.clear()
        # Sockets of other ports stamp in software.
        ports = {
            path.ends: 0 if any(path.hardware) else mover.paths[number].port
            for number, path in paths.items()
        }
        self._ports.write({ends: port for ends, port in ports.items() if port} | self._found)

    def _take(self, path: ClockPath, came: Exchanged, now: int) -> None:
        """Hear the messages; packets wait until a line is fitted to them."""
        if came.hardware != path.hardware:
            path.hardware = came.hardware
            path.reset()
            self.core.drop(path.number)
        heard: list[ClockMessage] = []
        for data in came.messages:
            try:
                message = decode(data)
            except ClockMessageError:
                self.refused += 1
                continue
            match message:
                case Phc():
                    path.hear(message)
                case Trace() | Origin():
                    self.tai.hear(message)
                case _:
                    heard.append(message)
        if heard:
            for each in (path, path.beside):
                if each is not None:
                    self.core.hear(each.number, each.key.host, now, *heard)
        if now >= path.deaf_ns:
            path.came.append(came.packets)

    def _phc_messages(self, stamping: list[ClockPath], now: int) -> dict[int, bytes]:
        """What the peers need to know of the NICs' clocks, by link."""
        said: dict[int, bytes] = {}
        for path in stamping:
            source = self.phcs.source(path.phc)
            if source is not None and path.link not in said:
                crossing = source.crossing
                message = phc(link_id(path.address), crossing.generation, crossing.at(now))
                said[path.link] = encode(message)
        return said


def _asleep() -> int:
    """For how long the host has slept since it was booted; never more than that."""
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return boot - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
