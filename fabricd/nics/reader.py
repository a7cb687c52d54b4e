"""Reads what one link's NIC counts and measures. Thin; called in a thread, may block.

Two readers a link: counters each second, and what changes slowly or is slow to read (module, PCIe,
devlink, speed) each at its own period. A reader shares nothing that can hang with another link's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fabricd.links.ibports import ports_of
from fabricd.nics.speed import rate
from telemetry.counters.devlink import HealthSource, SharedDump
from telemetry.counters.ethnl import LinkState
from telemetry.counters.identity import driver_and_bus, permanent_address
from telemetry.counters.linkstate import DownReason
from telemetry.counters.optics.reading import Module
from telemetry.counters.optics.source import ModuleSource
from telemetry.counters.pci import PciSource
from telemetry.counters.polled import RETRY_NS
from telemetry.counters.sweep import Sweep
from telemetry.counters.tracker import Step, Tracker
from telemetry.counters.types import Bin, Sample, Source, Status

S = 10**9
PCI_NS, DEVLINK_NS, SPEED_NS, RATE_NS = 10 * S, 30 * S, 60 * S, 10 * S
SPEED_ALIKE = 3
"""Readings of the speed that agree: the book may leave out the first, and wants two."""
ABSENT = 3
"""What was off twice in a row is looked for so many times as seldom: it may be put in, but to ask
costs as much as an answer."""
LOOK_NS = 60 * S
"""A link without a verbs port is looked up so often though devices are there: their GID tables name
an interface once that has an address, and a bond may be made after the start."""
SPEED_UNKNOWN = 65535
"""Of a driver that knows no speed and has 16 bits for it, as ethtool(8) takes it."""
_SYSFS = Path("/sys/class")


@dataclass(frozen=True, slots=True)
class Reading:
    """One link, read once by one of its readers.

    Attributes:
        kind: ``counters`` or ``slow``.
        at_ns: CLOCK_MONOTONIC, before it was read.
        steps: canonical counter → what it did since it was last read.
        reborn: counters of a device that is another one than before: old evidence is void.
        statuses: of the sources that this reader has.
        gauges: source → canonical gauge → value now, of all sources that were read; empty for one
            that is off.
        flags: alarms and warnings of the module, if ``module`` is among them.
        bins: increases of the FEC histogram.
        module: vendor, part and serial number; empty: not known.
        limits: the maker's low alarm of received light (W), high warning of temperature (°C).
        error: why it could not be read at all; empty: it was.
        down: why the port has no carrier; None: it has, or its driver does not say.
    """

    netdev: str
    kind: str
    at_ns: int
    steps: Mapping[str, Step] = field(default_factory=dict)
    reborn: frozenset[str] = frozenset()
    statuses: Sequence[Status] = ()
    gauges: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    bins: tuple[Bin, ...] = ()
    module: str = ""
    limits: tuple[float | None, float | None] | None = None
    error: str = ""
    down: DownReason | None = None
    device: str = ""
    """Its address on the bus; this and the next three: empty where not known."""
    rdma_device: str = ""
    driver: str = ""
    hardware: str = ""
    """The address that it was made with."""


class Reader(Protocol):
    """What a thread needs of a reader."""

    netdev: str
    kind: str

    def read(self, now_ns: int) -> Reading | None:
        """Read what is due; None: nothing. May raise anything: the thread survives it."""
        ...

    def close(self) -> None: ...  # noqa: D102


class CounterReader:
    """All counters of a link; finds the verbs port behind it, also one that appears later."""

    kind = "counters"

    def __init__(
        self, netdev: str, *, device: str = "", period_ns: int = S, sysfs: Path = _SYSFS
    ) -> None:
        """Args: ``device``: the verbs device behind it, empty: find it; ``sysfs``: ``class``."""
        self.netdev = netdev
        self._named = {netdev: device} if device else {}
        self._period_ns, self._sysfs = period_ns, sysfs
        self._sweep: Sweep | None = None
        self._port: tuple[str, int] | None = None
        self._looked_ns = -RETRY_NS
        self._seen: object = None
        self._searched_ns = 0
        self._driver, self._bus, self._hardware = "", "", ""
        self._rate_due = 0
        self._link_state: LinkState | None = None

    def read(self, now_ns: int) -> Reading:
        """See `Reader.read`."""
        port = self._find(now_ns)
        if self._sweep is None or port != self._port:
            self.close()
            self._port = port
            self._sweep = Sweep.open(
                {self.netdev: port}, sysfs=self._sysfs / "infiniband", period_ns=self._period_ns
            )
        found = self._sweep.read(now_ns)[self.netdev]
        statuses = list(found.statuses)
        if port is None:
            statuses.append(Status("verbs", self.netdev, on=False, reason="no verbs port"))
        gauges: dict[str, Mapping[str, float]] = {}
        if now_ns >= self._rate_due:
            self._rate_due = now_ns + RATE_NS
            bits = None if port is None else _rate(self._sysfs, *port)
            gauges["rate"] = {} if bits is None else {"rate": bits}
        return Reading(
            self.netdev,
            self.kind,
            now_ns,
            gauges=gauges,
            steps=found.steps,
            reborn=frozenset(
                name for update in found.updates if update.reborn for name in update.sample.values
            ),
            statuses=statuses,
            bins=tuple(
                each for update in found.updates for each in update.histograms.get("fec_errors", ())
            ),
            down=self._down(),
            device=self._bus,
            rdma_device=port[0] if port else "",
            driver=self._driver,
            hardware=self._hardware,
        )

    def close(self) -> None:
        """Close its sockets."""
        if self._sweep is not None:
            self._sweep.close()
        self._sweep = None
        if self._link_state is not None:
            self._link_state.close()
        self._link_state = None

    def _down(self) -> DownReason | None:
        """Why there is no carrier. Nobody asks a port that has one, or that is taken down."""
        if _text(self._sysfs / "net" / self.netdev / "carrier").strip() != "0":
            return None
        if self._link_state is None:
            self._link_state = LinkState(self.netdev)
        return self._link_state.reason()

    def _find(self, now_ns: int) -> tuple[str, int] | None:
        """The first verbs port behind the link; asked again when devices came or went.

        While there is none, it is asked again every `LOOK_NS`.
        """
        if now_ns - self._looked_ns < RETRY_NS:
            return self._port
        self._looked_ns = now_ns
        self._driver, self._bus = driver_and_bus(self.netdev)
        self._hardware = permanent_address(self.netdev)
        try:
            devices = sorted(x.name for x in (self._sysfs / "infiniband").iterdir())
        except OSError:
            devices = []
        born = _inode(self._sysfs / "net" / self.netdev)
        known = self._port is not None or not devices or now_ns - self._searched_ns < LOOK_NS
        if (seen := (devices, born)) == self._seen and known:
            return self._port
        self._seen, self._searched_ns = seen, now_ns
        found = ports_of([self.netdev], devices, sysfs=self._sysfs, named=self._named)
        ports = found.get(self.netdev, ())
        return (ports[0].device, ports[0].number) if ports else None


class SlowReader:
    """Module, PCIe function, devlink health and speed of a link."""

    kind = "slow"

    def __init__(
        self,
        netdev: str,
        *,
        module_ns: int = 30 * S,
        offset_ns: int = 0,
        sysfs: Path = _SYSFS,
        dump: SharedDump | None = None,
        module: Source | None = None,
        settlings: Callable[[], int] = lambda: 0,
    ) -> None:
        """Not read before ``offset_ns`` have passed: all links at once would be a burst.

        ``module``: a source of module readings; default: the one in the cage.
        ``settlings``: how often the link came to have carrier and an active port; must not block.
        """
        self.netdev = netdev
        net = sysfs / "net"
        self._net, self._offset_ns = net, offset_ns
        self._module: Source = module or ModuleSource(netdev, sysfs=net)
        shared = dump or SharedDump()
        sources: list[tuple[Source, int]] = [
            (self._module, module_ns),
            (PciSource(netdev, sysfs=net), PCI_NS),
            (HealthSource(netdev, sysfs=net, opener=lambda: shared), DEVLINK_NS),
        ]
        self._sources = sources
        self._due: dict[int, int] = {}
        self._off: dict[int, int] = {}
        """Times in a row."""
        self._tracker = Tracker()
        self._settlings = settlings
        self._speed_due = 0
        self._speed: tuple[float | None, tuple[str, int]] = (None, ("", 0))
        self._speed_alike = 0
        """So many readings said that, one after the other."""

    def read(self, now_ns: int) -> Reading | None:
        """See `Reader.read`."""
        if not self._due:
            first = now_ns + self._offset_ns
            self._due = dict.fromkeys(range(len(self._sources)), first)
        gauges: dict[str, Mapping[str, float]] = {}
        samples: list[Sample] = []
        for at, (source, period_ns) in enumerate(self._sources):
            if now_ns < self._due[at]:
                continue
            self._due[at] = now_ns + period_ns
            sample = source.read(now_ns)
            self._off[at] = 0 if source.status.on else self._off.get(at, 0) + 1
            if self._off[at] > 1:
                self._due[at] = now_ns + ABSENT * period_ns
            gauges[source.status.source] = sample.gauges if sample is not None else {}
            if sample is not None:
                samples.append(sample)
        # A link trains when its carrier comes, and counts once its port is active: from then on it
        # is asked until readings agree. Not each time: the kernel reads the speed under a lock that
        # others wait for.
        changes = (_text(self._net / self.netdev / "carrier_changes"), self._settlings())
        if now_ns >= self._speed_due or changes != self._speed[1]:
            said = (_speed(self._net / self.netdev / "speed"), changes)
            self._speed_alike = self._speed_alike + 1 if said == self._speed else 1
            self._speed = said
            self._speed_due = now_ns + (SPEED_NS if self._speed_alike >= SPEED_ALIKE else 0)
            gauges["speed"] = {} if said[0] is None else {"speed": said[0]}
        if not gauges:
            return None
        updates = [self._tracker.take(sample) for sample in samples]
        module = next((s for s in samples if s.source == "module"), None)
        return Reading(
            self.netdev,
            self.kind,
            now_ns,
            steps={name: step for update in updates for name, step in update.steps.items()},
            reborn=frozenset(n for u in updates if u.reborn for n in u.sample.values),
            statuses=[source.status for source, _ in self._sources],
            gauges=gauges,
            flags=module.flags if module else frozenset(),
            module=_identity(module.info) if module else "",
            limits=_limits(getattr(self._module, "module", None)) if module else None,
        )

    def close(self) -> None:
        """Close its sources."""
        for source, _ in self._sources:
            source.close()


def _identity(info: Mapping[str, str]) -> str:
    return " ".join(info[key] for key in ("vendor", "part", "serial") if info.get(key))


def _limits(module: Module | None) -> tuple[float | None, float | None]:
    if module is None:
        return None, None
    light, heat = module.thresholds.get("rx_power"), module.thresholds.get("temperature")
    return (light.low_alarm if light else None, heat.high_warning if heat else None)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _rate(sysfs: Path, device: str, number: int) -> float | None:
    """Bit/s of a verbs port; None when it has no rate."""
    return rate(_text(sysfs / "infiniband" / device / "ports" / str(number) / "rate"))


def _speed(path: Path) -> float | None:
    """Bit/s; None when the kernel does not know."""
    try:
        megabits = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return megabits * 1e6 if megabits > 0 and megabits != SPEED_UNKNOWN else None
