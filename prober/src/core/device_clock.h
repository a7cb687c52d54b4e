// A verbs device's free-running clock, in whose ticks it stamps completions, over
// CLOCK_MONOTONIC_RAW. Pure.
//
// It counts at about the rate that the device states, and begins anew after some bits. Read
// together with the raw clock some hundred times a second it becomes a line (CrossTimestamp), and a
// stamp a time of the raw clock.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cross_timestamp.h"
#include "core/stalls.h"

namespace fabric::prober {

class DeviceClock {
 public:
  // ns. No packet's stamp is so long ago when its completion is read.
  static constexpr Nanos kOldest = 1'000'000'000;

  // `mask`: the bits that a stamp has, all ones from the lowest. `khz`: ticks in a millisecond.
  // Either 0: the device has no such clock, and nothing is converted.
  DeviceClock(std::uint64_t mask, std::uint64_t khz) : mask_(mask), khz_(khz) {}
  DeviceClock() : DeviceClock(0, 0) {}

  bool exists() const { return mask_ != 0 && khz_ != 0; }

  // It was read between two readings of the raw clock.
  void add(Nanos before, std::uint64_t ticks, Nanos after) {
    if (!exists()) return;
    // It went back: the device was reset.
    if (read_ && since(ticks) > mask_ / 2) *this = DeviceClock(mask_, khz_);
    if (!read_) last_ = ticks;
    read_ = true;
    passed_ += since(ticks);
    last_ = ticks;
    line_.add(before, nanoseconds(passed_), after);
  }

  // A stamp as a time of the raw clock, if that lies between `least` and `most`; nothing: it does
  // not, or the clock is not known yet.
  std::optional<Nanos> to_raw(std::uint64_t stamp, Nanos least, Nanos most) const {
    if (!read_) return std::nullopt;
    // Before the last reading or after it, whichever is nearer.
    const std::uint64_t after = since(stamp);
    const std::uint64_t before = (last_ - stamp) & mask_;
    const std::optional<Nanos> raw =
        line_.to_raw(nanoseconds(after <= before ? passed_ + after : passed_ - before));
    return raw && *raw >= least && *raw <= most ? raw : std::nullopt;
  }

 private:
  std::uint64_t since(std::uint64_t ticks) const { return (ticks - last_) & mask_; }
  Nanos nanoseconds(std::uint64_t ticks) const {
    return static_cast<Nanos>(ticks / khz_ * 1'000'000 + ticks % khz_ * 1'000'000 / khz_);
  }

  std::uint64_t mask_;
  std::uint64_t khz_;
  bool read_ = false;
  std::uint64_t last_ = 0;  // as it was read
  // Of all readings. It begins high, so that a stamp may be of before the first one.
  std::uint64_t passed_ = std::uint64_t{1} << 48U;
  CrossTimestamp line_;
};

}  // namespace fabric::prober
