#include "perf/runner.h"

#include <nlohmann/json.hpp>

#include "perf/clock.h"

namespace fabric::perf {

bool Runner::is_last(std::uint64_t iteration, std::int64_t now) const {
  if (token_.stop_wanted() || stop_signals() > 0) return true;
  if (options_.iterations) {
    return (iteration + 1) * job_.messages_per_iteration() >= *options_.iterations;
  }
  return static_cast<double>(now - begin_ns_) * 1e-9 >= options_.duration_s;
}

void Runner::run() {
  Contents& contents = job_.contents();
  contents.schedule_fill(0, 0);
  contents.finish();
  contents.schedule_fill(1, 1);
  begin_ns_ = last_row_ns_ = monotonic_ns();
  begin_cpu_ns_ = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  std::uint64_t corrupt_told = 0;
  for (std::uint64_t iteration = 0;; ++iteration) {
    const std::int64_t start = monotonic_ns();
    token_.begin(iteration, is_last(iteration, start));
    one(iteration);
    // What is left of checking the set before this one and of filling the next.
    contents.finish();
    contents.schedule_check(iteration % kSets, iteration);
    if (!token_.last()) contents.schedule_fill(iteration % kSets, iteration + kSets);
    done_ = iteration + 1;
    progress_.iterations.store(done_ * job_.messages_per_iteration(), std::memory_order_relaxed);
    if (token_.last()) contents.finish();
    const std::int64_t now = monotonic_ns();
    const std::uint64_t corrupt = contents.corrupt_bytes();
    // Short iterations would be a flood: one row an interval, and one whenever corruption is found.
    if (now - last_row_ns_ >= std::int64_t{options_.interval_ms} * 1'000'000 ||
        corrupt != corrupt_told) {
      rows_.write(iteration_row(now, iteration, static_cast<double>(now - start) * 1e-9,
                                corrupt - corrupt_told));
      last_row_ns_ = now;
      corrupt_told = corrupt;
    }
    if (token_.last()) return;
  }
}

void Runner::one(std::uint64_t iteration) {
  auto& works = job_.works();
  for (auto& work : works) work->begin(iteration % kSets);
  Contents& contents = job_.contents();
  while (true) {
    if (stop_signals() > 0) token_.want_stop();
    bool moved = token_.done() ? false : token_.progress();
    bool done = token_.done();
    for (auto& work : works) {
      if (work->done()) continue;
      moved |= work->progress();
      done &= work->done();
    }
    if (moved) {
      progress_.bytes.store(job_.bytes(), std::memory_order_relaxed);
      idle_.moved();
    }
    if (done) return;
    if (!moved && !contents.step()) idle_.wait();
  }
}

EndFigures Runner::figures() const {
  EndFigures f;
  f.iterations = done_ * job_.messages_per_iteration();
  f.bytes = job_.bytes();
  f.seconds = begin_ns_ == 0 ? 0.0 : static_cast<double>(monotonic_ns() - begin_ns_) * 1e-9;
  f.cpu_seconds =
      begin_ns_ == 0
          ? 0.0
          : static_cast<double>(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_ns_) * 1e-9;
  f.bus_factor = job_.bus_factor();
  f.corrupt_bytes = job_.contents().corrupt_bytes();
  return f;
}

}  // namespace fabric::perf
