// Who sends what to whom, as plain arithmetic: the same on every rank. Pure.
//
// Rings over W ranks. All-reduce: the range is cut into W chunks, a chunk into slices. Step s sends
// chunk (rank - s - 1) and receives chunk (rank - s - 2), modulo W. The first W - 1 steps add what
// comes: a reduce-scatter, after which rank r has chunk r. The next W - 1 store it: an all-gather.
// What step s sends is what step s - 1 received, so message q may go once message q - slices has
// come. Broadcast: the slices of the range go from the root around the ring, up to its predecessor.
//
// Chunk c is added up in the order of ranks c + 1, c + 2, ..., c (modulo W). Which chunk an element
// is in depends on the range and on W alone, so slices and channels do not change any sum.
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

// What a ring does, and which part of it: `channel` of `channels` has every so manieth slice.
struct RingWork {
  enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast };
  Kind kind = Kind::all_reduce;
  int root = 0;  // of a broadcast
  std::size_t channel = 0;
  std::size_t channels = 1;
};

class RingPlan {
 public:
  // `range`: in elements; `slice`: elements per message, at least 1. A chunk has at least `least`
  // messages, some of them empty if need be: no more may be received in one group, since message q
  // waits for the one that came a chunk before.
  RingPlan(int rank, int world, Extent range, std::size_t slice, std::size_t least = 1,
           const RingWork& work = {});

  std::size_t sends() const { return sends_; }        // messages
  std::size_t receives() const { return receives_; }  // messages
  std::size_t slices() const { return slices_; }      // per chunk, of this channel
  Extent sent(std::size_t q) const { return slice_of(q, 0); }
  Extent received(std::size_t q) const { return slice_of(q, 1); }
  bool reduces(std::size_t q) const { return q < reducing_; }
  // Number of receives that must be done before sending q.
  std::size_t receives_before_sending(std::size_t q) const { return q < lead_ ? 0 : q - lead_ + 1; }
  // An all-reduce stores where it sent from in its first half: message q may only be received once
  // that send is done. Number of sends that must be done before receiving q.
  std::size_t sends_before_receiving(std::size_t q) const {
    return q < overwriting_from_ ? 0 : q - overwriting_from_ + 1;
  }

 private:
  Extent slice_of(std::size_t q, std::size_t behind) const;

  std::size_t rank_;
  std::size_t world_;
  Extent range_;
  std::size_t slice_;
  RingWork work_;
  std::size_t slices_;
  std::size_t first_step_ = 0;
  std::size_t sends_ = 0;
  std::size_t receives_ = 0;
  std::size_t reducing_ = 0;          // receives that are added
  std::size_t lead_ = 0;              // sends that wait for nothing
  std::size_t overwriting_from_ = 0;  // the first receive that waits for a send
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
