// What a path shows of itself, to the daemon and to other hosts.
#include <algorithm>

#include "core/path.h"

namespace fabric::prober {

Reachability Path::heard(std::uint32_t misses) const {
  if (gone_) return Reachability::kGone;
  if (last_heard_ == 0) return Reachability::kUnknown;
  if (rx_missed_ == 0) return Reachability::kWell;
  return rx_missed_ >= misses ? Reachability::kSilent : Reachability::kDoubt;
}

Reachability Path::told(std::uint32_t misses) const {
  if (heard(misses) != Reachability::kWell || acked_ == 0) return Reachability::kUnknown;
  if (tx_missed_ == 0) return Reachability::kWell;
  return tx_missed_ >= misses ? Reachability::kSilent : Reachability::kDoubt;
}

void Path::fill(ring::PathRow& row) const {
  std::copy(config_.peer.ip.begin(), config_.peer.ip.end(), row.address);
  row.port = config_.peer.port;
  row.link = config_.link;
  row.flags = (carries_trains_ ? ring::kPathClock : 0) |
              (peer_incarnation() != 0 ? ring::kPathEstablished : 0) |
              (gone_ ? ring::kPathGone : 0) | (due_times_.holds() ? ring::kPathByDueTime : 0) |
              (source_.refused() ? ring::kPathPortRefused : 0) | rdma_flags() |
              std::uint32_t{peer_moves_} << ring::kPathPeerMovesShift |
              std::uint32_t{source_.used()} << ring::kPathPortShift;
  row.host_id = config_.host_id;
  row.interval_ns = unsign(interval_);
  row.peer_interval_ns = unsign(peer_interval_);
  row.sent = next_seq_ - 1;
  row.received = received_;
  row.rx_lost = rx_lost_before_ + window_.lost();
  row.tx_lost = tx_lost_;
  row.duplicates = duplicates_;
  row.restarts = restarts_;
  row.rx_missed = rx_missed_;
  row.tx_missed = tx_missed_;
  row.rtt_last_ns = unsign(rtt_.last());
  row.rtt_min_ns = unsign(rtt_.least());
  row.rtt_smoothed_ns = unsign(rtt_.smoothed());
  row.last_heard_ns = unsign(last_heard_);
  row.peer_incarnation = peer_incarnation();
  row.rx_bitmap = window_.bitmap();
  row.tx_bitmap = tx_bitmap_;
  row.acked_ns = unsign(acked_);
  row.awake_us = awake_us_;
  row.said_ns = unsign(said_);
  if (peer_interval_ != 0) {
    const Nanos periods = (said_ - said_single_) / peer_interval_ + 1;
    const Nanos next = said_single_ + periods * peer_interval_;
    row.due_ns = unsign(next);
    const Nanos late = lateness(peer_interval_);
    const Nanos came = last_heard_ + next - said_;  // when it would come, were it as late
    row.late_ns =
        unsign(due_times_.holds() ? std::min(late, due_times_.missing_from(1) - came) : late);
  }
}

}  // namespace fabric::prober
