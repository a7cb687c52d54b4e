// From the wall clock, in which the kernel's software stamps are, to CLOCK_MONOTONIC_RAW, which
// nobody slews and nobody steps: the same counter at its own rate. Pure.
//
// The two are read together, many times a second. Each reading is off by some nanoseconds (one
// clock is read a little after the other), so what lies between them is filtered: a straight line
// with fading memory (Morrison, Introduction to Sequential Smoothing and Prediction, 1969), whose
// rate follows what an NTP daemon makes of the wall clock. A jump is a step: until a new line has
// settled there is no conversion, and so no stamp that mixes both times. Two jumps in a row are a
// new rate: chrony slews by up to 8.3 % (maxslewrate), the kernel by 10 % (adjtimex, tick).
//
// How long a reading takes is the machine's: 40 ns where the vDSO reads the TSC, microseconds where
// each is a system call to a HPET or an ACPI timer. Those much longer than the shortest say
// nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "core/stalls.h"
#include "core/windowed_min.h"

namespace fabric::prober {

class CrossTimestamp {
 public:
  // Of the filter: long enough to take 10 ns of a reading down to 1 or 2, short enough to follow a
  // new rate (1 ppm more: 18 ns behind at most).
  static constexpr double kMemory = 50e6;
  // More than a reading can be off and than 500 ppm make of 2 ms.
  static constexpr double kJump = 2'000.0;
  static constexpr Nanos kSettling = 200'000'000;  // of the first line
  static constexpr Nanos kAgain = 50'000'000;      // after a step, which changes no rate
  static constexpr Nanos kWide = 200;              // any reading may take so long
  static constexpr Nanos kWidest = 100'000;        // a reading that took longer is none, anywhere
  static constexpr double kClose = 500'000;        // two so close say nothing of a new line's rate
  static constexpr double kFastest = 0.11;         // no wall clock is slewed by more
  // A stamp that is further from the last reading is not converted.
  static constexpr Nanos kFarthest = 2'000'000'000;

  // The wall clock was read between two readings of the raw one.
  void add(Nanos before, Nanos wall, Nanos after) {
    const Nanos width = after - before;
    if (width < 0 || width > kWidest) return;
    const Nanos raw = before + width / 2;
    widths_.add(std::max<Nanos>(width, 1), raw);
    const Nanos limit = std::max(kWide, 2 * widths_.get());
    if (width > limit) return;
    const Nanos apart = wall - raw;
    // The first one came with a page fault, or the like.
    if (first_width_ > limit && count_ <= kFew) count_ = 0;
    if (count_ == 0) return begin(raw, wall, apart, width, kSettling);
    const double dt = static_cast<double>(raw - raw_);
    if (dt <= 0 || (count_ < kNew && dt < kClose)) return;
    const double predicted = x_ + rate_ * dt;
    const double off = static_cast<double>(apart - base_) - predicted;
    // Either is off by half of what it took: this reading, and the line by half of its own.
    if (std::abs(off) > kJump + (static_cast<double>(width) + width_) / 2) {
      const double rate = static_cast<double>(apart - base_) / dt;
      const bool slewed = jumped_ && std::abs(rate) < kFastest;
      const Nanos settling = count_ > kFew || slewed ? kAgain : kSettling;
      if (!slewed) ++steps_;
      jumped_ = true;
      begin(raw, wall, apart, width, settling);
      if (slewed) rate_ = rate;
      return;
    }
    jumped_ = false;
    // While there are few readings, as if each counted alike (least squares); then they fade.
    const double n = static_cast<double>(std::min(count_, kMany));
    const double fading = std::exp(-dt / kMemory);
    const double alpha = std::max(1 - fading * fading, 2 * (2 * n + 1) / ((n + 1) * (n + 2)));
    const double beta = std::max((1 - fading) * (1 - fading), 6 / ((n + 1) * (n + 2)));
    x_ = predicted + std::min(alpha, 1.0) * off;
    rate_ += std::min(beta, 1.0) * off / dt;
    width_ += std::min(alpha, 1.0) * (static_cast<double>(width) - width_);
    raw_ = raw;
    wall_ = wall;
    ++count_;
  }

  // A stamp of the wall clock; nothing while it is not known, or too long ago.
  std::optional<Nanos> to_raw(Nanos stamp) const {
    if (!settled()) return std::nullopt;
    const Nanos since = stamp - wall_;
    if (since > kFarthest || since < -kFarthest) return std::nullopt;
    return stamp - base_ - std::llround(x_ + rate_ * static_cast<double>(since));
  }

  std::uint64_t steps() const { return steps_; }
  // The shortest reading of late; 0: there was none.
  Nanos least_ns() const { return widths_.get(); }
  // How long the line's readings took, in the mean by which they count: each is off by half of its
  // own at most, and so what is converted by half of this. 0: nothing is converted yet.
  Nanos width_ns() const { return settled() ? std::llround(std::ceil(width_)) : 0; }

 private:
  static constexpr std::uint64_t kFew = 16;
  static constexpr std::uint64_t kNew = 64;  // up to here each reading counts for much
  static constexpr std::uint64_t kMany = 1'000'000;

  bool settled() const { return count_ >= kFew && raw_ >= settled_; }

  void begin(Nanos raw, Nanos wall, Nanos apart, Nanos width, Nanos settling) {
    first_width_ = width;
    width_ = static_cast<double>(width);
    raw_ = raw;
    wall_ = wall;
    base_ = apart;
    x_ = 0;
    if (count_ <= kFew) rate_ = 0;
    // After a step the rate is what it was: the new line begins with the weight of a few readings.
    count_ = settling == kAgain ? kFew : 1;
    settled_ = raw + settling;
  }

  std::uint64_t count_ = 0;  // readings in the line
  Nanos raw_ = 0;            // the last one
  Nanos wall_ = 0;
  Nanos base_ = 0;
  double x_ = 0;     // wall less raw at the last one, less base_
  double rate_ = 0;  // of its change, ns/ns
  Nanos settled_ = 0;
  std::uint64_t steps_ = 0;
  // Of a second or so: a machine's way of reading may change (the kernel gives up the TSC).
  WindowedMin widths_{1'000'000'000};
  Nanos first_width_ = 0;  // of the reading with which the line began
  double width_ = 0;       // mean of those in the line
  bool jumped_ = false;    // the last reading was a jump
};

}  // namespace fabric::prober
