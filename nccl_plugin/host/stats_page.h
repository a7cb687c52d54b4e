// What the plugin counts, and the page it publishes. Counters are written by many threads, the page
// by the control thread alone; events by whoever sees them. Without a writable run directory the
// counters still count and nothing is published.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/types.h"
#include "host/fd.h"
#include "host/groups.h"
#include "host/params.h"
#include "host/rails.h"
#include "pages/stats_page.h"

namespace fabric::host {

struct RailCounters {
  std::atomic<std::uint64_t> tx_bytes{0};
  std::atomic<std::uint64_t> rx_bytes{0};
  std::atomic<std::uint64_t> tx_chunks{0};
  std::atomic<std::uint64_t> rx_chunks{0};
  std::atomic<std::uint64_t> retransmit_bytes{0};
  std::atomic<std::uint64_t> retransmit_chunks{0};
  std::atomic<std::uint64_t> duplicate_bytes{0};
  std::atomic<std::uint64_t> failovers{0};
  std::atomic<std::uint64_t> rejoins{0};
  std::atomic<std::uint64_t> validations{0};  // passed, of paths that came back; not on the page
  std::atomic<std::uint64_t> stalls{0};
  std::atomic<std::uint64_t> stall_ns{0};
  // Sums over the comms, made anew by the control thread each time it publishes.
  std::atomic<std::uint64_t> in_flight_bytes{0};
  std::atomic<std::uint32_t> live_paths{0};
  std::atomic<std::uint32_t> dead_paths{0};
};

class Stats {
 public:
  std::array<RailCounters, core::kMaxRails> rails;
  std::atomic<std::uint64_t> errors{0};
  std::atomic<std::uint64_t> refused_peers{0};
  std::atomic<std::uint64_t> refused_fenced{0};
  std::atomic<std::uint64_t> steer_rejected{0};
  std::atomic<std::uint32_t> send_comms{0};
  std::atomic<std::uint32_t> recv_comms{0};
  std::atomic<bool> steer_present{false};
  Groups groups;          // control thread only
  Deliveries deliveries;  // control thread only

  // Begins to count anew and creates the page; "" or why there is none.
  std::string open(const Params& params, const std::vector<Rail>& rails, std::int64_t now_ns);
  void add_rail(const std::string& netdev);  // control thread only
  void close();                              // removes it
  void publish(std::int64_t now_ns);
  void event(pages::StatsEventKind kind, std::uint64_t comm, std::uint8_t local_rail,
             std::uint8_t remote_rail, std::uint32_t detail);
  [[nodiscard]] std::vector<pages::StatsEvent> events() const;  // the last kStatsMaxEvents

 private:
  Fd fd_;
  std::string path_;
  pages::StatsHeader header_{};
  std::vector<pages::StatsRail> table_;
  mutable std::mutex events_mutex_;
  std::array<pages::StatsEvent, pages::kStatsMaxEvents> events_{};
  std::uint64_t event_count_ = 0;
};

inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace fabric::host
