// Of a caller that asks again and again whether a message is there: it sees sooner than any tick of
// the control thread that nothing comes any more.
#pragma once

#include <cstdint>

#include "host/ticks.h"

namespace fabric::host {

class Patience {
 public:
  static constexpr std::uint64_t kNs = 5'000'000;

  explicit Patience(const TickClock& clock) : clock_(clock) {}

  // What was asked for is there.
  void served() {
    since_ = 0;
    out_ = false;
  }
  // It is not. True when it has been too long, and again each time as long.
  bool waits() {
    const std::uint64_t now = clock_.now();
    if (since_ == 0) {
      since_ = now;
    } else if (clock_.ns(TickClock::span(since_, now)) > kNs) {
      since_ = now;
      out_ = true;
      return true;
    }
    return false;
  }
  // It ran out, and nothing has come since.
  [[nodiscard]] bool out() const { return out_; }

 private:
  const TickClock& clock_;
  std::uint64_t since_ = 0;  // 0: nobody waits
  bool out_ = false;
};

}  // namespace fabric::host
