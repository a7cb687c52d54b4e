// The nouns of the reliability core. Everything in core/ is plain code: no socket, no clock, no
// thread, no verbs. Sizes and offsets are bytes. One comm carries messages in one direction.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fabric::core {

inline constexpr std::size_t kMaxRails = 8;
inline constexpr std::size_t kMaxPaths = kMaxRails * kMaxRails;
inline constexpr std::size_t kMaxSlots = 8;      // receives in one group
inline constexpr std::size_t kCopyLimit = 8192;  // messages up to this are copied and done at once
inline constexpr std::size_t kCopyBudget =
    65536;  // copied bytes awaiting acknowledgement, per comm
inline constexpr std::size_t kCopyMessages = 256;  // and how many such messages
// With that budget spent for long a small message is sent from its caller's buffer, as a large one
// is. So many messages without a copy may wait; beyond them one is taken only into a known grant.
inline constexpr std::size_t kUncopiedMessages = 32;

using Sequence = std::uint64_t;  // n-th message posted by the sender
using GroupId = std::uint64_t;   // n-th receive posted by the receiver
using Epoch = std::uint32_t;     // n-th connection of one path of one comm; the sender numbers
using PathIndex = std::uint8_t;  // sender's rail * kMaxRails + receiver's rail

constexpr PathIndex path_index(std::size_t sender_rail, std::size_t receiver_rail) {
  return static_cast<PathIndex>(sender_rail * kMaxRails + receiver_rail);
}
constexpr std::size_t sender_rail(PathIndex path) { return path / kMaxRails; }
constexpr std::size_t receiver_rail(PathIndex path) { return path % kMaxRails; }

using PathSet = std::uint64_t;  // bit per PathIndex
constexpr PathSet bit(PathIndex path) { return PathSet{1} << path; }
template <typename F>
void each(PathSet set, F&& function) {
  for (; set != 0; set &= set - 1) {
    function(static_cast<PathIndex>(std::countr_zero(set)));
  }
}

// One buffer of a posted receive as the sender sees it. `where` and `key` are for one-sided writes
// (remote address and rkey); a byte stream leaves them 0.
struct Slot {
  std::uint64_t size = 0;
  std::uint64_t where = 0;
  std::uint32_t key = 0;
  std::int32_t tag = 0;
};

// A posted receive. The sender may fill its slots and nothing else.
struct Grant {
  GroupId group = 0;
  std::uint8_t count = 0;
  std::array<Slot, kMaxSlots> slots{};
};

// How many breaks were posted up to a group; wraps. A break is a receive of several slots, or a
// single receive with another tag than the single receive right before it. A message ahead of its
// grant counts on there being no further break; the era says which breaks its sender knew of.
using Era = std::uint16_t;

// A piece of a message on its way. Messages are cut on a fixed grid, so (group, slot, offset) names
// a chunk whoever sends it and however often.
struct ChunkHeader {
  GroupId group = 0;
  std::uint64_t message_size = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::uint8_t slot = 0;
  bool waits = false;       // small, and not copied: its caller waits for the acknowledgement
  bool ahead = false;       // sent before its grant was known
  Era era = 0;              // with `ahead`
  std::int32_t tag = 0;     // with `ahead`: the message's. A grant's slot has the tag otherwise
  bool budget_low = false;  // the sender is about to run out of its copy budget
};

// Chunk ordinals [first, last) of a message.
struct ChunkRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

struct SlotReport {
  bool whole = false;
  // All that is here: what a report leaves out is sent again. A stream's receiver drops that as a
  // duplicate, but a one-sided write lands, perhaps after the slot was whole and given back.
  std::vector<ChunkRange> have;
};

struct GroupReport {
  Grant grant;
  std::array<SlotReport, kMaxSlots> slots{};
};

// All the receiver knows. Every statement in it stays true for ever, so that it may be applied
// late, twice and in any order.
struct ReceiverState {
  GroupId done_below = 0;           // all groups before this one are whole
  std::vector<GroupReport> groups;  // every posted group from done_below on
};

// How many chunks a message of `size` has on a grid of `chunk`; an empty message has one, empty.
constexpr std::uint32_t chunk_count(std::uint64_t size, std::uint32_t chunk) {
  return size == 0 ? 1U : static_cast<std::uint32_t>((size + chunk - 1) / chunk);
}

}  // namespace fabric::core
