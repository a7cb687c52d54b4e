// The log lines about paths that die and come back. A rail that dies takes a path of every comm
// with it, and a flapping one does so again and again: of each path at most one line a second is
// logged, the newest, with the count of those left out. A path here is a pair of rails between this
// process and a peer, whatever the comm and its direction.
//
// Any thread. Times are ns of monotonic_ns().
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fabric::host {

class PathLog {
 public:
  struct Key {
    std::uint64_t peer = 0;  // the incarnation of its process
    std::uint8_t local_rail = 0;
    std::uint8_t remote_rail = 0;
    bool operator<(const Key& other) const {
      return std::tie(peer, local_rail, remote_rail) <
             std::tie(other.peer, other.local_rail, other.remote_rail);
    }
  };
  static constexpr std::int64_t kEveryNs = 1'000'000'000;

  // What to log now. Nothing: this path had a line less than kEveryNs ago; due() has this one or a
  // newer one later.
  std::optional<std::string> note(const Key& path, std::string line, std::int64_t now) {
    const std::scoped_lock lock(mutex_);
    Path& known = paths_[path];
    known.left_out += known.waiting ? 1U : 0U;
    known.waiting = std::move(line);
    return now < known.next ? std::nullopt : std::optional(known.take(now));
  }
  // The lines that have waited long enough by `now`. Forgets paths that have been quiet for as
  // long.
  std::vector<std::string> due(std::int64_t now) {
    std::vector<std::string> lines;
    const std::scoped_lock lock(mutex_);
    for (auto next = paths_.begin(); next != paths_.end();) {
      Path& path = next->second;
      const bool over = now >= path.next;
      if (over && path.waiting) {
        lines.push_back(path.take(now));
      } else if (over) {
        next = paths_.erase(next);
        continue;
      }
      ++next;
    }
    return lines;
  }

 private:
  struct Path {
    std::int64_t next = 0;               // when it may have its next line
    std::optional<std::string> waiting;  // the newest line, not logged yet
    std::uint64_t left_out = 0;          // older ones since the last line

    std::string take(std::int64_t now) {
      std::string line = *std::exchange(waiting, std::nullopt);
      if (const std::uint64_t count = std::exchange(left_out, 0); count != 0) {
        line += " (" + std::to_string(count) + " more about this path left out)";
      }
      next = now + kEveryNs;
      return line;
    }
  };

  std::mutex mutex_;
  std::map<Key, Path> paths_;
};

}  // namespace fabric::host
