#include "perf/idle.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <csignal>

#include "perf/clock.h"

namespace fabric::perf {
namespace {

std::atomic<int> signals{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void on_signal(int /*number*/) { signals.fetch_add(1, std::memory_order_relaxed); }

// Bounds how late a signal is seen; a plugin wakes us earlier when something moved.
constexpr int kWaitUs = 20'000;
// Without fabricWait_v1: yield a few times, then sleep ever longer.
constexpr unsigned kYields = 16;
constexpr std::int64_t kShortestSleepNs = 20'000;
constexpr std::int64_t kLongestSleepNs = 1'000'000;

}  // namespace

int stop_signals() { return signals.load(std::memory_order_relaxed); }

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;  // no SA_RESTART: a sleep ends at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void Idle::wait() {
  if (const int seen = stop_signals(); seen > 0) {
    const std::int64_t now = monotonic_ns();
    if (still_since_ns_ == 0) still_since_ns_ = now;
    if (seen > 1 || now - still_since_ns_ > kGraceNs) throw Interrupted{};
  }
  ++rounds_;
  if (how_ == Wait::spin) return;
  if (plugin_.can_wait()) {
    plugin_.wait(kWaitUs);
    return;
  }
  if (rounds_ <= kYields) {
    sched_yield();
    return;
  }
  const unsigned doublings = std::min(rounds_ - kYields, 10U);
  const std::int64_t ns = std::min(kShortestSleepNs << doublings, kLongestSleepNs);
  const timespec sleep{0, ns};
  nanosleep(&sleep, nullptr);
}

}  // namespace fabric::perf
