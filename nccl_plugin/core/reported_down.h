// Paths that somebody else reports down (carrier, steer page, the peer), and since when. Pure;
// times in nanoseconds.
//
// A connection that was made after the report came is newer evidence than the report: both
// directions have just answered. Without this rule the end that hears of a rail's return later
// would cut the connection by which the other end proves it. And no report takes the last path.
#pragma once

#include <array>
#include <cstdint>

#include "core/schedule.h"

namespace fabric::core {

class ReportedDown {
 public:
  // A report replaces the one before; a path keeps the time at which it was first reported down.
  void report(PathSet down, std::int64_t now) {
    each(down & ~down_, [&](PathIndex path) { since_[path] = now; });
    down_ = down;
  }
  [[nodiscard]] PathSet down() const { return down_; }
  [[nodiscard]] bool reports(PathIndex path) const { return (down_ & bit(path)) != 0; }
  // The report is newer than a connection that was made at `connected`.
  [[nodiscard]] bool is_newer(PathIndex path, std::int64_t connected) const {
    return reports(path) && since_[path] >= connected;
  }
  // Is a path that was connected at `connected` to be given up? `live`: all that are connected.
  [[nodiscard]] bool should_close(PathIndex path, std::int64_t connected, PathSet live) const {
    return is_newer(path, connected) && (live & ~down_) != 0;
  }

 private:
  PathSet down_ = 0;
  std::array<std::int64_t, kMaxPaths> since_{};
};

}  // namespace fabric::core
