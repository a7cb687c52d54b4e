// Weights that follow delivery latency. Pure; times in nanoseconds.
//
// The delivery latency of a path is the mean time that a byte waits from its hand-over to the
// kernel until the peer's kernel has it. It is had without a stamp on any chunk, by Little's law
// (J. D. C. Little, "A Proof for the Queuing Formula L = λW", 1961): bytes waiting, summed over
// time, divided by bytes delivered.
//
// A path is slow when it has a real queue and its latency is well above that of another path to the
// same peer which carries a comparable load: a comparison with an idle one would say nothing. Its
// factor falls by the root of the ratio, so that the loop is damped; between kSlow and kGood
// nothing moves. It rises again to just below what proved too much, and beyond (in the end to the
// full weight, by which comms come home) only after some good seconds, twice as many each time that
// this proves wrong.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/schedule.h"

namespace fabric::core {

inline constexpr std::int64_t kBalanceStepNs =
    1'000'000'000;  // at most one change a second and path

class Balance {
 public:
  // One connection over `path`, looked at every few milliseconds: `waiting` bytes are not with the
  // peer's kernel yet, `delivered` came there since the last look, `passed` ns ago.
  void observe(PathIndex path, std::uint64_t waiting, std::uint64_t delivered, std::int64_t passed);

  // Once a second. Returns the paths whose factor changed.
  PathSet step(std::int64_t now);

  // 1..kFullWeight, to be multiplied with what hints say.
  [[nodiscard]] std::uint16_t factor(PathIndex path) const { return paths_[path].factor; }
  // Paths that were slow for long: worth another source port. Says so once.
  PathSet take_rehash() { return std::exchange(rehash_, 0); }

 private:
  struct Path {
    double area = 0;  // bytes x ns waited
    std::uint64_t delivered = 0;
    std::int64_t watched = 0;  // ns
    std::uint16_t factor = kFullWeight;
    int slow_steps = 0;
    int good_steps = 0;
    int patience = 0;  // good steps before a weight that was too much is tried again; 0: never slow
    std::uint16_t ceiling = kFullWeight;  // what was too much, less a little
    bool lifted = false;                  // the ceiling was, since it was set
    std::int64_t healed = 0;              // when it was slow last
    std::int64_t next_rehash = 0;
    std::int64_t rehash_backoff = 0;
  };
  [[nodiscard]] double latency(const Path& path) const;
  [[nodiscard]] double best_beside(const Path& path) const;
  bool lower(Path& path, double ratio, std::int64_t now);
  bool raise(Path& path);

  std::array<Path, kMaxPaths> paths_{};
  PathSet seen_ = 0;  // paths with anything to tell
  PathSet rehash_ = 0;
  std::int64_t last_ = 0;
};

}  // namespace fabric::core
