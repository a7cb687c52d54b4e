// The parts of what Sender and Receiver know of their comm as a whole: how it ended, since when it
// has no path, which of its paths a caller looks at. Whoever is inside the comm uses them
// (host/comm_gate.h). Times are ns of monotonic_ns().
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "core/types.h"
#include "host/context.h"
#include "host/wait_set.h"

namespace fabric::host {

// How a comm comes to its end.
struct CommEnd {
  bool closing = false;  // the links were told; what is left is that they quiesce
  // Of a sender: closed before it was ever connected. Without its hello the peer, which has been
  // promised a comm, would wait in accept for ever.
  bool introducing = false;
  bool peer_closed = false;         // said on a connection or a control link
  Result error = Result::success;   // that every later call returns
  std::atomic<bool> closed{false};  // nothing is left to do
  [[nodiscard]] bool failed() const { return error != Result::success; }
  // Nobody waits for anything here.
  [[nodiscard]] bool over() const { return closing || failed() || peer_closed; }
};

// Since when no path of a comm carries, and which failed last.
class PathOutage {
 public:
  explicit PathOutage(std::int64_t now) : since_(now) {}

  // `text`: the path, and why.
  void path_failed(std::string text, std::int64_t now) {
    last_failure_ = std::move(text);
    last_failure_at_ = now;
  }
  [[nodiscard]] const std::string& last_failure() const { return last_failure_; }
  // A path carries.
  void over() {
    since_ = 0;
    reported_ = false;
  }
  // None does. `live`: connections there are, but nobody answers. True: all that there were have
  // died, which was not reported yet.
  bool goes_on(bool live, std::int64_t now) {
    since_ = since_ == 0 ? now : since_;
    const bool all_died = !live && !reported_ && last_failure_at_ != 0;
    reported_ = reported_ || all_died;
    return all_died;
  }
  [[nodiscard]] std::int64_t lasted(std::int64_t now) const { return now - since_; }
  // "for 120 s (FABRIC_DEADLINE); the last to fail: ..."; `otherwise`: when none has failed.
  [[nodiscard]] std::string text(std::int64_t now, const std::string& otherwise) const {
    return "for " + std::to_string(lasted(now) / 1'000 / kMs) + " s (FABRIC_DEADLINE)" +
           (last_failure_.empty() ? otherwise
                                  : "; the last to fail: " + last_failure_ + ", " +
                                        std::to_string((now - last_failure_at_) / kMs) + " ms ago");
  }

 private:
  std::int64_t since_;  // 0: some path carries
  bool reported_ = false;
  std::string last_failure_;
  std::int64_t last_failure_at_ = 0;  // 0: none has
};

// Which paths a call of the caller looks at: those that had something lately, every so many calls
// all of them, and all after a wake-up, which may be for any.
class CallerLooks {
 public:
  // Somebody was woken since the last look.
  [[nodiscard]] bool woken(const WaitSet& waits) const {
    return waits.generation() != seen_generation_;
  }
  // `watch_all`: called after a wake-up, for paths that came meanwhile are not in the wait set.
  template <typename WatchAll>
  core::PathSet next(const WaitSet& waits, core::PathSet live, core::PathSet recent,
                     WatchAll watch_all) {
    const std::uint64_t generation = waits.generation();
    if (std::exchange(seen_generation_, generation) != generation) {
      watch_all();
      return live;
    }
    return ++calls_ % kGlance != 0 && (recent & live) != 0 ? live & recent : live;
  }
  // Somebody has slept since this was last asked.
  bool slept(const WaitSet& waits) {
    const std::uint64_t sleeps = waits.sleeps();
    return std::exchange(seen_sleeps_, sleeps) != sleeps;
  }

 private:
  static constexpr unsigned kGlance = 8;
  std::uint64_t seen_generation_ = 0;
  std::uint64_t seen_sleeps_ = 0;
  unsigned calls_ = 0;
};

// Live and dead paths, by the local rail.
template <typename Paths, typename LocalRail>
void count_paths(const Paths& paths, LocalRail local_rail, RailCounts& counts) {
  for (std::size_t i = 0; i < core::kMaxPaths; ++i) {
    const std::size_t rail = local_rail(static_cast<core::PathIndex>(i));
    if (paths[i].life.live()) {
      ++counts.live[rail];
    } else if (paths[i].ever_live) {
      ++counts.dead[rail];
    }
  }
}

}  // namespace fabric::host
