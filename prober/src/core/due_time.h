// When the next single packet of a path is due, as the sender announces and the receiver takes it:
// 32 bits in each packet. Bits 0..3: how far off the sender's fabric time may be (c: 256 ns << c;
// 0: no due time is announced). Bits 4..31: when the next single packet is due, fabric time in
// units of 256 ns, modulo 2^28 of them (69 s).
//
// It is the next one's time that is told, and it is kept: a sender whose grid moves (a page that is
// lost, another epoch) moves what comes after that. The receiver turns it into its own monotonic
// clock at once, so what becomes of its own fabric time then makes nothing late.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/fabric_time.h"
#include "core/stalls.h"

namespace fabric::prober {

// On the monotonic clock of whoever holds it.
struct DueTime {
  Nanos due = 0;
  Nanos bound = 0;  // how far off the sender's time may be
};

// 0: nothing. A due time that is further away than kMostAhead is not told.
inline constexpr Nanos kMostAhead = 10'000'000'000;
std::uint32_t pack_next_due(Nanos due, Nanos now, const FabricTime& time);
// Nothing without fabric time of our own, or without an announced due time.
std::optional<DueTime> unpack_next_due(std::uint32_t packed, Nanos now, const FabricTime& time);

// The due times that one path's peer announced, and how its packets kept to them.
//
// The n-th single packet from now is missing when, after it was due,
//   - the most has passed that packets were late by in the last 30 to 60 s (delay of the path,
//     lateness of the sender, and what the two clocks differ by, as learnt);
//   - and three eighths of the link's interval, and both bounds;
//   - and, after the first, what the sender's grid may have moved by meanwhile.
// But never before it is due by the pace at which the path's packets come, and an eighth of the
// link's interval: a wrong due time calls nothing missing that comes as it always did.
class DueTimeTracker {
 public:
  static constexpr std::uint32_t kLearnt = 8;  // packets: fewer are no judgement
  static constexpr Nanos kBucket = 30'000'000'000;
  static Nanos grace(Nanos link_interval) { return link_interval * 3 / 8; }

  // A packet came, of sequence `seq`; `single`: one of those that have due times, which tells
  // how late they are. `on_time`: when the last single packet came. False: its due time makes no
  // sense beside the path's pace, and is left out.
  bool take(const std::optional<DueTime>& next_due, std::uint64_t seq, bool single, Nanos arrived,
            Nanos on_time, Nanos interval, Nanos link_interval, const FabricTime& time);
  void forget() { *this = DueTimeTracker{}; }

  // Whether packets are judged by it.
  bool holds() const { return due_ != 0 && learnt_ >= kLearnt; }
  // When the n-th packet from now is due, from 1.
  Nanos due(std::uint32_t n) const { return due_ + interval_ * (n - Nanos{1}); }
  // From when on it is missing.
  Nanos missing_from(std::uint32_t n) const {
    const Nanos late = std::max(due_ + late_ + grace(link_interval_), paced_ + link_interval_ / 8);
    return late + interval_ * (n - Nanos{1}) + (n > 1 ? interval_ / 16 : 0);
  }
  // How many are missing at `now`.
  std::uint32_t missing(Nanos now) const;

 private:
  void learn(Nanos late, Nanos now);

  Nanos due_ = 0;  // 0: no due time is announced
  std::uint64_t seq_ = 0;
  Nanos interval_ = 0;
  Nanos link_interval_ = 0;
  Nanos paced_ = 0;  // when it is due by the path's pace
  Nanos late_ = 0;   // what packets were late by, and the bounds
  std::uint32_t generation_ = 0;
  std::uint32_t learnt_ = 0;
  Nanos current_ = 0;
  Nanos previous_ = 0;
  bool had_previous_ = false;
  Nanos bucket_start_ = 0;
};

}  // namespace fabric::prober
