"""The canonical names: every counter, gauge and flag that a source may speak of, each with a class.

The only place where a name is made. Drivers' own names are mapped to these in ``tables/``.
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.counters.types import CounterClass

HARD, SOFT = CounterClass.HARD, CounterClass.SOFT
CONGESTION, INFO = CounterClass.CONGESTION, CounterClass.INFO


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of one canonical counter."""

    name: str
    cls: CounterClass
    unit: str
    text: str


def _table(*rows: tuple[str, CounterClass, str, str]) -> dict[str, Meaning]:
    return {row[0]: Meaning(*row) for row in rows}


COUNTERS: dict[str, Meaning] = _table(
    # Physical link (InfiniBand PortCounters; Ethernet PHY and FEC)
    ("link_downed", HARD, "count", "the port's link went down"),
    ("link_error_recovery", SOFT, "count", "the port retrained by itself and came back"),
    ("symbol_errors", SOFT, "symbols", "minor errors on a physical lane, not corrected by FEC"),
    ("local_link_integrity_errors", HARD, "count", "local physical errors above the threshold"),
    ("buffer_overrun_errors", HARD, "count", "excessive buffer overruns: flow control broken"),
    ("rcv_errors", SOFT, "packets", "received with an error (malformed, overrun, CRC)"),
    ("rcv_remote_physical_errors", SOFT, "packets", "marked bad by an earlier hop (EBP)"),
    ("crc_errors", SOFT, "frames", "received with a bad checksum"),
    ("alignment_errors", SOFT, "frames", "received, not a whole number of bytes"),
    ("length_errors", SOFT, "frames", "of a wrong length: short, long, fragments, jabber"),
    ("carrier_errors", SOFT, "count", "carrier lost while sending"),
    ("mac_local_faults", SOFT, "count", "802.3 local fault: our receiver lost the signal"),
    ("mac_remote_faults", SOFT, "count", "802.3 remote fault: the peer's receiver lost ours"),
    ("module_faults", SOFT, "count", "of the plugged module: bus stuck, too hot, shorted"),
    ("fec_corrected", SOFT, "codewords", "codewords that FEC corrected"),
    ("fec_corrected_bits", SOFT, "bits", "bits that FEC corrected"),
    ("fec_uncorrectable", SOFT, "codewords", "FEC could not correct them: frames were lost"),
    # Transport (RoCE and InfiniBand, requester and responder)
    ("out_of_sequence", SOFT, "packets", "arrived out of order: one was lost or overtaken"),
    ("packet_seq_err", SOFT, "packets", "NAKs for a missing packet: what we sent was lost"),
    ("timeouts", SOFT, "count", "acknowledgement did not come (local_ack_timeout_err)"),
    ("retransmits", SOFT, "packets", "sent again by the transport"),
    ("retry_exceeded", SOFT, "count", "given up after all retries: a path or the peer died"),
    (
        "implied_nak_seq_err",
        SOFT,
        "count",
        "later packet acknowledged first: a read answer was lost",
    ),
    ("duplicate_requests", SOFT, "packets", "seen before: our acknowledgement was lost"),
    ("icrc_errors", SOFT, "packets", "RoCE packets whose invariant checksum is wrong"),
    ("slow_restarts", SOFT, "count", "loss made the NIC begin again slowly (RoCE, EFA)"),
    ("rnr_nak_retry", CONGESTION, "count", "receiver not ready: a host is slow, not the link"),
    ("rnr_exceeded", INFO, "count", "given up, as the receiver was never ready"),
    ("out_of_buffer", CONGESTION, "packets", "dropped: no receive buffer posted, a host is slow"),
    ("cqe_errors", INFO, "count", "completions with an error; the end of a job makes them, too"),
    ("local_errors", INFO, "count", "requests refused locally: length, protection, access"),
    ("remote_errors", INFO, "count", "requests refused by the peer: invalid, access, operation"),
    ("rcv_constraint_errors", INFO, "packets", "refused by partition or raw filter on receipt"),
    ("xmit_constraint_errors", INFO, "packets", "refused by partition or raw filter on sending"),
    # Congestion
    ("ecn_marked", CONGESTION, "packets", "received with congestion experienced"),
    ("cnp_sent", CONGESTION, "packets", "congestion notifications sent"),
    ("cnp_received", CONGESTION, "packets", "congestion notifications received and handled"),
    ("cnp_ignored", CONGESTION, "packets", "congestion notifications received and ignored"),
    ("pause_rx", CONGESTION, "frames", "802.3x pause frames received"),
    ("pause_tx", CONGESTION, "frames", "802.3x pause frames sent"),
    ("pfc_rx", CONGESTION, "frames", "priority pause frames received, all priorities"),
    ("pfc_tx", CONGESTION, "frames", "priority pause frames sent, all priorities"),
    ("pause_rx_time", CONGESTION, "us", "the peer kept us from sending, all priorities"),
    ("pause_tx_time", CONGESTION, "us", "we kept the peer from sending, all priorities"),
    ("pause_storms", SOFT, "count", "pause for so long that the NIC gave a warning"),
    ("xmit_wait", CONGESTION, "ticks", "data to send and no credits"),
    ("vl15_dropped", CONGESTION, "packets", "management packets dropped for lack of a buffer"),
    ("xmit_discards", SOFT, "packets", "dropped on sending: port down, or too long in the queue"),
    ("rcv_discards", CONGESTION, "packets", "dropped on receipt: no buffer in NIC or ring"),
    ("allowance_exceeded", CONGESTION, "packets", "queued or dropped by a cloud's rate allowance"),
    ("pcie_overflow", CONGESTION, "packets", "dropped: PCIe is slower than the network"),
    # Device and driver
    ("tx_errors", SOFT, "packets", "not sent, with an error"),
    ("tx_timeouts", HARD, "count", "transmit queue stuck: the driver's watchdog fired"),
    ("resets", HARD, "count", "the device reset itself: its connections are gone"),
    ("pcie_rx_recoveries", SOFT, "count", "PCIe went into recovery: framing or CRC errors here"),
    ("pcie_tx_recoveries", SOFT, "count", "PCIe went into recovery, initiated by the other side"),
    ("pcie_transfer_errors", SOFT, "count", "transfers over PCIe that failed"),
    ("aer_correctable", SOFT, "count", "PCIe errors that the link layer repaired"),
    ("aer_nonfatal", SOFT, "count", "PCIe uncorrectable errors, the link still works"),
    ("aer_fatal", HARD, "count", "PCIe uncorrectable errors, the link does not"),
    ("health_errors", SOFT, "count", "seen by a devlink health reporter"),
    ("health_recoveries", INFO, "count", "by a devlink health reporter"),
    # Traffic
    ("rx_bytes", INFO, "bytes", "received"),
    ("tx_bytes", INFO, "bytes", "sent"),
    ("rx_packets", INFO, "packets", "received"),
    ("tx_packets", INFO, "packets", "sent"),
    ("rdma_rx_bytes", INFO, "bytes", "received by RDMA"),
    ("rdma_tx_bytes", INFO, "bytes", "sent by RDMA"),
    ("rdma_rx_packets", INFO, "packets", "received by RDMA"),
    ("rdma_tx_packets", INFO, "packets", "sent by RDMA"),
)
"""Counters: only ever rise, except on a reset."""

HISTOGRAMS: dict[str, str] = {
    "fec_errors": "codewords by symbols corrected in them; the last bins are the tail",
}

GAUGES: dict[str, str] = {
    "module_temperature": "°C",
    "module_voltage": "V",
    "rx_power": "W, per lane: rx_power/0 ...",
    "tx_power": "W, per lane",
    "tx_bias": "A, per lane",
    "pre_fec_ber": "errors per bit before FEC, per lane, as the module's own receiver counts",
    "pcie_speed": "transfers/s per lane, now",
    "pcie_speed_max": "transfers/s per lane, what the slot and the device both can",
    "pcie_width": "lanes now",
    "pcie_width_max": "lanes, what the slot and the device both can",
    "pcie_uplink_speed": "transfers/s per lane, now, of the worst link above the NIC's own",
    "pcie_uplink_speed_max": "transfers/s per lane, what both its ends can",
    "pcie_uplink_width": "lanes of it now",
    "pcie_uplink_width_max": "lanes, what both its ends can",
    "link_speed": "bit/s, as negotiated",
}
"""Name → unit. A lane is appended as ``/N``, from 0."""

_LIMITED = {
    "temperature": "the module's temperature",
    "voltage": "the module's supply voltage",
    "rx_power": "light received, per lane",
    "tx_power": "light sent, per lane",
    "tx_bias": "laser bias current, per lane",
}

FLAGS: dict[str, str] = {
    "rx_los": "no light received, per lane",
    "rx_lol": "receiver lost lock, per lane",
    "tx_los": "no electrical signal from the host, per lane",
    "tx_lol": "transmitter lost lock, per lane",
    "tx_fault": "laser or transmitter fault, per lane",
    **{
        f"{name}_{side}_{level}": f"{text}: {side} {level} limit of its maker passed"
        for name, text in _LIMITED.items()
        for side in ("high", "low")
        for level in ("alarm", "warning")
    },
}
"""Name → meaning. A lane is appended as ``/N``, from 0."""
