// When a path that failed its path validation is tried again. Pure; times in nanoseconds.
//
// A path may answer small packets and lose large ones (an MTU black hole, a queue that drops). Each
// attempt costs a comm its time and the operator a timeline row: so attempts back off, and all
// comms to a peer share one attempt. After five minutes there is at most one a minute, for ever.
// What may have mended the path (a link event, a steer page that gives it weight) has it tried at
// once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/types.h"

namespace fabric::core {

inline constexpr std::int64_t kValidationMinNs = 500'000'000;
inline constexpr std::int64_t kValidationMaxNs = 60'000'000'000;

class ValidationBackoff {
 public:
  // `seed`: spreads the attempts of processes that lost a path together.
  explicit ValidationBackoff(std::uint64_t seed) : seed_(seed) {}

  // Paths that no connection is to be opened over now.
  [[nodiscard]] PathSet held(std::int64_t now) const {
    PathSet set = 0;
    each(failed_, [&](PathIndex index) { set |= now < paths_[index].next ? bit(index) : 0; });
    return set;
  }
  // A connection is being opened: until it is known what became of it there is no other.
  void began(PathIndex index, std::int64_t now) {
    if (paths_[index].failures != 0) {
      paths_[index].next = now + interval(index);
    }
  }
  // A connection that was up since `since` did not deliver what it had to.
  void failed(PathIndex index, std::int64_t since, std::int64_t now) {
    Path& path = paths_[index];
    if (path.failures != 0 && since < path.counted) {
      return;  // one of many that failed together
    }
    path.counted = now;
    path.failures = std::min(path.failures + 1, kMaxFailures);
    path.next = now + interval(index);
    failed_ |= bit(index);
  }
  void succeeded(PathIndex index) {
    paths_[index] = {};
    failed_ &= ~bit(index);
  }
  // Something changed that may have mended it: one attempt is due now.
  void prompt(PathIndex index) { paths_[index].next = 0; }

 private:
  static constexpr int kMaxFailures = 32;
  struct Path {
    int failures = 0;          // in a row
    std::int64_t counted = 0;  // when the last one was
    std::int64_t next = 0;
  };

  [[nodiscard]] std::int64_t interval(PathIndex index) const {
    const int doublings = std::min(paths_[index].failures - 1, 16);
    const std::int64_t base = std::min(kValidationMinNs << doublings, kValidationMaxNs);
    const std::uint64_t mixed =
        (seed_ ^ (static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15ULL)) *
        0xd6e8feb86659fd93ULL;
    return base + base / 4 * static_cast<std::int64_t>(mixed >> 56U) / 256;
  }

  std::uint64_t seed_;
  std::array<Path, kMaxPaths> paths_{};
  PathSet failed_ = 0;
};

}  // namespace fabric::core
