// Who sends what to whom, as plain arithmetic: the same on every rank. Pure.
//
// Ring all-reduce over W ranks: each channel's range is cut into W chunks, a chunk into slices.
// Step s sends chunk (rank - s) and receives chunk (rank - s - 1), modulo W. The first W - 1 steps
// add what comes (reduce-scatter), the next W - 1 store it (all-gather). What step s sends is what
// step s - 1 received, so message q may go once message q - slices has come.
#pragma once

#include <cstddef>
#include <vector>

#include "perf/options.h"

namespace fabric::perf {

struct Extent {
  std::size_t offset;  // in elements (ring) or bytes
  std::size_t count;
};

// Part `index` of `parts` of `whole`, cut at multiples of `align` so that parts differ little.
Extent part_of(Extent whole, std::size_t index, std::size_t parts, std::size_t align = 1);

class RingPlan {
 public:
  // `range`: the channel's elements; `slice`: elements per message, at least 1. A chunk has at
  // least `least` messages, some of them empty if need be: no more may be received in one group,
  // since message q waits for the one that came a chunk before.
  RingPlan(int rank, int world, Extent range, std::size_t slice, std::size_t least = 1);

  std::size_t messages() const { return steps_ * slices_; }  // sent, and as many received
  std::size_t slices() const { return slices_; }             // per chunk
  Extent sent(std::size_t q) const { return slice_of(chunk(q / slices_, 0), q % slices_); }
  Extent received(std::size_t q) const { return slice_of(chunk(q / slices_, 1), q % slices_); }
  bool reduces(std::size_t q) const { return q < messages() / 2; }
  // All-gather stores where reduce-scatter sent from: message q may only be received once that send
  // is done. Number of sends that must be done before receiving q.
  std::size_t sends_before_receiving(std::size_t q) const {
    return reduces(q) ? 0 : q - messages() / 2 + 1;
  }

 private:
  std::size_t chunk(std::size_t step, std::size_t behind) const;
  Extent slice_of(std::size_t chunk_index, std::size_t slice) const;

  std::size_t rank_;
  std::size_t world_;
  Extent range_;
  std::size_t slice_;
  std::size_t slices_;
  std::size_t steps_;
};

// One connection, from `source` to `destination`; kTokenChannel is the ring of small messages in
// which rank 0 says whether an iteration is the last.
inline constexpr int kTokenChannel = -1;
struct Link {
  int source;
  int destination;
  int channel;
  bool operator==(const Link&) const = default;
};
// All connections of a job, in an order all ranks agree on. `answers`: p2p has the way back, too,
// which only ping-pong needs.
std::vector<Link> links_of(Mode mode, int world, int channels, bool answers = true);

// Messages of at most `slice` bytes that cover `range`; at least `least`, empty ones if need be.
std::vector<Extent> slices_of(Extent range, std::size_t slice, std::size_t least = 1);

// p2p: how many messages of `size` bytes fit `memory`, which makes one batch (an iteration of the
// loop): at least `least`.
std::size_t messages_per_batch(std::size_t size, std::size_t least = 1,
                               std::size_t memory = kBatchMemory);

}  // namespace fabric::perf
