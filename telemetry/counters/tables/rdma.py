"""``hw_counters`` and ``rdma statistic``: what each verbs driver counts by itself."""

from __future__ import annotations

from collections.abc import Iterable

from telemetry.counters.table import Row, Table
from telemetry.counters.types import Shape

_W32 = Shape(32)

MLX5 = Table(
    "mlx5",
    # Q counters are read as be32, congestion and PPCNT counters as be64.
    "drivers/infiniband/hw/mlx5/counters.c; NVIDIA: Understanding mlx5 Linux counters",
    (
        Row("out_of_sequence", "out_of_sequence", _W32),
        Row("packet_seq_err", "packet_seq_err", _W32),
        Row("local_ack_timeout_err", "timeouts", _W32),
        Row("implied_nak_seq_err", "implied_nak_seq_err", _W32),
        Row("duplicate_request", "duplicate_requests", _W32),
        Row("rnr_nak_retry_err", "rnr_nak_retry", _W32),
        Row("out_of_buffer", "out_of_buffer", _W32),
        Row("roce_adp_retrans", "retransmits", _W32),
        Row("roce_slow_restart", "slow_restarts", _W32),
        Row("req_transport_retries_exceeded", "retry_exceeded", _W32),
        Row("req_rnr_retries_exceeded", "rnr_exceeded", _W32),
        Row("req_cqe_error", "cqe_errors", _W32),
        Row("resp_local_length_error", "local_errors", _W32),
        Row("req_remote_access_errors", "remote_errors", _W32),
        Row("rx_icrc_encapsulated", "icrc_errors"),
        Row("np_ecn_marked_roce_packets", "ecn_marked"),
        Row("np_cnp_sent", "cnp_sent"),
        Row("rp_cnp_handled", "cnp_received"),
        Row("rp_cnp_ignored", "cnp_ignored"),
        Row("rdma_rx_bytes", "rdma_rx_bytes"),
        Row("rdma_tx_bytes", "rdma_tx_bytes"),
        Row("rdma_rx_packets", "rdma_rx_packets"),
        Row("rdma_tx_packets", "rdma_tx_packets"),
    ),
)

BNXT_RE = Table(
    "bnxt_re",
    # recoverable_errors is left out: it shows the device's broadcast packets.
    "drivers/infiniband/hw/bnxt_re/hw_counters.c",
    (
        Row("oos_drop_count", "out_of_sequence"),
        Row("seq_err_naks_rcvd", "packet_seq_err"),
        Row("to_retransmits", "timeouts"),
        Row("missing_resp", "implied_nak_seq_err"),
        Row("dup_req", "duplicate_requests"),
        Row("rnr_naks_rcvd", "rnr_nak_retry"),
        Row("rx_out_of_buffer", "out_of_buffer"),
        Row("max_retry_exceeded", "retry_exceeded"),
        Row("bad_resp_err", "cqe_errors"),
        Row("unrecoverable_err", "cqe_errors"),
        Row("local_qp_op_err", "local_errors"),
        Row("local_protection_err", "local_errors"),
        Row("mem_mgmt_op_err", "local_errors"),
        Row("remote_invalid_req_err", "remote_errors"),
        Row("remote_access_err", "remote_errors"),
        Row("remote_op_err", "remote_errors"),
        Row("res_tx_pci_err", "pcie_transfer_errors"),
        Row("res_rx_pci_err", "pcie_transfer_errors"),
        Row("rx_roce_errors", "rcv_errors"),
        Row("rx_roce_discards", "rcv_discards"),
        Row("rx_ecn_marked_pkts", "ecn_marked"),
        Row("tx_cnp_pkts", "cnp_sent"),
        Row("rx_cnp_pkts", "cnp_received"),
        # Broadcom's own driver has the same ones by names of mlx5.
        Row("out_of_buffer", "out_of_buffer"),
        Row("np_ecn_marked_roce_packets", "ecn_marked"),
        Row("np_cnp_pkts", "cnp_sent"),
        Row("rp_cnp_handled", "cnp_received"),
        Row("rx_pkts", "rdma_rx_packets"),
        Row("rx_bytes", "rdma_rx_bytes"),
        Row("tx_pkts", "rdma_tx_packets"),
        Row("tx_bytes", "rdma_tx_bytes"),
    ),
)

IRDMA = Table(
    "irdma",
    # The driver itself adds up the device's 24 to 56-bit registers. Generation 1 and 2 names, then
    # generation 3; names with spaces are the driver's.
    "drivers/infiniband/hw/irdma/verbs.c (irdma_hw_stat_names)",
    (
        Row("tcpRetransSegs", "retransmits"),
        Row("RetransSegs", "retransmits"),
        Row("tcpInProtoErrors", "rcv_errors"),
        Row("InProtoErrors", "rcv_errors"),
        Row("ip4InDiscards", "rcv_discards"),
        Row("ip6InDiscards", "rcv_discards"),
        Row("ip4InTruncatedPkts", "length_errors"),
        Row("ip6InTruncatedPkts", "length_errors"),
        Row("RxECNMrkd", "ecn_marked"),
        Row("cnpSent", "cnp_sent"),
        Row("cnpHandled", "cnp_received"),
        Row("cnpIgnored", "cnp_ignored"),
        Row("ip4InOctets", "rdma_rx_bytes"),
        Row("ip6InOctets", "rdma_rx_bytes"),
        Row("ip4OutOctets", "rdma_tx_bytes"),
        Row("ip6OutOctets", "rdma_tx_bytes"),
        Row("ip4InPkts", "rdma_rx_packets"),
        Row("ip6InPkts", "rdma_rx_packets"),
        Row("ip4OutPkts", "rdma_tx_packets"),
        Row("ip6OutPkts", "rdma_tx_packets"),
        Row("RNR received", "rnr_nak_retry"),
        Row("Nak Sequence Error", "packet_seq_err"),
        Row("Nak Sequence Error Implied", "implied_nak_seq_err"),
        Row("RTO", "timeouts"),
        Row("Rcvd Out of order packets", "out_of_sequence"),
        Row("CRC errors", "icrc_errors"),
    ),
)

EFA = Table(
    "efa",
    "drivers/infiniband/hw/efa/efa_verbs.c (EFA_DEFINE_PORT_STATS)",
    (
        Row("retrans_pkts", "retransmits"),
        Row("retrans_timeout_events", "timeouts"),
        Row("unresponsive_remote_events", "retry_exceeded"),
        Row("impaired_remote_conn_events", "slow_restarts"),
        Row("rx_drops", "rcv_discards"),
        Row("rdma_read_wr_err", "remote_errors"),
        Row("rdma_write_wr_err", "remote_errors"),
        Row("rx_pkts", "rdma_rx_packets"),
        Row("rx_bytes", "rdma_rx_bytes"),
        Row("tx_pkts", "rdma_tx_packets"),
        Row("tx_bytes", "rdma_tx_bytes"),
    ),
)

RXE = Table(
    "rxe",
    "drivers/infiniband/sw/rxe/rxe_hw_counters.c",
    (
        Row("out_of_seq_request", "out_of_sequence"),
        Row("rcvd_seq_err", "packet_seq_err"),
        Row("duplicate_request", "duplicate_requests"),
        Row("rcvd_rnr_err", "rnr_nak_retry"),
        Row("completer_retry_err", "retransmits"),
        Row("retry_exceeded_err", "retry_exceeded"),
        Row("retry_rnr_exceeded_err", "rnr_exceeded"),
        Row("send_err", "tx_errors"),
        Row("link_downed", "link_downed"),
        Row("sent_pkts", "rdma_tx_packets"),
        Row("rcvd_pkts", "rdma_rx_packets"),
    ),
)

RDMA_TABLES = (MLX5, BNXT_RE, IRDMA, EFA, RXE)


def recognise(natives: Iterable[str]) -> Table | None:
    """The driver whose names these are; None: no table knows as many as three of them.

    By the names, since no file says which driver a verbs device has: the PCI device's driver is
    ``ice`` for irdma, and soft-RoCE has no PCI device.
    """
    names = list(natives)
    best = max(RDMA_TABLES, key=lambda table: table.known(names))
    return best if best.known(names) >= 3 else None
