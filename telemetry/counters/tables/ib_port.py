"""``/sys/class/infiniband/DEV/ports/N/counters``: the PMA's PortCounters, the same for all drivers.

Names and widths: drivers/infiniband/core/sysfs.c (PORT_PMA_ATTR). Error counters stop at their
maximum instead of wrapping: InfiniBand Architecture Specification 1, 16.1.3.5 (PortCounters).
"""

from __future__ import annotations

from telemetry.counters.table import Row, Table
from telemetry.counters.types import Shape

_4, _8, _16 = Shape(4, saturates=True), Shape(8, saturates=True), Shape(16, saturates=True)
_32 = Shape(32, saturates=True)

IB_PORT = Table(
    "ib_port",
    "drivers/infiniband/core/sysfs.c; InfiniBand Architecture Specification 1, 16.1.3.5",
    (
        Row("symbol_error", "symbol_errors", _16),
        Row("link_error_recovery", "link_error_recovery", _8),
        Row("link_downed", "link_downed", _8),
        Row("port_rcv_errors", "rcv_errors", _16),
        Row("port_rcv_remote_physical_errors", "rcv_remote_physical_errors", _16),
        Row("port_xmit_discards", "xmit_discards", _16),
        Row("port_xmit_constraint_errors", "xmit_constraint_errors", _8),
        Row("port_rcv_constraint_errors", "rcv_constraint_errors", _8),
        Row("local_link_integrity_errors", "local_link_integrity_errors", _4),
        Row("excessive_buffer_overrun_errors", "buffer_overrun_errors", _4),
        Row("VL15_dropped", "vl15_dropped", _16),
        Row("port_xmit_wait", "xmit_wait", _32),
        # Of PortCountersExtended where the device has it; counted in words of 4 bytes.
        Row("port_xmit_data", "tx_bytes", scale=4),
        Row("port_rcv_data", "rx_bytes", scale=4),
        Row("port_xmit_packets", "tx_packets"),
        Row("port_rcv_packets", "rx_packets"),
    ),
)
"""port_rcv_switch_relay_errors is left out: only switches count it."""
