// The fences that this process has been told of by the steer page (pages/steer_page.h).
//
// A fence names one life of a fabric-run by its incarnation, which every process that it started
// has in FABRIC_INCARNATION. A process says it in its handles and hellos, so both ends of a comm
// know the other's. 0: not started by a fabric-run, or by an older release; no fence names that.
// Fences only ever grow: what is fenced stays so for as long as this process lives, whatever
// becomes of the page.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>

namespace fabric::host {

// Of FABRIC_INCARNATION: 16 hexadecimal digits are the number, of any other text it is the FNV-1a
// hash, and of an empty one 0. The same as fabricd/steer/page.py.
std::uint64_t run_incarnation_of(const std::string& text);

class FencedRuns {
 public:
  // Control thread. True: some of them are new.
  bool learn(std::span<const std::uint64_t> incarnations);
  // Any thread.
  [[nodiscard]] bool hold(std::uint64_t incarnation) const;
  [[nodiscard]] bool any() const { return count_.load(std::memory_order_acquire) != 0; }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::uint64_t> fenced_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace fabric::host
