// Which path carries the next chunk. Pure: the caller says what it knows of each path.
//
// Rules, first that leaves a path wins:
//   1. the home path, when it is up, trusted and at full weight;
//   2. every trusted path with a weight, cross-rail ones only for rails whose own pair is not among
//      them, shared out by weight;
//   3. every path with a weight, though it came back only just now;
//   4. every live path: a hint never removes the last one.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include "core/types.h"

namespace fabric::core {

inline constexpr std::uint16_t kFullWeight = 1000;

struct PathView {
  PathIndex path = 0;
  bool home = false;
  bool base = false;     // one of the pairs connected from the start (same rail at both ends)
  bool trusted = false;  // past its hold-down
  std::uint16_t weight = 0;
};

using PathSet = std::uint64_t;  // bit per PathIndex
constexpr PathSet bit(PathIndex path) { return PathSet{1} << path; }
template <typename F>
void each(PathSet set, F&& function) {
  for (; set != 0; set &= set - 1) {
    function(static_cast<PathIndex>(std::countr_zero(set)));
  }
}

// `live`: the paths that have a connection, in any order.
PathSet eligible(std::span<const PathView> live);

// Shares chunks among paths in proportion to weight: the next goes to the path that is furthest
// behind. A path that could not take one is skipped, not waited for.
class Share {
 public:
  // The path among `candidates` to try next.
  [[nodiscard]] std::optional<PathIndex> next(PathSet candidates) const;
  void carried(PathIndex path, std::uint64_t bytes, std::uint16_t weight);
  // A path joins level with the others: it neither makes up for its absence nor starves.
  void join(PathIndex path, PathSet others);

 private:
  std::array<std::uint64_t, kMaxPaths> carried_{};  // bytes / weight, scaled
};

}  // namespace fabric::core
