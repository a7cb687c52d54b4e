// Comms by the peer process at their other end and their direction: the rows of the stats page.
// Control thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/types.h"
#include "host/address.h"
#include "host/comm_counters.h"
#include "host/ticks.h"
#include "pages/stats_page.h"

namespace fabric::host {

// What all comms together delivered and received, by local rail.
struct Deliveries {
  std::array<std::uint64_t, core::kMaxRails> tx_messages{};
  std::array<std::uint64_t, core::kMaxRails> rx_messages{};
  std::array<pages::StatsLatency, core::kMaxRails> latency{};
};

class Groups {
 public:
  using Index = std::size_t;
  static constexpr Index kOthers = pages::kStatsMaxGroups - 1;

  // A comm opens or closes. Its index stays good until it closes.
  Index join(const Address& address, std::uint64_t incarnation, pages::StatsDirection direction);
  void leave(Index index);
  pages::StatsGroup& row(Index index) { return rows_[index]; }
  // In flight is a sum over the comms that are open: made anew for each page.
  void clear_in_flight();
  // As the page has them: the last row is there when all are.
  [[nodiscard]] std::span<const pages::StatsGroup> rows() const;

 private:
  [[nodiscard]] Index find_room();
  void fold(Index index);  // into the last row

  std::size_t used_ = 0;  // of the rows before the last
  bool overflown_ = false;
  std::vector<pages::StatsGroup> rows_ = std::vector<pages::StatsGroup>(pages::kStatsMaxGroups);
  std::array<std::uint64_t, pages::kStatsMaxGroups> left_{};  // when the last comm left, in order
  std::uint64_t leavings_ = 0;
};

// Brings what is new in one comm's counters to its group and to the rails, once each.
class CounterDelta {
 public:
  void apply(const CommCounters& counters, const TickClock& clock, pages::StatsDirection direction,
             pages::StatsGroup& group, Deliveries& deliveries);

 private:
  struct Rail {
    std::uint64_t messages = 0;
    std::uint64_t ticks = 0;
    std::array<std::uint64_t, pages::kStatsLatencyBuckets> bucket{};
  };
  std::array<Rail, core::kMaxRails> rails_{};
  CommCounters::Scalars seen_{};
};

}  // namespace fabric::host
