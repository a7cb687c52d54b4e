// Round trips between the two ranks of a pair, over all channels at once, every byte checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "perf/idle.h"
#include "perf/mesh.h"
#include "perf/options.h"

namespace fabric::perf {

struct Latency {  // half round trips, microseconds
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  std::size_t count = 0;
};

// Nearest-rank percentiles; all zero for no samples. Pure.
Latency summarize(std::vector<double> half_round_trips_us);

// How many round trips are worth doing with messages of this size. Pure.
int default_round_trips(std::size_t size);

struct PingPongResult {
  Latency latency;
  std::uint64_t corrupt_bytes = 0;
};

// Both ranks of a pair call it with the same options. The odd rank's latency is that of its own
// round trips (from its answer to the next message).
PingPongResult ping_pong(Plugin& plugin, Mesh& mesh, const Options& options, int channels,
                         int round_trips);

}  // namespace fabric::perf
