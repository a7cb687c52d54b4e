// How long a caller has polled for a message in vain. It notices sooner than any tick of the
// control thread that nothing comes any more.
#pragma once

#include <cstdint>

#include "host/ticks.h"

namespace fabric::host {

class PollStallTimer {
 public:
  static constexpr std::uint64_t kNs = 5'000'000;

  explicit PollStallTimer(const TickClock& clock) : clock_(clock) {}

  // What was asked for is there.
  void reset() {
    since_ = 0;
    expired_ = false;
  }
  // It is not. True when it has been too long, and again each time as long.
  bool stalled() {
    const std::uint64_t now = clock_.now();
    if (since_ == 0) {
      since_ = now;
    } else if (clock_.ns(TickClock::span(since_, now)) > kNs) {
      since_ = now;
      expired_ = true;
      return true;
    }
    return false;
  }
  // It ran out, and nothing has come since.
  [[nodiscard]] bool expired() const { return expired_; }

 private:
  const TickClock& clock_;
  std::uint64_t since_ = 0;  // 0: nobody waits
  bool expired_ = false;
};

}  // namespace fabric::host
