"""What the readings of the NICs mean: findings, totals, exactness, windows for the forecast.

Pure: readings and ``now`` come in, findings on the engine's links and events go out. What is no
evidence (docs/design/detection.md):

* errors of an interval in which the carrier was away, or that touches one: cables being pulled and
  links that train make them;
* a port's ``link_downed`` that the carrier's own events have told already;
* for a rule of which any event is a fault: what a counter shows that fell. Somebody cleared it, or
  it lost a part; what it shows may be old, and a link goes out by it at once;
* one reading alone of a speed or width below the one before: the next has to say the same;
* readings older than `DROP_NS`: a NIC that does not answer is neither sick nor well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fabricd.detect.rules import (
    LINK_SPEED,
    PCIE_DOWNGRADE,
    PCIE_UPLINK,
    RULES,
    Class,
    CounterJudge,
    Finding,
)
from fabricd.engine import Engine
from fabricd.nics.down_rows import down_rows
from fabricd.nics.module_text import in_words
from fabricd.nics.pcie import PcieDoubts
from fabricd.nics.reader import Reading
from fabricd.nics.speed import LinkSpeed
from fabricd.predict.forecast import Forecast
from fabricd.predict.gather import Gather, Rows
from fabricd.state.model import Link
from fabricd.timeline.rows import event
from telemetry.counters.downs import PortDowns
from telemetry.counters.linkstate import DownReason
from telemetry.counters.types import CounterClass, Status
from telemetry.counters.vocabulary import COUNTERS
from telemetry.events import Event, EventKind, JsonScalar, LinkState

S = 10**9
STALE_NS = 15 * S
DROP_NS = 60 * S
FORECAST_NS = 3600 * S
"""A forecast without a younger one is forgotten."""
AGAIN_NS = {Class.HARD: 0, Class.SOFT: 60 * S, Class.CONGESTION: 600 * S}
"""A finding begins on the timeline once in this time at most: congestion comes and goes."""
_UNTOTALLED = frozenset({"xmit_wait"})
"""Ticks, not events."""
_ON_THE_WIRE = frozenset({"local_link_integrity_errors", "buffer_overrun_errors"})
"""Hard, and a cable that is pulled makes them. A device that reset itself takes the carrier along:
what tells of that holds whatever the carrier did."""
_FORETELL = (
    *("fec_corrected_bits", "fec_uncorrectable", "retransmits", "out_of_sequence"),
    *("packet_seq_err", "ecn_marked", "cnp_received"),
)
"""Counters that the forecast looks at."""
PCIE = ("pcie_speed", "pcie_width", "pcie_uplink_speed", "pcie_uplink_width")
_UNITS = (("GT/s", 1e9), ("lanes", 1.0), ("GT/s", 1e9), ("lanes", 1.0))
_OUT = frozenset({LinkState.UNKNOWN, LinkState.ADMIN})


@dataclass(slots=True)
class Nic:
    """What is known of one link's NIC.

    Attributes:
        totals: class → events of counters with a rule, since the daemon began.
        counted: by counter, those without a rule too but for traffic, for those that ever rose.
        statuses: kind of reader → its sources: whether each is read, or why not.
        gauges: source → readings of this moment.
        flags: alarms and warnings of the module.
        device: its address on the bus; as ``rdma_device`` and ``driver`` empty where not known.
        read_ns: when its counters were last read; None: never.
        told_flaps: carrier losses that ``downs`` and the forecast know of.
        calm_ns: errors before this have an explanation.
    """

    netdev: str
    judge: CounterJudge = field(default_factory=CounterJudge)
    totals: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    downs: PortDowns = field(default_factory=PortDowns)
    witness: bool = False
    """The port has a counter of its own for its downs."""
    statuses: dict[str, Sequence[Status]] = field(default_factory=dict)
    gauges: dict[str, Mapping[str, float]] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    module: str = ""
    device: str = ""
    hardware: str = ""
    """The address that it was made with, whatever its interface is called; empty: not known."""
    rdma_device: str = ""
    driver: str = ""
    read_ns: int | None = None
    error: str = ""
    told_flaps: int | None = None
    calm_ns: int = 0
    untold: int = 0
    bits: bool = False
    """It counts bits that FEC corrected, not codewords alone."""
    pcie_had: dict[str, float] = field(default_factory=dict)
    pcie_kept: dict[str, float] = field(default_factory=dict)
    """The same of an earlier life of the daemon, and what NIC and slot could do then; not looked at
    yet."""
    pcie: PcieDoubts = field(default_factory=PcieDoubts)
    speed: LinkSpeed = field(default_factory=LinkSpeed)
    said: dict[str, tuple[int | None, bool]] = field(default_factory=dict)
    """Counter → when its finding was last told of, and whether its end has still to be told."""
    forecast_ns: int | None = None
    """Of the youngest forecast; None: there is none, or an earlier life of the daemon made it."""

    def is_another(self, hardware: str) -> bool:
        """Take the address that it was made with; of another one what the last one had is void."""
        old, self.hardware = self.hardware, hardware or self.hardware
        if old in ("", self.hardware):
            return False
        self.pcie_had, self.pcie_kept = {}, {}
        self.speed.forget()
        return True

    def gauge(self, name: str) -> float | None:
        """A reading of this moment, from whichever source."""
        return next((g[name] for g in self.gauges.values() if name in g), None)

    def downgraded(self) -> str:
        """What its PCIe link and those of the switches above it lack of what both ends can do.

        Empty: nothing, or not known.
        """
        parts = [self.lacks(PCIE[:2])]
        if said := self.lacks(PCIE[2:]):
            parts.append(f"switch uplink {said}")
        return ", ".join(part for part in parts if part)

    def lacks(self, names: Sequence[str]) -> str:
        """The readings that are below what could be, of these names."""
        out = []
        for name in names:
            unit, scale = _UNITS[PCIE.index(name)]
            is_, could = self.gauge(name), self.gauge(f"{name}_max")
            if is_ is not None and could is not None and is_ < could:
                out.append(f"{is_ / scale:g} of {could / scale:g} {unit}")
        return ", ".join(out)

    @property
    def dark(self) -> bool:
        """None of its sources of counters is on."""
        return not any(status.on for status in self.statuses.get("counters", ()))

    def stale(self, now: int) -> bool:
        """Its counters are not read, or no more."""
        old = self.read_ns is None or now - self.read_ns > STALE_NS
        return old or bool(self.error) or self.dark


class NicMonitor:
    """All NICs of the host."""

    def __init__(self, netdevs: Iterable[str], speeds: Mapping[str, float] | None = None) -> None:
        self.nics: dict[str, Nic] = {}
        self.hanging: dict[str, float] = {}
        """Links whose NIC does not answer → for how many seconds."""
        self.down: dict[str, DownReason | None] = {}
        """Link → why its port has no carrier, as its driver says."""
        self._left: dict[str, dict[str, int]] = {}
        """Totals of links that were configured once: they may come back."""
        self._stale_told: set[str] = set()
        self._names: list[str] = []
        self._gather = Gather([])
        self.configure(netdevs, speeds)

    def configure(self, netdevs: Iterable[str], speeds: Mapping[str, float] | None = None) -> None:
        """Links that stay keep what is known; a window of the forecast begins anew.

        Args:
            netdevs: the links.
            speeds: bit/s that an operator expects of a link, of those that have such a key.
        """
        names = list(netdevs)
        self._left |= {name: nic.totals for name, nic in self.nics.items() if name not in names}
        self.nics = {
            name: self.nics.get(name) or Nic(name, totals=self._left.pop(name, {}))
            for name in names
        }
        for name, nic in self.nics.items():
            nic.speed.expected = (speeds or {}).get(name)
        if names != self._names:
            self._names, self._gather = names, Gather(names)
        self._stale_told &= set(names)

    def take(
        self, readings: Iterable[Reading], engine: Engine, flaps: Mapping[str, int], now: int
    ) -> tuple[list[Event], bool]:
        """Take what a thread read.

        Args:
            readings: of any links, in order.
            engine: whose links get the findings.
            flaps: carrier losses so far, by link.
            now: CLOCK_MONOTONIC ns.

        Returns:
            Events, and whether the engine should judge anew.
        """
        links = {link.netdev: link for link in engine.links}
        events: list[Event] = []
        changed = False
        for reading in readings:
            nic, link = self.nics.get(reading.netdev), links.get(reading.netdev)
            if nic is None or link is None:
                continue  # Reconfigured while the thread read.
            if reading.kind == "counters":
                nic.error = reading.error
            if reading.error:
                continue
            nic.statuses[reading.kind] = reading.statuses
            if reading.reborn:
                for name in reading.reborn:
                    nic.judge.reset(name)
            if reading.kind == "counters":
                nic.read_ns = reading.at_ns
                nic.device, nic.rdma_device = reading.device, reading.rdma_device
                nic.driver = reading.driver
                if nic.is_another(reading.hardware):
                    reason = "another NIC has this name: its speeds are compared anew"
                    events.append(event(EventKind.DAEMON, link=link.netdev, reason=reason))
                events += down_rows(self.down.get(link.netdev), reading.down, link)
                self.down[link.netdev] = reading.down
                self._flaps(nic, link, flaps.get(link.netdev, 0), engine, now)
            events += self._slow(nic, link, reading)
            self._speed(nic, link, reading)
            self._count(nic, link, reading)
            more, differs = self._judge(nic, link, engine, now)
            events += more
            changed |= differs
        return events, changed

    def check(
        self, engine: Engine, hanging: Mapping[str, float], now: int
    ) -> tuple[list[Event], bool]:
        """Each tick: what is stale, and what of it is no evidence any more; as `take`."""
        self.hanging = dict(hanging)
        events: list[Event] = []
        changed = False
        for link in engine.links:
            nic = self.nics.get(link.netdev)
            if nic is None:
                continue
            stale = nic.read_ns is not None and nic.stale(now)
            if stale != (link.netdev in self._stale_told):
                self._stale_told ^= {link.netdev}
                what = f"NIC counters not read: {self.why_stale(nic, now)}"
                reason = what if stale else "NIC counters are read again"
                events.append(event(EventKind.DAEMON, link=link.netdev, reason=reason))
            if link.counters and nic.read_ns is not None and now - nic.read_ns > DROP_NS:
                nic.judge.reset()
                more, differs = self._judge(nic, link, engine, now)
                events += more
                changed |= differs
            if link.forecast is None:
                continue
            if nic.forecast_ns is None:
                nic.forecast_ns = now  # Restored: it holds as long as one that was just made.
            if now - nic.forecast_ns > FORECAST_NS:
                engine.report_forecast(link, None, now)
                nic.forecast_ns, changed = None, True
                events.append(self._risk_event(link, "no forecast for an hour"))
        return events, changed

    def why_stale(self, nic: Nic, now: int) -> str:
        """In words; empty: it is not."""
        if not nic.stale(now):
            return ""
        if nic.netdev in self.hanging:
            return f"it does not answer, for {self.hanging[nic.netdev]:.0f} s"
        if nic.error:
            return nic.error
        if nic.read_ns is None:
            return "not yet"
        if now - nic.read_ns > STALE_NS:
            return f"not for {(now - nic.read_ns) / S:.0f} s"
        sources = nic.statuses.get("counters", ())
        return next((s.reason for s in sources if s.source == "link_stats"), "no source is on")

    def settlings(self, netdev: str) -> int:
        """How often a link came to have carrier and an active port; any thread may ask."""
        nic = self.nics.get(netdev)
        return nic.speed.settlings if nic is not None else 0

    # -- forecast -----------------------------------------------------------------------------

    def window(self, planned: Iterable[str]) -> Rows:
        """The window that ends now; the next begins. ``planned``: links somebody works on."""
        for netdev in planned:
            if netdev in self.nics:
                self._gather.out(netdev)
        speeds = {name: speed for name, nic in self.nics.items() if (speed := nic.gauge("speed"))}
        return self._gather.window(speeds)

    def modules(self) -> dict[str, str]:
        """Link → what is plugged there, if known."""
        return {name: nic.module for name, nic in self.nics.items() if nic.module}

    def foretold(
        self, engine: Engine, forecasts: Mapping[str, Forecast], now: int
    ) -> tuple[list[Event], bool]:
        """Take forecasts; as `take`."""
        events = []
        changed = False
        for link in engine.links:
            if (new := forecasts.get(link.netdev)) is None or link.netdev not in self.nics:
                continue
            old = link.forecast
            engine.report_forecast(link, new, now)
            self.nics[link.netdev].forecast_ns = now
            named = old is not None and old.named
            if new.named != named or (named and old and set(old.evidence) != set(new.evidence)):
                events.append(self._risk_event(link, "" if new.named else "no longer named: "))
            changed |= old != new
        return events, changed

    def measured(self, netdev: str) -> str:
        """What the module reads, in words; empty: nothing."""
        return in_words(self.nics[netdev].gauges.get("module", {}))

    def _risk_event(self, link: Link, before: str) -> Event:
        forecast = link.forecast
        data: dict[str, JsonScalar] = {"named": bool(forecast and forecast.named)}
        if forecast is not None:
            data |= {"risk": forecast.risk, "evidence": ", ".join(forecast.evidence)}
        if said := self.measured(link.netdev):
            data["measured"] = said
        reason = before + (str(forecast) if forecast else "")
        return event(EventKind.RISK, link=link.netdev, rail=link.rail, reason=reason, data=data)

    # -- counters -----------------------------------------------------------------------------

    def _flaps(self, nic: Nic, link: Link, flaps: int, engine: Engine, now: int) -> None:
        more = flaps - nic.told_flaps if nic.told_flaps is not None else 0
        nic.told_flaps = flaps
        if more > 0:
            nic.downs.event(more)
            self._gather.out(nic.netdev, more)
        if more or link.carrier is not True or not link.admin_up:
            nic.calm_ns = now  # The next reading's interval begins before now.
            self._gather.out(nic.netdev)
        elif link.netdev in engine.overrides.planned:
            self._gather.out(nic.netdev)

    def _count(self, nic: Nic, link: Link, reading: Reading) -> None:
        by_interval: dict[int, dict[str, int]] = {}
        for name, step in reading.steps.items():
            rule = RULES.get(name)
            told = rule is not None or COUNTERS[name].cls is not CounterClass.INFO
            if step.increase and told:
                nic.counted[name] = nic.counted.get(name, 0) + step.increase
            if rule is None:
                continue
            if name not in _UNTOTALLED:
                nic.totals[rule.cls.value] = nic.totals.get(rule.cls.value, 0) + step.increase
            if name == "link_downed":
                self._downed(nic, 0 if step.fell else step.increase, step.inexact, reading.at_ns)
                continue
            if step.fell and rule.cls is Class.HARD:
                continue
            explained = reading.at_ns - step.interval_ns <= nic.calm_ns or link.health.state in _OUT
            if explained and (rule.cls is Class.SOFT or name in _ON_THE_WIRE):
                continue
            by_interval.setdefault(step.interval_ns, {})[name] = step.increase
        for interval_ns, more in by_interval.items():
            nic.judge.feed(more, interval_ns / S, reading.at_ns)
        for name in _FORETELL:
            found = reading.steps.get(name)
            if name == "fec_corrected_bits":
                nic.bits |= found is not None
                if not nic.bits:
                    # At the ratios that a link lives with there is a bit in each such codeword.
                    found = reading.steps.get("fec_corrected")
            if found is not None:
                self._gather.count(nic.netdev, {name: found.increase}, found.interval_ns / S)
        if reading.bins:
            self._gather.histogram(nic.netdev, reading.bins)

    @staticmethod
    def _downed(nic: Nic, increase: int, inexact: str, at_ns: int) -> None:
        """Only downs that no carrier event told are evidence of their own."""
        nic.witness = True
        nic.downs.reading(increase, inexact)
        if (more := nic.downs.untold - nic.untold) > 0:
            nic.judge.feed({"link_downed": more}, 1.0, at_ns)
        nic.untold = nic.downs.untold

    def _slow(self, nic: Nic, link: Link, reading: Reading) -> list[Event]:
        """Module and PCIe."""
        events: list[Event] = []
        nic.gauges |= reading.gauges
        if reading.module:
            nic.module = reading.module
        if "module" in reading.gauges:
            if raised := reading.flags - nic.flags:
                events.append(
                    event(
                        EventKind.FINDING,
                        link=link.netdev,
                        rail=link.rail,
                        reason=f"module: {', '.join(sorted(raised))}",
                        data={"source": "module", "measured": self.measured(link.netdev)},
                    )
                )
            nic.flags = reading.flags
            self._gather.read(nic.netdev, reading.gauges["module"])
            if reading.limits is not None:
                self._gather.limits(nic.netdev, *reading.limits)
        if reading.gauges.get("pci"):
            self._pcie(nic, reading.at_ns)
        return events

    @staticmethod
    def _pcie(nic: Nic, at_ns: int) -> None:
        """Whether its link fell below the best that it had; one never better is no news."""
        fell = False
        kept, nic.pcie_kept = nic.pcie_kept, {}
        if all(kept.get(f"{name}_max") == nic.gauge(f"{name}_max") for name in PCIE):
            nic.pcie_had |= {name: kept[name] for name in PCIE if name in kept}
        for name in PCIE:
            if (value := nic.gauge(name)) is not None:
                nic.pcie_had[name] = max(value, nic.pcie_had.get(name, 0.0))
                fell |= value < nic.pcie_had[name]
        nic.pcie.update(nic.lacks(PCIE[2:]), at_ns, fell=fell)

    @staticmethod
    def _speed(nic: Nic, link: Link, reading: Reading) -> None:
        """What it negotiated, of readings that no training of the link touches."""
        if link.carrier is not True or not link.admin_up or link.port_active is False:
            nic.speed.unsettled()
            return
        nic.speed.settled()
        for source, gauge in (("netdev", "speed"), ("verbs", "rate")):
            if gauge in reading.gauges:
                nic.speed.read(source, reading.gauges[gauge].get(gauge), reading.at_ns)

    def _judge(self, nic: Nic, link: Link, engine: Engine, now: int) -> tuple[list[Event], bool]:
        findings = nic.judge.findings(now)
        if nic.pcie.fell_ns is not None:
            text = nic.downgraded() or "slower or narrower than it was"
            findings.append(Finding(PCIE_DOWNGRADE, nic.pcie.fell_ns, 0.0, 1, text))
        elif nic.pcie.uplink_ns is not None:
            findings.append(Finding(PCIE_UPLINK, nic.pcie.uplink_ns, 0.0, 1, nic.pcie.uplink))
        nic.speed.update(now)  # another speed may be expected
        if nic.speed.slower_ns is not None:
            findings.append(Finding(LINK_SPEED, nic.speed.slower_ns, 0.0, 1, nic.speed.text))
        ratio = link.speed_ratio
        before = {f.rule.counter for f in link.counters}
        after = {f.rule.counter for f in findings}
        engine.report_counters(link, findings, nic.speed.ratio)
        events = [e for f in findings if (e := self._told(nic, link, f, now)) is not None]
        for name in sorted(before - after):
            at, told = nic.said.get(name, (0, False))
            if told:
                nic.said[name] = (at, False)
                rule = RULES.get(name, PCIE_DOWNGRADE)  # of readings: all are of one class
                events.append(
                    event(
                        EventKind.FINDING, link=link.netdev, rail=link.rail, reason=f"{name} ended",
                        data={"counter": name, "class": rule.cls.value, "holds": False},
                    )
                )  # fmt: skip
        return events, before != after or ratio != link.speed_ratio

    @staticmethod
    def _told(nic: Nic, link: Link, finding: Finding, now: int) -> Event | None:
        rule = finding.rule
        at, told = nic.said.get(rule.counter, (None, False))
        if told or (at is not None and now - at < AGAIN_NS[rule.cls]):
            return None
        nic.said[rule.counter] = (now, True)
        return event(
            EventKind.FINDING,
            link=link.netdev,
            rail=link.rail,
            reason=f"{finding}: {rule.why}",
            count=max(1, finding.count),
            data={
                "counter": rule.counter,
                "class": rule.cls.value,
                "holds": True,
                "value": finding.count,
                "per_s": round(finding.rate, 6),
                "threshold": rule.threshold,
                "window_s": rule.window_s,
                "since_s": round((now - finding.since_ns) / S, 3),
            },
        )
