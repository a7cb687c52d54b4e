#include "core/schedule.h"

#include <algorithm>
#include <bit>

namespace fabric::core {

namespace {

template <typename Test>
PathSet where(std::span<const PathView> live, Test test) {
  PathSet set = 0;
  for (const PathView& view : live) {
    if (test(view)) {
      set |= bit(view.path);
    }
  }
  return set;
}

}  // namespace

PathSet eligible(std::span<const PathView> live) {
  const PathSet home = where(live, [](const PathView& view) {
    return view.home && view.trusted && view.weight >= kFullWeight;
  });
  if (home != 0) {
    return home;
  }
  std::array<bool, kMaxRails> own_sender{};
  std::array<bool, kMaxRails> own_receiver{};
  for (const PathView& view : live) {
    if (view.base && view.trusted && view.weight != 0) {
      own_sender[sender_rail(view.path)] = true;
      own_receiver[receiver_rail(view.path)] = true;
    }
  }
  const PathSet trusted = where(live, [&](const PathView& view) {
    return view.trusted && view.weight != 0 &&
           (view.base || !own_sender[sender_rail(view.path)] ||
            !own_receiver[receiver_rail(view.path)]);
  });
  if (trusted != 0) {
    return trusted;
  }
  const PathSet weighted = where(live, [](const PathView& view) { return view.weight != 0; });
  return weighted != 0 ? weighted : where(live, [](const PathView&) { return true; });
}

std::optional<PathIndex> Share::next(PathSet candidates) const {
  std::optional<PathIndex> best;
  for (PathSet rest = candidates; rest != 0; rest &= rest - 1) {
    const auto path = static_cast<PathIndex>(std::countr_zero(rest));
    if (!best || carried_[path] < carried_[*best]) {
      best = path;
    }
  }
  return best;
}

void Share::carried(PathIndex path, std::uint64_t bytes, std::uint16_t weight) {
  const std::uint64_t divisor = std::max<std::uint16_t>(weight, 1);
  carried_[path] += (std::max<std::uint64_t>(bytes, 64) * kFullWeight) / divisor;
}

void Share::join(PathIndex path, PathSet others) {
  others &= ~bit(path);
  std::optional<std::uint64_t> least;
  for (PathSet rest = others; rest != 0; rest &= rest - 1) {
    const auto other = static_cast<PathIndex>(std::countr_zero(rest));
    least = std::min(least.value_or(carried_[other]), carried_[other]);
  }
  if (least) {
    carried_[path] = std::max(carried_[path], *least);
  }
}

}  // namespace fabric::core
