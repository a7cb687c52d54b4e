// The receiving half of a comm.
//
// What always holds:
// - A byte is placed only into a posted receive that is not whole, and only for the newest
//   connection of its path. Whatever is stale or already here goes nowhere.
// - A path's epochs never go back: after fence(path, e) nothing below e is admitted again.
// - A group is done once, when every one of its slots is whole; the answer to a fence is given only
//   after the transport has retired the old connection.
#pragma once

#include <deque>
#include <optional>
#include <span>

#include "core/types.h"

namespace fabric::core {

enum class Verdict {
  place,      // write it to `data`, then finish()
  duplicate,  // already here: swallow it, then finish()
  stale,      // not of the newest connection of its path
  refuse,     // breaks the protocol: drop the connection
};

struct Placement {
  Verdict verdict = Verdict::refuse;
  std::byte* data = nullptr;
};

struct Buffer {
  std::byte* data = nullptr;
  Slot slot;
};

struct Acknowledgement {
  GroupId group = 0;
  std::uint8_t slot = 0;
};

class ReceiveCore {
 public:
  explicit ReceiveCore(std::uint32_t chunk_size);

  // Posts a receive of 1..kMaxSlots buffers; its grant waits in next_grant().
  GroupId post(std::span<const Buffer> buffers);
  [[nodiscard]] bool done(GroupId group) const;  // also true for what was forgotten
  [[nodiscard]] std::uint64_t received(GroupId group, std::size_t slot) const;
  void forget(GroupId group);  // the caller has been told

  // A new connection. False: stale, refuse it. An older one of that path must be retired before.
  bool admit(PathIndex path, Epoch epoch);
  // The connection of this path is gone; what it had begun is dropped.
  void retire(PathIndex path);
  // "Retire all before `epoch`." True when the open connection is older: drain it, then retire().
  bool fence(PathIndex path, Epoch epoch);
  [[nodiscard]] Epoch epoch(PathIndex path) const { return paths_[path].current; }
  [[nodiscard]] bool open(PathIndex path) const { return paths_[path].open; }

  // A chunk begins on a connection; finish() when its last byte is there. For a one-sided write
  // both at once, when its notification arrives. finish() says whether a message is whole by it.
  Placement begin(PathIndex path, Epoch epoch, const ChunkHeader& header);
  bool finish(PathIndex path);

  std::optional<Grant> next_grant();
  std::optional<Acknowledgement> next_acknowledgement();
  [[nodiscard]] bool has_output() const { return !grants_.empty() || !acknowledgements_.empty(); }
  // Everything; what next_grant() and next_acknowledgement() held is in it.
  [[nodiscard]] ReceiverState state() const;
  void clear_output();

  [[nodiscard]] bool waiting() const { return unfinished_ != 0; }

 private:
  struct Piece {
    Buffer buffer;
    bool sized = false;
    bool whole = false;
    std::uint64_t size = 0;
    std::uint32_t have = 0;
    std::vector<bool> chunks;
  };
  struct Group {
    std::uint8_t count = 0;
    std::uint8_t whole = 0;
    bool forgotten = false;
    std::array<Piece, kMaxSlots> pieces{};
  };
  struct Partial {
    GroupId group = 0;
    std::uint32_t chunk = 0;
    std::uint8_t slot = 0;
    bool duplicate = false;
  };
  struct Path {
    Epoch floor = 1;
    Epoch current = 0;
    bool open = false;
    std::optional<Partial> partial;
  };

  Group* find(GroupId group);
  [[nodiscard]] const Group* find(GroupId group) const;
  [[nodiscard]] Grant grant_of(GroupId group) const;
  [[nodiscard]] bool arriving(GroupId group, std::uint8_t slot, std::uint32_t chunk) const;
  void settle();

  std::uint32_t chunk_size_;
  std::deque<Group> groups_;
  GroupId base_ = 0;
  std::size_t unfinished_ = 0;
  std::array<Path, kMaxPaths> paths_{};
  std::deque<GroupId> grants_;
  std::deque<Acknowledgement> acknowledgements_;
};

}  // namespace fabric::core
