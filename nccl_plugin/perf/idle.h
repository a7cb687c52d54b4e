// What a rank does while nothing moves: block, sleep or spin; and what it does when a signal came.
#pragma once

#include <cstdint>

#include "perf/options.h"
#include "perf/plugin.h"

namespace fabric::perf {

// SIGINT and SIGTERM received so far.
int stop_signals();
void catch_stop_signals();

// Thrown when a signal asks to end and the others did not agree in time: a stalled collective.
struct Interrupted {};

class Idle {
 public:
  Idle(Plugin& plugin, Wait how) : plugin_(plugin), how_(how) {}
  // Something moved: the next wait is short again.
  void moved() { rounds_ = 0; }
  // Nothing moved. Throws Interrupted on a second signal, or kGraceNs after the first.
  void wait();

 private:
  static constexpr std::int64_t kGraceNs = 2'000'000'000;
  Plugin& plugin_;
  Wait how_;
  unsigned rounds_ = 0;
  std::int64_t first_signal_ns_ = 0;
};

}  // namespace fabric::perf
