// How many of a socket's packets have a stamp of the NIC. Pure.
#pragma once

#include <cstdint>

namespace fabric::prober {

class StampShare {
 public:
  // Of so many packets in a row, so many may be without: a few were under way when stamping began,
  // and a NIC that is busy may miss one now and then.
  static constexpr std::uint32_t kSpan = 256;
  static constexpr std::uint32_t kMissed = 64;

  void add(bool hardware) {
    missed_ += hardware ? 0 : 1;
    if (++count_ < kSpan) return;
    low_ = missed_ > kMissed;
    count_ = missed_ = 0;
  }
  // As of the last whole span.
  bool low() const { return low_; }

 private:
  std::uint32_t count_ = 0;
  std::uint32_t missed_ = 0;
  bool low_ = false;
};

}  // namespace fabric::prober
