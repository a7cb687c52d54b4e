// The receiving half of a comm.
//
// What always holds:
// - A byte is placed only into a posted receive that is not whole, and only for the newest
//   connection of its path; what a stream brings never into device memory. Whatever is stale or
//   already here goes nowhere.
// - No byte is ever placed where another belongs, not for a moment: NCCL's LL and LL128 read a
//   buffer while it fills, and take for theirs whatever bears the number of the step.
// - A path's epochs never go back: after fence(path, e) nothing below e is admitted again.
// - A group is done once, when every one of its slots is whole; the answer to a fence is given only
//   after the transport has retired the old connection.
// - What comes before its receive (see SendCore) is kept here, within the sender's own budget for
//   copied messages, until that receive is posted and takes it, or turns out not to be its place.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "core/fifo.h"
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
  Region region = nullptr;  // the transport's; see landed_rails()
};

struct Acknowledgement {
  GroupId group = 0;
  std::uint8_t slot = 0;
};

// What became of the notification of a one-sided write. `place`: counted. `duplicate`: the chunk
// was here. `stale`: not of the newest connection of its path. `refuse`: it breaks the protocol.
struct Landing {
  Verdict verdict = Verdict::refuse;
  bool whole = false;  // a message is whole by it
};

class ReceiveCore {
 public:
  explicit ReceiveCore(std::uint32_t chunk_size);

  // Posts a receive of 1..kMaxSlots buffers; its CTS waits in next_cts().
  GroupId post(std::span<const Buffer> buffers);
  [[nodiscard]] bool done(GroupId group) const;  // also true for what was forgotten
  [[nodiscard]] std::uint64_t received(GroupId group, std::size_t slot) const;
  void forget(GroupId group);  // the caller has been told

  // Receives that are posted and not forgotten, in posted order. With one-sided paths there may be
  // kLandingGroups of them at most.
  [[nodiscard]] std::size_t posted() const { return groups_.size(); }
  // The receiver's rails over which one-sided writes of a group came: a bit per rail. Those NICs
  // are to be flushed before a GPU reads. 0: none, or the group is forgotten.
  [[nodiscard]] std::uint8_t landed_rails(GroupId group) const;

  // A new connection. False: stale, refuse it, or an older one of that path is not retired yet.
  // `credits`: of a one-sided one, how many receives are kept posted for it.
  bool admit(PathIndex path, Epoch epoch, PathKind kind = PathKind::stream,
             std::uint32_t credits = 0);
  // The connection of this path is gone; what it had begun is dropped. Not for a one-sided one.
  void retire(PathIndex path);
  // A one-sided connection is given up: the transport moves its QP to the error state. Its NIC may
  // still write, and what lands still counts, until retired().
  void begin_retire(PathIndex path);
  // The transport confirms that nothing of this connection can write any more: its QP is in the
  // error state and every receive of it was flushed, or the device is gone. Idempotent; false:
  // that connection is not being retired.
  bool retired(PathIndex path, Epoch epoch);
  // Between the two.
  [[nodiscard]] bool retiring(PathIndex path) const { return paths_[path].retiring; }
  // "Retire all before `epoch`." True when the open connection is older: drain a stream, then
  // retire(); begin_retire() a one-sided one.
  bool fence(PathIndex path, Epoch epoch);
  // May that fence be answered, with state()? "Not yet", while anything older may still write.
  [[nodiscard]] bool fence_done(PathIndex path, Epoch epoch) const;
  [[nodiscard]] Epoch epoch(PathIndex path) const { return paths_[path].current; }
  [[nodiscard]] bool open(PathIndex path) const { return paths_[path].open; }

  // A one-sided write has landed, by its notification. Once for each receive that it used up.
  Landing land(PathIndex path, Epoch epoch, const Landed& landed);
  // How many landed on the newest connection of this path.
  [[nodiscard]] std::uint64_t landed(PathIndex path) const { return paths_[path].landed; }
  // The same, and the sender is told of it: for SendCore::on_landed(). The receives that they used
  // up have to be posted again before.
  std::uint64_t tell_landed(PathIndex path);
  // The paths whose sender lacks half of its credits or more: it has to be told now.
  [[nodiscard]] PathSet credits_due() const { return credits_due_; }

  // On a stream: a chunk begins on a connection; finish() when its last byte is there. finish()
  // says whether a message is whole by it.
  Placement begin(PathIndex path, Epoch epoch, const ChunkHeader& header);
  bool finish(PathIndex path);
  // How many chunks of the message, right behind the one that arrives on this path, are neither
  // here nor arriving: what the sender has promised of them (ChunkHeader::follow) may be read in
  // advance. At most `most`.
  [[nodiscard]] std::size_t missing_behind(PathIndex path, std::size_t most) const;

  // Does the sender send small messages eagerly? Then their CTS and acknowledgements may wait; CTS
  // not once its copy budget is low, for what it does not copy needs them.
  void expect_eager(bool expected) { eager_expected_ = expected; }
  // The sender may be waiting for what is to be told. The rest may be told together, soon.
  [[nodiscard]] bool urgent() const { return urgent_ || untold(6); }
  // There is enough to tell that it is worth a moment in which nothing comes in.
  [[nodiscard]] bool worth_telling() const { return urgent_ || soon_ || untold(4); }
  // Groups that were whole and forgotten before they were told are told in one number: all below
  // it are whole. Comes before the CTS and acknowledgements of the others.
  std::optional<GroupId> next_done_below();
  std::optional<Cts> next_cts();
  std::optional<Acknowledgement> next_acknowledgement();
  [[nodiscard]] bool has_output() const {
    return below_untold_ || !pending_cts_.empty() || !acknowledgements_.empty();
  }
  // Everything; what the three above held is in it.
  [[nodiscard]] ReceiverState state() const;
  // The acknowledgements of state() alone.
  [[nodiscard]] Progress progress() const;
  void clear_output();

  [[nodiscard]] bool waiting() const { return unfinished_ != 0; }
  // One of them is for more than may be sent eagerly.
  [[nodiscard]] bool waiting_large() const { return unfinished_large_ != 0; }

 private:
  struct Piece {
    Buffer buffer;
    bool sized = false;  // its size is known, and `chunks` has all of them
    bool whole = false;
    bool waits = false;  // its sender's caller waits for the acknowledgement, though it is small
    std::uint64_t size = 0;
    std::uint32_t have = 0;
    std::vector<bool> chunks;
  };
  struct Group {
    std::uint8_t count = 0;
    std::uint8_t whole = 0;
    bool forgotten = false;
    bool large = false;  // needs its CTS before it can be sent
    std::uint8_t landed_rails = 0;
    Era era = 0;
    std::array<Piece, kMaxSlots> pieces{};
  };
  // What the sender of an eager message took its receive to be.
  struct Guess {
    Era era = 0;
    std::int32_t tag = 0;
  };
  // A message that came before its receive.
  struct Kept {
    std::vector<std::byte> bytes;
    Guess guess;
  };
  struct Partial {
    GroupId group = 0;
    std::uint32_t chunk = 0;
    std::uint8_t slot = 0;
    bool duplicate = false;
    bool eager = false;
    bool kept = false;  // goes to the path's `kept`: its receive was not posted when it began
    Guess guess;
  };
  struct Path {
    Epoch floor = 1;
    Epoch current = 0;
    bool open = false;
    bool retiring = false;  // given up, while its NIC may still write
    PathKind kind = PathKind::stream;
    std::uint64_t landed = 0;  // notifications of the connection of `current`
    std::uint64_t told = 0;    // of them
    std::uint32_t credits = 0;
    std::optional<Partial> partial;
    std::vector<std::byte> kept;
  };

  // In sight of both files of the core.
  Group* find(GroupId group) {
    return group < base_ || group - base_ >= groups_.size() ? nullptr : &groups_[group - base_];
  }
  [[nodiscard]] const Group* find(GroupId group) const {
    return group < base_ || group - base_ >= groups_.size() ? nullptr : &groups_[group - base_];
  }
  [[nodiscard]] Cts cts_of(GroupId group) const;
  // So many eighths of what the sender may have unacknowledged.
  [[nodiscard]] bool untold(std::size_t eighths) const {
    return untold_bytes_ >= kCopyBudget / 8 * eighths ||
           std::max(untold_messages_, pending_cts_.size()) >= kCopyMessages / 8 * eighths;
  }
  [[nodiscard]] bool arriving(GroupId group, std::uint8_t slot, std::uint32_t chunk) const;
  [[nodiscard]] bool holds(GroupId group, const Guess& guess) const;
  [[nodiscard]] GroupId group_of(std::uint16_t remainder) const;
  static bool size_piece(Piece& piece, std::uint64_t size, std::uint32_t chunks);
  Verdict note_landed(GroupId id, PathIndex path, const Landed& landed);
  void close_path(PathIndex path);
  [[nodiscard]] bool cts_late() const { return eager_expected_ && !sender_low_; }
  void drop_partial(PathIndex path);
  void note_break(const Group& group);
  Placement begin_eager(PathIndex path, Partial partial, const ChunkHeader& header);
  Placement place(PathIndex path, const Partial& partial, const ChunkHeader& header);
  bool take_kept(GroupId id, const Kept& kept);
  bool deliver(GroupId id, std::uint8_t slot, std::uint32_t chunk);
  void settle();

  std::uint32_t chunk_size_;
  Fifo<Group> groups_;
  GroupId base_ = 0;
  std::size_t unfinished_ = 0;
  std::size_t unfinished_large_ = 0;
  std::array<Path, kMaxPaths> paths_{};
  PathSet arriving_ = 0;  // the paths with a partial
  PathSet credits_due_ = 0;
  Era era_ = 0;                          // of the last group posted
  bool single_ = true;                   // it had one slot, or none is posted
  std::optional<std::int32_t> run_tag_;  // its tag, if it had one slot
  std::map<GroupId, Kept> eager_;        // came before their receives, and may still fit
  std::size_t eager_bytes_ = 0;
  bool eager_expected_ = false;
  bool sender_low_ = false;  // the sender is about to run out of its copy budget, as it said last
  bool urgent_ = false;
  bool soon_ = false;                // one that is waited for is not acknowledged yet
  std::size_t untold_bytes_ = 0;     // of messages whose acknowledgement waits
  std::size_t untold_messages_ = 0;  // and how many they are
  bool below_untold_ = false;        // base_ says more than was told
  Fifo<GroupId> pending_cts_;
  Fifo<Acknowledgement> acknowledgements_;
};

}  // namespace fabric::core
