// How many descriptors strangers may hold: whoever has connected and not yet shown a hello of ours.
// The process needs descriptors for its own connections to come back, and for its other work.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

namespace fabric::host {

struct DescriptorBudget {
  static constexpr std::size_t kLeast = 8;  // strangers, for every peer is one at first
  static constexpr std::size_t kMost = 512;
  static constexpr std::size_t kReserveMost = 256;

  std::size_t strangers = kMost;  // at once
  // Descriptors have the lowest number that is free: one of this number or more says that all
  // below are in use. Those from here on are the job's own, so that at most kLeast strangers have
  // one.
  std::size_t reserved_from = 0;

  // Of a process that may have `limit` descriptors (RLIMIT_NOFILE).
  static DescriptorBudget of(rlim_t limit) {
    const auto all = static_cast<std::size_t>(std::min<rlim_t>(limit, rlim_t{1} << 30U));
    const std::size_t reserve = std::min(all / 8, kReserveMost);
    return {std::clamp(all / 4, kLeast, kMost), all - reserve};
  }
  static DescriptorBudget now() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return of(limit.rlim_cur);
  }
};

}  // namespace fabric::host
