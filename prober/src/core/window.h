// What arrived of a peer's sequence, within one incarnation: duplicate and replay check, 64-bit
// bitmap, exact count of the lost.
#pragma once

#include <bit>
#include <cstdint>

namespace fabric::prober {

// Holds: bit i of bitmap() says whether sequence highest() - i arrived; a sequence is accepted at
// most once; one that is kSpan or more behind is refused. A sequence still absent when it is
// kReorder behind the highest is lost, and is taken off the lost again if it comes after all.
class ReceiveWindow {
 public:
  static constexpr std::uint64_t kReorder = 8;
  static constexpr std::uint64_t kSpan = 64;

  // True if `seq` is new. Sequences begin at 1; 0 is refused.
  bool accept(std::uint64_t seq) {
    if (seq == 0) return false;
    if (highest_ == 0) {  // the first heard: what came before it is not ours to judge
      highest_ = seq;
      first_ = seq;
      bitmap_ = 1;
      received_ = 1;
      return true;
    }
    if (seq > highest_) {
      const std::uint64_t step = seq - highest_;
      bitmap_ = step >= kSpan ? 1 : (bitmap_ << step) | 1;
      highest_ = seq;
      ++received_;
      return true;
    }
    const std::uint64_t behind = highest_ - seq;
    if (behind >= kSpan || seq < first_) return false;
    const std::uint64_t bit = std::uint64_t{1} << behind;
    if ((bitmap_ & bit) != 0) return false;
    bitmap_ |= bit;
    ++received_;
    return true;
  }

  std::uint64_t highest() const { return highest_; }
  std::uint64_t bitmap() const { return bitmap_; }
  std::uint64_t received() const { return received_; }

  // Sequences from the first heard up to highest() - kReorder that did not arrive.
  std::uint64_t lost() const {
    if (highest_ == 0) return 0;
    const std::uint64_t span = highest_ - first_ + 1;
    const std::uint64_t young = span < kReorder ? span : kReorder;
    const std::uint64_t mask = (std::uint64_t{1} << young) - 1;
    const auto absent_young = static_cast<std::uint64_t>(std::popcount(~bitmap_ & mask));
    return span - received_ - absent_young;
  }

 private:
  std::uint64_t highest_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t bitmap_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace fabric::prober
