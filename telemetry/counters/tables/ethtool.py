"""``ethtool -S``: what each network driver counts by its own names. ``[i]`` is any number."""

from __future__ import annotations

from telemetry.counters.table import Row, Table
from telemetry.counters.types import Shape

_W32 = Shape(32)

MLX5_CORE = Table(
    "mlx5_core",
    # 32 bits where en_stats.c reads with MLX5E_READ_CTR32_BE.
    "Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; "
    "drivers/net/ethernet/mellanox/mlx5/core/en_stats.c",
    (
        Row("link_down_events_phy", "link_downed", _W32),
        Row("rx_crc_errors_phy", "crc_errors"),
        Row("rx_symbol_err_phy", "rcv_errors"),
        Row("rx_pcs_symbol_err_phy", "symbol_errors"),
        Row("rx_corrected_bits_phy", "fec_corrected_bits"),
        Row("rx_in_range_len_errors_phy", "length_errors"),
        Row("rx_out_of_range_len_phy", "length_errors"),
        Row("rx_oversize_pkts_phy", "length_errors"),
        Row("rx_undersize_pkts_phy", "length_errors"),
        Row("rx_fragments_phy", "length_errors"),
        Row("rx_jabbers_phy", "length_errors"),
        Row("rx_discards_phy", "rcv_discards"),
        Row("tx_discards_phy", "xmit_discards"),
        Row("tx_errors_phy", "tx_errors"),
        Row("rx_out_of_buffer", "out_of_buffer", _W32),
        Row("rx_pause_ctrl_phy", "pause_rx"),
        Row("tx_pause_ctrl_phy", "pause_tx"),
        Row("rx_prio[i]_pause", "pfc_rx"),
        Row("tx_prio[i]_pause", "pfc_tx"),
        Row("rx_global_pause_duration", "pause_rx_time"),
        Row("rx_prio[i]_pause_duration", "pause_rx_time"),
        Row("tx_global_pause_duration", "pause_tx_time"),
        Row("tx_prio[i]_pause_duration", "pause_tx_time"),
        Row("tx_pause_storm_warning_events", "pause_storms"),
        Row("rx_prio[i]_marked", "ecn_marked"),
        Row("module_bus_stuck", "module_faults"),
        Row("module_high_temp", "module_faults"),
        Row("module_bad_shorted", "module_faults"),
        Row("rx_pci_signal_integrity", "pcie_rx_recoveries", _W32),
        Row("tx_pci_signal_integrity", "pcie_tx_recoveries", _W32),
        Row("outbound_pci_buffer_overflow", "pcie_overflow"),
        Row("rx_packets_phy", "rx_packets"),
        Row("tx_packets_phy", "tx_packets"),
        Row("rx_bytes_phy", "rx_bytes"),
        Row("tx_bytes_phy", "tx_bytes"),
        Row("rx_vport_rdma_unicast_packets", "rdma_rx_packets"),
        Row("tx_vport_rdma_unicast_packets", "rdma_tx_packets"),
        Row("rx_vport_rdma_unicast_bytes", "rdma_rx_bytes"),
        Row("tx_vport_rdma_unicast_bytes", "rdma_tx_bytes"),
    ),
)

BNXT_EN = Table(
    "bnxt_en",
    "drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c (bnxt_port_stats_arr, _ext_arr)",
    (
        Row("link_down_events", "link_downed"),
        Row("rx_fcs_err_frames", "crc_errors"),
        Row("rx_align_err_frames", "alignment_errors"),
        Row("rx_ovrsz_frames", "length_errors"),
        Row("rx_jbr_frames", "length_errors"),
        Row("rx_undrsz_frames", "length_errors"),
        Row("rx_runt_frames", "length_errors"),
        Row("rx_pcs_symbol_err", "symbol_errors"),
        Row("rx_corrected_bits", "fec_corrected_bits"),
        Row("rx_fec_corrected_blocks", "fec_corrected"),
        Row("rx_fec_uncorrectable_blocks", "fec_uncorrectable"),
        Row("rx_stat_err", "rcv_errors"),
        Row("rx_stat_discard", "rcv_discards"),
        Row("tx_stat_error", "tx_errors"),
        Row("tx_stat_discard", "xmit_discards"),
        Row("rx_pause_frames", "pause_rx"),
        Row("tx_pause_frames", "pause_tx"),
        Row("rx_pfc_frames", "pfc_rx"),
        Row("tx_pfc_frames", "pfc_tx"),
        Row("continuous_pause_events", "pause_storms"),
        Row("continuous_roce_pause_events", "pause_storms"),
        Row("rx_total_frames", "rx_packets"),
        Row("tx_good_frames", "tx_packets"),
        Row("rx_bytes", "rx_bytes"),
        Row("tx_bytes", "tx_bytes"),
    ),
)

ICE = Table(
    "ice",
    # The driver adds up the device's 32 and 40-bit registers itself (ice_stat_update32, _40).
    "drivers/net/ethernet/intel/ice/ice_ethtool.c (ice_gstrings_pf_stats)",
    (
        Row("rx_crc_errors.nic", "crc_errors"),
        Row("illegal_bytes.nic", "symbol_errors"),
        Row("mac_local_faults.nic", "mac_local_faults"),
        Row("mac_remote_faults.nic", "mac_remote_faults"),
        Row("rx_undersize.nic", "length_errors"),
        Row("rx_fragments.nic", "length_errors"),
        Row("rx_oversize.nic", "length_errors"),
        Row("rx_jabber.nic", "length_errors"),
        Row("rx_dropped.nic", "rcv_discards"),
        Row("tx_dropped_link_down.nic", "xmit_discards"),
        Row("tx_errors.nic", "tx_errors"),
        Row("link_xon_rx.nic", "pause_rx"),
        Row("link_xoff_rx.nic", "pause_rx"),
        Row("link_xon_tx.nic", "pause_tx"),
        Row("link_xoff_tx.nic", "pause_tx"),
        Row("rx_priority_[i]_xon.nic", "pfc_rx"),
        Row("rx_priority_[i]_xoff.nic", "pfc_rx"),
        Row("tx_priority_[i]_xon.nic", "pfc_tx"),
        Row("tx_priority_[i]_xoff.nic", "pfc_tx"),
        Row("rx_unicast.nic", "rx_packets"),
        Row("rx_multicast.nic", "rx_packets"),
        Row("rx_broadcast.nic", "rx_packets"),
        Row("tx_unicast.nic", "tx_packets"),
        Row("tx_multicast.nic", "tx_packets"),
        Row("tx_broadcast.nic", "tx_packets"),
        Row("rx_bytes.nic", "rx_bytes"),
        Row("tx_bytes.nic", "tx_bytes"),
    ),
)
"""rx_length_errors.nic is left out: the device reports it wrongly, and the driver dropped it."""

ENA = Table(
    "ena",
    "drivers/net/ethernet/amazon/ena/ena_ethtool.c",
    (
        Row("tx_timeout", "tx_timeouts"),
        Row("wd_expired", "resets"),
        Row("bw_in_allowance_exceeded", "allowance_exceeded"),
        Row("bw_out_allowance_exceeded", "allowance_exceeded"),
        Row("pps_allowance_exceeded", "allowance_exceeded"),
        Row("conntrack_allowance_exceeded", "allowance_exceeded"),
        Row("linklocal_allowance_exceeded", "allowance_exceeded"),
        Row("queue_[i]_rx_empty_rx_ring", "out_of_buffer"),
        Row("queue_[i]_rx_bad_desc_num", "rcv_errors"),
        Row("queue_[i]_rx_bad_req_id", "rcv_errors"),
        Row("queue_[i]_tx_missed_tx", "tx_errors"),
        Row("queue_[i]_tx_bad_req_id", "tx_errors"),
        Row("queue_[i]_rx_cnt", "rx_packets"),
        Row("queue_[i]_rx_bytes", "rx_bytes"),
        Row("queue_[i]_tx_cnt", "tx_packets"),
        Row("queue_[i]_tx_bytes", "tx_bytes"),
    ),
)

VIRTIO_NET = Table(
    "virtio_net",
    # rx_queue_0_… up to Linux 6.6, rx0_… later.
    "drivers/net/virtio_net.c (virtnet_rq_stats_desc, virtnet_sq_stats_desc)",
    (
        Row("rx_queue_[i]_drops", "rcv_discards"),
        Row("rx[i]_drops", "rcv_discards"),
        Row("tx_queue_[i]_tx_timeouts", "tx_timeouts"),
        Row("tx[i]_tx_timeouts", "tx_timeouts"),
        Row("rx_queue_[i]_packets", "rx_packets"),
        Row("rx[i]_packets", "rx_packets"),
        Row("rx_queue_[i]_bytes", "rx_bytes"),
        Row("rx[i]_bytes", "rx_bytes"),
        Row("tx_queue_[i]_packets", "tx_packets"),
        Row("tx[i]_packets", "tx_packets"),
        Row("tx_queue_[i]_bytes", "tx_bytes"),
        Row("tx[i]_bytes", "tx_bytes"),
    ),
)

VETH = Table(
    "veth",
    "drivers/net/veth.c (veth_rq_stats_desc); for the lab",
    (Row("rx_queue_[i]_drops", "rcv_discards"),),
)

ETHTOOL_TABLES = {t.driver: t for t in (MLX5_CORE, BNXT_EN, ICE, ENA, VIRTIO_NET, VETH)}
