// What one comm counts. Written by whoever is inside the comm, read by the control thread at any
// time from outside: plain loads and stores, no locked instruction.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/types.h"
#include "host/ticks.h"
#include "pages/stats_page.h"

namespace fabric::host {

// One writer at a time. Whoever sees a value sees all that was counted before it.
class Count {
 public:
  void add(std::uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_release);
  }
  [[nodiscard]] std::uint64_t load() const { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct LatencyCounters {
  Count ticks;  // sum
  std::array<Count, pages::kStatsLatencyBuckets> bucket;
};

class CommCounters {
 public:
  Count bytes;  // payload, retransmits included; at a receiver: accepted
  Count retransmit_bytes;
  Count retransmit_chunks;
  Count failovers;
  Count stalls;
  Count stall_ns;
  // By local rail; there may come more of them.
  std::array<Count, core::kMaxRails> messages;           // acknowledged; at a receiver: whole
  std::array<LatencyCounters, core::kMaxRails> latency;  // a sender's

  // A message was acknowledged `ticks` after it was posted. About 3 ns.
  void delivered(const TickClock& clock, std::size_t rail, std::uint64_t ticks) {
    LatencyCounters& of_rail = latency[rail];
    of_rail.ticks.add(ticks);
    of_rail.bucket[clock.bucket(ticks)].add(1);
    messages[rail].add(1);
  }

  struct Scalars {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    std::uint64_t retransmit_bytes = 0;
    std::uint64_t retransmit_chunks = 0;
    std::uint64_t failovers = 0;
    std::uint64_t stalls = 0;
    std::uint64_t stall_ns = 0;
    bool operator==(const Scalars&) const = default;
  };
  [[nodiscard]] Scalars scalars() const {
    std::uint64_t all = 0;
    for (const Count& of_rail : messages) {
      all += of_rail.load();
    }
    return {all,
            bytes.load(),
            retransmit_bytes.load(),
            retransmit_chunks.load(),
            failovers.load(),
            stalls.load(),
            stall_ns.load()};
  }
};

}  // namespace fabric::host
