// Runs cases, each rank in a process of its own that lives for one case: a plugin that crashes,
// hangs or corrupts its memory fails the case that it did so in, and no other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conformance/world.h"

namespace fabric::conformance {

struct Job {
  std::string plugin;
  int abi = 11;
  int world = 2;
  std::optional<int> rank;  // of a job over several hosts: only this rank is run here
  std::string rendezvous;   // file:DIR or tcp:HOST:PORT; empty: a directory of our own
  int device = 0;
  std::uint64_t seed = 1;
  double timeout_s = 60;  // of each case
  Level level = Level::strict;
  bool verbose = false;
};

enum class Outcome { passed, failed, not_offered };

struct Verdict {
  std::string name;
  int abi;
  int world;
  int round;
  Outcome outcome;
  double seconds;
  std::string why;  // of what did not pass
};

// `round` tells apart the rendezvous of cases that run several times. Throws UsageError.
Verdict run_case(const Job& job, const Case& played, int round);

// Table versions that the plugin exports, of v8 to v12. Throws UsageError when it cannot be loaded.
std::vector<int> exported_versions(const std::string& plugin);

}  // namespace fabric::conformance
