// Paths that are said to be dead by somebody else (carrier, steer page, the peer), and since when.
// Pure; times in nanoseconds.
//
// A connection that was made after the word came is newer evidence than the word: both directions
// have just answered. Without this rule the end that hears of a rail's return later would cut the
// connection by which the other end proves it. And no word takes the last path.
#pragma once

#include <array>
#include <cstdint>

#include "core/schedule.h"

namespace fabric::core {

class Hearsay {
 public:
  // What is said now replaces what was said before; a path keeps the time at which it was first
  // said to be down.
  void hear(PathSet down, std::int64_t now) {
    each(down & ~down_, [&](PathIndex path) { since_[path] = now; });
    down_ = down;
  }
  [[nodiscard]] PathSet down() const { return down_; }
  [[nodiscard]] bool says(PathIndex path) const { return (down_ & bit(path)) != 0; }
  // The word is newer than a connection that was made at `connected`.
  [[nodiscard]] bool concerns(PathIndex path, std::int64_t connected) const {
    return says(path) && since_[path] >= connected;
  }
  // Is a path that was connected at `connected` to be given up? `live`: all that are connected.
  [[nodiscard]] bool condemns(PathIndex path, std::int64_t connected, PathSet live) const {
    return concerns(path, connected) && (live & ~down_) != 0;
  }

 private:
  PathSet down_ = 0;
  std::array<std::int64_t, kMaxPaths> since_{};
};

}  // namespace fabric::core
