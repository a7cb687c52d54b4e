// When to wake those who wait for events. Each wake has the daemon judge the whole host, about a
// millisecond of its core, and where a job keeps a queue standing packets are late a hundred times
// a second. Pure.
//
//  - A carrier change, and anything new while a link has a run of misses: at once.
//  - A single conclusive miss: at once, but not so soon after the last time.
//  - Heard again after one: a little later.
//  - What proves nothing (misses that owe to our own gap, their end, the gap itself): late, all
//    together. A host without a free core has a hundred a second, and the daemon looks by itself
//    twice a second.
#pragma once

#include <algorithm>
#include <limits>

#include "core/cadence.h"
#include "core/sink.h"

namespace fabric::prober {

class NotifyThrottle {
 public:
  static constexpr Nanos kMissPause = 20'000'000;
  static constexpr Nanos kHeardPause = 50'000'000;
  static constexpr Nanos kIdlePause = 250'000'000;
  static constexpr std::uint32_t kMissRun = 2;

  void note(const ring::EventRecord& record) {
    switch (static_cast<ring::EventKind>(record.kind)) {
      case ring::EventKind::kCarrier:
        due_ = 0;
        break;
      case ring::EventKind::kMiss:
        wait((record.flags & ring::kFlagInconclusive) != 0 ? kIdlePause : kMissPause);
        break;
      case ring::EventKind::kHeard:
        wait(record.count != 0 ? kHeardPause : kIdlePause);
        break;
      default:
        wait(kIdlePause);
    }
  }

  // Whether it is time; then all events so far count as notified. `miss_run`: the longest run of
  // conclusive misses on a link.
  bool should_notify(Nanos now, std::uint32_t miss_run) {
    if (due_ == kNever || (miss_run < kMissRun && now < due_)) return false;
    due_ = kNever;
    notified_ = now;
    return true;
  }

 private:
  static constexpr Nanos kNever = std::numeric_limits<Nanos>::max();
  void wait(Nanos most) { due_ = std::min(due_, notified_ + most); }

  Nanos due_ = kNever;  // kNever: nothing to tell
  Nanos notified_ = 0;
};

}  // namespace fabric::prober
