// What a rank does while nothing moves: block, sleep or spin; and what it does when a signal came.
#pragma once

#include <cstdint>

#include "perf/options.h"
#include "perf/plugin.h"

namespace fabric::perf {

// SIGINT and SIGTERM received so far.
int stop_signals();
void catch_stop_signals();

// Thrown when a signal asks to end and then nothing moves: a stalled collective, absent peers.
struct Interrupted {};

class Idle {
 public:
  Idle(Plugin& plugin, Wait how) : plugin_(plugin), how_(how) {}
  // Something moved: the next wait is short again.
  void moved() {
    rounds_ = 0;
    still_since_ns_ = 0;
  }
  // Nothing moved. Throws Interrupted on a second signal, or when nothing moved for kGraceNs after
  // the first.
  void wait();

 private:
  static constexpr std::int64_t kGraceNs = 2'000'000'000;
  Plugin& plugin_;
  Wait how_;
  unsigned rounds_ = 0;
  std::int64_t still_since_ns_ = 0;  // with a signal pending; 0: not so
};

}  // namespace fabric::perf
