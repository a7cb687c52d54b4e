#include "host/groups.h"

#include <algorithm>
#include <utility>

namespace fabric::host {

namespace {

using pages::StatsDirection;
using pages::StatsGroup;
using pages::StatsLatency;

void add(StatsLatency& to, const StatsLatency& from) {
  to.sum_ns += from.sum_ns;
  for (std::size_t i = 0; i < pages::kStatsLatencyBuckets; ++i) {
    to.bucket[i] += from.bucket[i];
  }
}

std::uint64_t news(std::uint64_t now, std::uint64_t& seen) {
  return now - std::exchange(seen, now);
}

}  // namespace

Groups::Index Groups::join(const Address& address, std::uint64_t incarnation,
                           StatsDirection direction) {
  Index index = 0;
  while (index < used_ && (rows_[index].incarnation != incarnation ||
                           rows_[index].direction != static_cast<std::uint8_t>(direction))) {
    ++index;
  }
  if (index == used_) {
    index = find_room();
    if (index != kOthers) {
      StatsGroup& row = rows_[index];
      row = {};
      std::copy(address.ip.begin(), address.ip.end(), row.address);
      row.incarnation = incarnation;
      row.direction = static_cast<std::uint8_t>(direction);
    }
  }
  ++rows_[index].comms;
  return index;
}

Groups::Index Groups::find_room() {
  if (used_ < kOthers) {
    return used_++;
  }
  overflown_ = true;
  Index oldest = kOthers;
  for (Index i = 0; i < kOthers; ++i) {
    if (rows_[i].comms == 0 && (oldest == kOthers || left_[i] < left_[oldest])) {
      oldest = i;
    }
  }
  if (oldest != kOthers) {
    fold(oldest);
  }
  return oldest;
}

void Groups::leave(Index index) {
  --rows_[index].comms;
  left_[index] = ++leavings_;
}

void Groups::fold(Index index) {
  const StatsGroup& from = rows_[index];
  StatsGroup& to = rows_[kOthers];
  to.bytes += from.bytes;
  to.messages += from.messages;
  to.retransmit_bytes += from.retransmit_bytes;
  to.retransmit_chunks += from.retransmit_chunks;
  to.failovers += from.failovers;
  to.stalls += from.stalls;
  to.stall_ns += from.stall_ns;
  add(to.latency, from.latency);
}

void Groups::clear_in_flight() {
  for (StatsGroup& row : rows_) {
    row.in_flight_bytes = 0;
  }
}

std::span<const StatsGroup> Groups::rows() const {
  return {rows_.data(), overflown_ ? pages::kStatsMaxGroups : used_};
}

void CounterDelta::apply(const CommCounters& counters, const TickClock& clock,
                         StatsDirection direction, StatsGroup& group, Deliveries& deliveries) {
  const CommCounters::Scalars now = counters.scalars();
  if (now == seen_) {
    return;  // an idle comm costs a look at a few numbers
  }
  group.bytes += now.bytes - seen_.bytes;
  group.retransmit_bytes += now.retransmit_bytes - seen_.retransmit_bytes;
  group.retransmit_chunks += now.retransmit_chunks - seen_.retransmit_chunks;
  group.failovers += now.failovers - seen_.failovers;
  group.stalls += now.stalls - seen_.stalls;
  group.stall_ns += now.stall_ns - seen_.stall_ns;
  seen_ = now;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const std::uint64_t messages = news(counters.messages[i].load(), rails_[i].messages);
    if (messages == 0) {
      continue;
    }
    group.messages += messages;
    if (direction == StatsDirection::receive) {
      deliveries.rx_messages[i] += messages;
      continue;
    }
    deliveries.tx_messages[i] += messages;
    StatsLatency fresh{};
    fresh.sum_ns = clock.ns(news(counters.latency[i].ticks.load(), rails_[i].ticks));
    for (std::size_t b = 0; b < pages::kStatsLatencyBuckets; ++b) {
      fresh.bucket[b] = news(counters.latency[i].bucket[b].load(), rails_[i].bucket[b]);
    }
    add(group.latency, fresh);
    add(deliveries.latency[i], fresh);
  }
}

}  // namespace fabric::host
