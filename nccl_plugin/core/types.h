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
// is. So many messages without a copy may wait; beyond them one is taken only into a known CTS.
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

// How a connection moves bytes. Chosen for each (path, epoch) when it is dialled: a path may be a
// stream in one epoch and one-sided in the next.
enum class PathKind : std::uint8_t {
  stream,     // the receiver places the bytes (TCP)
  one_sided,  // the sender's NIC writes them where a CTS points (RDMA WRITE)
};

// The transport's handle of registered memory (a set of MRs, one for each rail). The core carries
// it from post() to Outgoing and Buffer, and never looks into it. nullptr: not registered.
using Region = const void*;

// One buffer of a posted receive as the sender sees it. `where` and `keys` are for one-sided
// writes; where all paths are streams they are 0. With `device` it is memory that no CPU writes (a
// GPU's): no stream may fill it, and nothing goes there before its CTS.
struct Slot {
  std::uint64_t size = 0;
  std::uint64_t where = 0;  // remote virtual address
  std::int32_t tag = 0;
  std::array<std::uint32_t, kMaxRails> keys{};  // rkey by the receiver's rail; 0: none there
  bool device = false;
};

// Clear to send, as NCCL calls it: a posted receive that the receiver announced. The sender may
// fill its slots and nothing else.
struct Cts {
  GroupId group = 0;
  std::uint8_t count = 0;
  std::array<Slot, kMaxSlots> slots{};

  // What may be sent eagerly could belong to it.
  [[nodiscard]] bool guessable() const { return count == 1 && !slots[0].device; }
};

// How many breaks were posted up to a group; wraps. A break is a receive of several slots or into
// device memory, or a single receive with another tag than the single one right before it. An eager
// message counts on there being no further break; the era says which breaks its sender knew of.
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
  bool eager = false;       // sent before its CTS was known
  Era era = 0;              // with `eager`
  std::int32_t tag = 0;     // with `eager`: the message's. A CTS's slot has the tag otherwise
  bool budget_low = false;  // the sender is about to run out of its copy budget
  std::uint8_t follow = 0;  // so many chunks of the message, in order, come next on this stream
};
inline constexpr std::size_t kMostFollow = 15;

// The notification of a one-sided write: what its completion tells. Order of landing is arbitrary;
// a notification may come twice, and that of the last chunk first.
//
// The immediate cannot carry the size of a message: its last chunk says it. A message has
// `chunk * chunk_size + length` bytes, by `chunk` and `length` of the notification with `last`.
struct Landed {
  std::uint16_t group = 0;   // the group modulo kLandedGroups
  std::uint8_t slot = 0;     // 0..kMaxSlots - 1
  std::uint32_t chunk = 0;   // ordinal in the message; below kLandedChunks
  std::uint32_t length = 0;  // bytes, as the completion says. 0 with a chunk that is not the last:
                             // a write without immediate took the whole chunk before it
  bool last = false;         // the last chunk of its message
};
inline constexpr std::uint32_t kLandedGroups = 1024;      // 10 bits of the immediate
inline constexpr std::uint32_t kLandedChunks = 1U << 18;  // 18 bits: the most chunks of a message
// At most so many groups may be posted and not forgotten: then the remainder modulo kLandedGroups
// names one of them, and none that was forgotten lately.
inline constexpr std::uint32_t kLandingGroups = kLandedGroups / 2;

// What the receiver has whole, in few bytes that are written again and again to the same place
// (verbs/progress_line.h). Every statement stays true for ever: applied late, twice or in any order
// it does no harm.
inline constexpr std::size_t kProgressGroups = 32;  // NCCL has no more receives under way
struct Progress {
  GroupId done_below = 0;                             // all groups before this one are whole
  std::array<std::uint8_t, kProgressGroups> whole{};  // groups from done_below on: a bit per slot
  bool beyond = false;  // more is whole than fits: state() has to be told over a control link
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
  Cts cts;
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
