// What the two ends are told of their paths, and what they do about it: hints that are wrong, late,
// contradictory or gone, as of a daemon that is mad, stopped or killed, and the plugin's own policy
// (core/reported_down.h, core/schedule.h) driven by them.
//
// Whatever is said, these hold: no word takes the last path, nor one that was connected after the
// word came; and a path that is live is always found.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/reported_down.h"
#include "core/schedule.h"
#include "tests/sim/job.h"

namespace fabric::sim {

enum class End : std::uint8_t { sender, receiver };

class Steering {
 public:
  Steering(Random& random, const std::vector<core::PathIndex>& paths);

  // One end hears something else than before. True: nothing any more.
  bool update(std::int64_t now);
  [[nodiscard]] bool contradict() const;
  // The comm has what no stream may carry.
  void with_device_memory() { policy_.device_memory = true; }
  // Nothing is wrong any more, and all paths of the same rail at both ends share.
  void well(std::int64_t now);
  // Is this path, connected since `since`, to be given up at this end?
  [[nodiscard]] bool should_close(End end, core::PathIndex path, std::int64_t since,
                                  core::PathSet live) const;
  // Would the rule allow that, by what was really said and when?
  [[nodiscard]] bool may_close(End end, core::PathIndex path, std::int64_t since,
                               core::PathSet live) const;
  [[nodiscard]] bool reports_down(End end, core::PathIndex path) const {
    return (said_[at(end)] & core::bit(path)) != 0;
  }

  // The path for the next chunk. `one_sided`: which of the live ones are.
  std::optional<core::PathIndex> next(core::PathSet live, core::PathSet one_sided,
                                      core::PathSet blocked);
  // Has one of these paths a weight, and is it trusted?
  [[nodiscard]] bool carries(core::PathSet paths) const;
  void carried(core::PathIndex path, std::size_t bytes);
  [[nodiscard]] bool weightless(core::PathSet live) const;
  [[nodiscard]] bool untrusted(core::PathSet live) const;

 private:
  static constexpr std::size_t at(End end) { return static_cast<std::size_t>(end); }

  Random& random_;
  const std::vector<core::PathIndex>& paths_;
  std::array<core::ReportedDown, 2> reported_;
  std::array<core::PathSet, 2> said_{};  // kept beside it, to check it
  std::array<std::array<std::int64_t, core::kMaxPaths>, 2> since_{};
  std::array<std::uint16_t, core::kMaxPaths> weight_{};
  core::PathSet trusted_ = 0;
  core::Policy policy_;
  core::Share share_;
  core::PathSet eligible_ = 0;
};

}  // namespace fabric::sim
