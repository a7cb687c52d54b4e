"""The rules of evidence: which counter, how much in how long, and what that means. One table.

Classes:

* *hard*: `threshold` events within `window_s` are a fault of the link, at once; it lasts until the
  window has passed without one.
* *soft*: events are noise at a low rate and a sick link at a high one. They accumulate in a
  sequential test (`fabricd.detect.sequential`) whose sick rate is ``threshold / window_s`` and
  whose normal rate is a tenth of it: a link at exactly that rate is found after about `window_s`,
  one ten times worse ten times sooner, and one at a third of it never. DEGRADED, not DOWN.
* *congestion*: the network or a host is full. Never a fault of the link, however much it is; it is
  what explains losses and delays.

Thresholds are those in use in the field (NVIDIA's port counter guide, node health checks of large
clusters) where there are any; the reasons are in docs/design/detection.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fabricd.detect.sequential import Cusum, Test

SEC = 10**9


class Class(StrEnum):
    """What a rule's evidence means for a link; the values are those of the counters' classes."""

    HARD = "hard"
    SOFT = "soft"
    CONGESTION = "congestion"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    counter: str
    """Canonical name, of counters or of the prober (``probe_*``)."""
    threshold: float
    """Events; for `probe_*` losses: the least share of packets that is found."""
    window_s: float
    cls: Class
    why: str
    alone: bool = True
    """Soft: it halves a link's weight by itself. Without, only beside other evidence: what it
    counts may have happened anywhere on the way."""

    @property
    def test(self) -> Test:
        """Of a soft rule: rates per second.

        At the sick rate the statistic drifts by ``sick · (ln 10 − 0.9)`` nats a second.
        """
        sick = self.threshold / self.window_s
        drift = sick * (math.log(10) - 0.9)
        return Test(sick / 10, sick, max(LEAST_NATS, drift * self.window_s))


LEAST_NATS = 7.0
"""Odds of 1,100: also a rule that asks for few events wants so much evidence."""

H, S, C = Class.HARD, Class.SOFT, Class.CONGESTION


def _transport(counter: str, threshold: float, window_s: float, why: str) -> Rule:
    """Of the way between two NICs: a peer that died makes all of them, on every link."""
    return Rule(counter, threshold, window_s, S, why, alone=False)


TABLE: tuple[Rule, ...] = (
    # Physical link
    Rule("link_downed", 1, 10, H, "the port lost its link; InfiniBand counts it, netdevs carrier"),
    Rule("local_link_integrity_errors", 1, 60, H, "physical errors above the port's own threshold"),
    Rule("buffer_overrun_errors", 1, 60, H, "flow control between the two ports is broken"),
    Rule("link_error_recovery", 5, 60, S, "retraining: the link stands still for milliseconds"),
    Rule("symbol_errors", 600, 60, S, "10/s: above the error rate that FEC and spec allow"),
    Rule("rcv_errors", 600, 60, S, "10/s: packets damaged on the way in"),
    Rule("crc_errors", 60, 60, S, "1/s: frames damaged on the way in"),
    Rule("alignment_errors", 60, 60, S, "as crc_errors"),
    Rule("mac_local_faults", 5, 60, S, "802.3 local fault: our receiver loses the signal"),
    Rule("mac_remote_faults", 5, 60, S, "802.3 remote fault: the peer's receiver does"),
    Rule("module_faults", 3, 600, S, "the plugged module: bus stuck, too hot"),
    Rule("carrier_errors", 5, 60, S, "carrier gone while sending, too short to be a down"),
    Rule("fec_uncorrectable", 60, 60, S, "1/s: a codeword that FEC gave up is a lost frame"),
    # Transport: the loss may be anywhere on the way, so it only adds
    _transport("icrc_errors", 60, 60, "1/s: damaged between two NICs, beyond any link's CRC"),
    _transport("out_of_sequence", 600, 60, "10/s: RDMA packets lost on the way in"),
    _transport("packet_seq_err", 600, 60, "10/s: RDMA packets lost on the way out"),
    _transport("timeouts", 60, 60, "1/s (local_ack_timeout_err): no acknowledgement came"),
    _transport("retry_exceeded", 5, 60, "connections given up: a path or a peer is gone"),
    _transport("slow_restarts", 600, 60, "10/s (roce_slow_restart)"),
    _transport("retransmits", 600, 60, "10/s: RDMA packets sent again"),
    _transport("implied_nak_seq_err", 60, 60, "1/s: answers to reads lost on the way in"),
    _transport("duplicate_requests", 600, 60, "10/s: our acknowledgements were lost"),
    _transport("rcv_remote_physical_errors", 600, 60, "10/s: damaged before it got to our switch"),
    _transport("length_errors", 60, 60, "1/s: cut frames, or ends that differ in MTU"),
    _transport("pause_storms", 3, 600, "the switch kept us from sending for so long"),
    Rule("xmit_discards", 6000, 60, S, "100/s: dropped on sending though the port is up"),
    # NIC and host
    Rule("tx_timeouts", 1, 60, H, "the driver reset a transmit queue that was stuck"),
    Rule("resets", 1, 60, H, "the device reset itself: its connections are gone"),
    Rule("aer_fatal", 1, 60, H, "the PCIe link to the NIC does not work"),
    Rule("aer_nonfatal", 3, 60, S, "PCIe transactions lost; the NIC still works"),
    Rule("pcie_rx_recoveries", 60, 60, S, "1/s: the PCIe link retrains"),
    Rule("pcie_tx_recoveries", 60, 60, S, "1/s: the slot makes the PCIe link retrain"),
    Rule("pcie_transfer_errors", 3, 60, S, "transfers over PCIe that failed"),
    Rule("aer_correctable", 600, 60, S, "10/s: the PCIe link layer repeats much"),
    Rule("health_errors", 3, 600, S, "devlink health reporter: firmware or queue errors"),
    # Congestion
    Rule("ecn_marked", 1000, 10, C, "packets marked by a full switch queue (np_ecn_marked_roce)"),
    Rule("cnp_sent", 1000, 10, C, "we asked senders to slow down"),
    Rule("cnp_received", 1000, 10, C, "we were asked to slow down"),
    Rule("pfc_rx", 1000, 10, C, "the switch paused a priority of ours"),
    Rule("pfc_tx", 1000, 10, C, "we paused a priority of the switch: this host is slow"),
    Rule("pause_rx", 1000, 10, C, "the switch paused us"),
    Rule("pause_tx", 1000, 10, C, "we paused the switch: this host is slow"),
    Rule("pause_rx_time", 1_000_000, 10, C, "a tenth of the time the switch kept us from sending"),
    Rule("pause_tx_time", 1_000_000, 10, C, "a tenth of the time we kept the switch from sending"),
    Rule("cnp_ignored", 1000, 10, C, "asked to slow down, and the NIC does not heed it"),
    Rule("allowance_exceeded", 1000, 10, C, "the cloud's rate allowance is used up"),
    Rule("pcie_overflow", 1000, 10, C, "PCIe is slower than the network: this host is slow"),
    Rule("vl15_dropped", 1000, 10, C, "management packets dropped: the port is busy"),
    Rule("xmit_wait", 1_000_000, 10, C, "data to send and no credits"),
    Rule("rcv_discards", 1000, 10, C, "no buffer in NIC or ring: this host is slow"),
    Rule("out_of_buffer", 1000, 10, C, "no receive buffer posted: the job is slow"),
    Rule("rnr_nak_retry", 1000, 10, C, "receiver not ready: the peer's job is slow"),
    # Probes; misses in a row are judged in `fabricd.detect.verdict`
    Rule("probe_lost_rx", 0.001, 30, S, "packets from peers that never came"),
    Rule("probe_lost_tx", 0.001, 30, S, "packets that peers say never came"),
)

PCIE_DOWNGRADE = Rule(
    "pcie_downgrade", 1, 10, S, "the PCIe link fell below the speed or width that it had"
)
PCIE_UPLINK = Rule(
    "pcie_uplink", 1, 10, S, "a PCIe switch above the NIC has less than both ends can", alone=False
)
LINK_SPEED = Rule("link_speed", 1, 10, S, "the link is slower than it was")
"""Not of counters: of readings, compared by `fabricd.nics.monitor`."""

RULES: dict[str, Rule] = {rule.counter: rule for rule in TABLE}
"""By counter; one without a rule is only shown (`fabricd.nics.monitor.Nic.counted`): what is
healthy (`fec_corrected`), and the sum of others (`tx_errors`)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says about a link now."""

    rule: Rule
    since_ns: int
    rate: float
    """Events a second."""
    count: int = 0
    """Events within the rule's window (hard, congestion), or since ``since_ns`` (soft)."""
    text: str = ""
    """Of what is no count: in words."""

    def __str__(self) -> str:
        if self.text:
            return f"{self.rule.counter} {self.text}"
        if self.rule.cls is Class.HARD:
            return self.rule.counter
        return f"{self.rule.counter} {self.rate:.3g}/s"


@dataclass(slots=True)
class _Stream:
    cusum: Cusum = field(default_factory=Cusum)
    events: list[tuple[int, int]] = field(default_factory=list)
    """(when, how many) within the window: hard and congestion rules."""


class CounterJudge:
    """Applies the table to the counters of one link."""

    def __init__(self, rules: Mapping[str, Rule] = RULES) -> None:
        self.rules = rules
        self._streams: dict[str, _Stream] = {}
        self._tests = {name: rule.test for name, rule in rules.items() if rule.cls is S}

    def feed(self, increments: Mapping[str, int], seconds: float, now: int) -> None:
        """Take what each counter rose by in the last ``seconds``.

        A counter that could not be read, or began anew, is left out: it is no evidence.
        """
        for name, events in increments.items():
            rule = self.rules.get(name)
            if rule is None or events < 0 or seconds <= 0:
                continue
            stream = self._streams.get(name)
            if stream is None:
                if not events:
                    continue  # the usual case: nothing counted, nothing known
                stream = self._streams[name] = _Stream()
            if rule.cls is S:
                test = self._tests[name]
                stream.cusum.step(test, test.nats(events, seconds), events, seconds, now)
            elif events:
                stream.events.append((now, events))

    def findings(self, now: int) -> list[Finding]:
        """What holds at ``now``, hard first."""
        out = []
        for name, stream in self._streams.items():
            rule = self.rules[name]
            if rule.cls is S:
                if stream.cusum.sick:
                    found = stream.cusum
                    out.append(Finding(rule, found.since_ns, found.rate, round(found.events)))
                continue
            since = now - round(rule.window_s * SEC)
            stream.events = [item for item in stream.events if item[0] > since]
            count = sum(events for _, events in stream.events)
            if count >= rule.threshold:
                out.append(Finding(rule, stream.events[0][0], count / rule.window_s, count))
        order = list(Class)
        return sorted(out, key=lambda f: (order.index(f.rule.cls), f.since_ns, f.rule.counter))

    def reset(self, counter: str | None = None) -> None:
        """Forget a counter's evidence (all of it when None): the device is another one."""
        if counter is None:
            self._streams.clear()
        else:
            self._streams.pop(counter, None)
