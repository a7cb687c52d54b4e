// CLOCK_MONOTONIC in nanoseconds: the time base of every row.
#pragma once

#include <cstdint>
#include <ctime>

namespace fabric::perf {

inline std::int64_t clock_ns(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
inline std::int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

}  // namespace fabric::perf
