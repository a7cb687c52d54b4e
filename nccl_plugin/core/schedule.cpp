#include "core/schedule.h"

#include <algorithm>
#include <bit>
#include <limits>

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

bool good(const PathView& view) { return view.trusted && view.weight != 0; }

// What `choose` says of the paths of the best kind.
template <typename Choose>
PathSet of_best_kind(std::span<const PathView> live, bool device_memory, Choose choose) {
  const auto kind = best_kind(live, device_memory);
  const auto other = [&](const PathView& view) { return kind && view.kind != *kind; };
  if (std::none_of(live.begin(), live.end(), other)) {
    return choose(live);
  }
  std::array<PathView, kMaxPaths> kept{};
  const auto end = std::remove_copy_if(live.begin(), live.end(), kept.begin(), other);
  return choose(std::span<const PathView>(kept.begin(), end));
}

PathSet primary_of_kind(std::span<const PathView> live) {
  const auto full = [](const PathView& view) { return view.trusted && view.weight >= kFullWeight; };
  const PathSet primary =
      where(live, [&](const PathView& view) { return view.primary && full(view); });
  return primary != 0
             ? primary
             : where(live, [&](const PathView& view) { return view.backup && full(view); });
}

PathSet eligible_of_kind(std::span<const PathView> live, const Policy& policy) {
  std::array<bool, kMaxRails> own_sender{};
  std::array<bool, kMaxRails> own_receiver{};
  for (const PathView& view : live) {
    if (view.base && good(view)) {
      own_sender[sender_rail(view.path)] = true;
      own_receiver[receiver_rail(view.path)] = true;
    }
  }
  PathSet trusted = where(live, [](const PathView& view) { return view.base && good(view); });
  each(where(live, [](const PathView& view) { return !view.base && good(view); }),
       [&](PathIndex path) {
         bool& sends = own_sender[sender_rail(path)];
         bool& receives = own_receiver[receiver_rail(path)];
         if (!sends && !receives) {
           trusted |= bit(path);
           sends = receives = true;
         }
       });
  const PathSet quick = trusted & ~where(live, [](const PathView& view) { return view.slow; });
  std::array<bool, kMaxRails> carries{};
  each(quick, [&](PathIndex path) { carries[sender_rail(path)] = true; });
  PathSet pool = 0;
  each(quick, [&](PathIndex path) {
    const std::uint8_t active = policy.backup_of[sender_rail(path)];
    if (active >= kMaxRails || !carries[active]) {
      pool |= bit(path);
    }
  });
  const PathSet full = where(live, [](const PathView& view) { return view.weight >= kFullWeight; });
  const bool open =
      policy.stripe || (policy.primary_lost && (pool & ~(policy.primaries & full)) != 0);
  const PathSet primary = primary_of_kind(live);
  if (!open && primary != 0) {
    return primary;
  }
  if (pool == 0) {
    pool = quick != 0 ? quick : trusted;
  }
  if (pool != 0) {
    return pool;
  }
  const PathSet weighted = where(live, [](const PathView& view) { return view.weight != 0; });
  return weighted != 0 ? weighted : where(live, [](const PathView&) { return true; });
}

}  // namespace

std::optional<PathKind> best_kind(std::span<const PathView> live, bool device_memory) {
  const auto weighted = [](const PathView& view) { return view.weight != 0; };
  const auto one_sided = [](const PathView& view) {
    return view.kind == PathKind::one_sided && view.validated;
  };
  if (device_memory && std::any_of(live.begin(), live.end(), one_sided)) {
    return PathKind::one_sided;
  }
  for (bool (*const test)(const PathView&) : {&good, +weighted}) {
    for (const PathKind kind : {PathKind::one_sided, PathKind::stream}) {
      if (std::any_of(live.begin(), live.end(),
                      [&](const PathView& view) { return view.kind == kind && test(view); })) {
        return kind;
      }
    }
  }
  return std::nullopt;
}

PathSet primary_place(std::span<const PathView> live, bool device_memory) {
  return of_best_kind(live, device_memory, primary_of_kind);
}

PathSet eligible(std::span<const PathView> live, const Policy& policy) {
  return of_best_kind(live, policy.device_memory,
                      [&](auto views) { return eligible_of_kind(views, policy); });
}

std::optional<PathIndex> Share::next(PathSet candidates) const {
  if (candidates == 0) {
    return std::nullopt;
  }
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  each(candidates, [&](PathIndex path) { least = std::min(least, carried_[path]); });
  PathSet level = 0;
  each(candidates,
       [&](PathIndex path) { level |= carried_[path] - least <= level_ ? bit(path) : 0; });
  PathSet order = paths_;
  if (order != 0) {
    const auto many = static_cast<std::size_t>(std::popcount(order));
    for (std::size_t before = (turn_ + chunks_) % many; before != 0; --before) {
      order &= order - 1;
    }
  }
  const PathSet on = order == 0 ? level : level & (~PathSet{0} << std::countr_zero(order));
  return static_cast<PathIndex>(std::countr_zero(on != 0 ? on : level));
}

void Share::carried(PathIndex path, std::uint64_t bytes, std::uint16_t weight, bool again) {
  chunks_ += !again && bytes > level_ ? 1 : 0;
  const std::uint64_t divisor = std::max<std::uint16_t>(weight, 1);
  carried_[path] += (std::max<std::uint64_t>(bytes, 64) * kFullWeight) / divisor;
}

void Share::change(PathSet from, PathSet to) {
  const PathSet joining = to & ~from;
  PathSet level = to & from;
  if (level == 0) {
    level = from != 0 ? from : joining;
  }
  std::optional<std::uint64_t> least;
  each(level,
       [&](PathIndex path) { least = std::min(least.value_or(carried_[path]), carried_[path]); });
  each(joining, [&](PathIndex path) { carried_[path] = *least; });
}

void Share::begin_with(PathSet paths, std::size_t turn) {
  if (paths != 0) {
    paths_ = paths;
    turn_ = turn;
  }
}

void BatchSize::through(std::size_t chunks, std::int64_t took_ns) {
  if (chunks < most_) {
    return;  // there were no more
  }
  if (took_ns < 1'000'000) {
    most_ = std::min(2 * most_, kMost);
  } else if (took_ns > 4'000'000) {
    most_ = std::max(most_ / 2, kLeast);
  }
}

std::size_t most_outstanding(std::uint16_t weight, std::uint16_t heaviest, std::size_t window) {
  return weight >= heaviest ? std::numeric_limits<std::size_t>::max()
                            : std::max(kBacklog, window) / heaviest * weight;
}

}  // namespace fabric::core
