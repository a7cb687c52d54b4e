// The sending half of a comm.
//
// What always holds:
// - A message goes out only into a slot of its tag that a CTS offers. The n-th message of a tag
//   fills the n-th slot of that tag, in groups of one slot as in groups of several. Small messages
//   may go before their CTS where the peer takes that (allow_eager): see below.
// - A chunk is in one place at a time: unsent, on one path, or delivered. It leaves a failed path
//   only when the receiver has answered that path's fence.
// - A message is acknowledged by the receiving core alone. It is done when it is acknowledged and
//   no transport reads its bytes any more. A copied one is done once it was handed to a transport:
//   not before, for until then only the caller's polling finds its CTS; and not later, for its
//   copy stays in the ring until the acknowledgement, ready to be sent again.
// - Acknowledgements, CTS and whole receiver states may come twice, late and out of order. What one
//   cumulative acknowledgement says of hundreds of small messages is applied a few at a time:
//   nobody waits for it, and all at once it would delay the message that goes out next.
//
// Eager: a message that is copied, fits one chunk and has the tag of the last known receive (or,
// before any is known, of the first message that went eagerly) is taken to belong to the next group
// without a CTS, as its only slot. Both ends then judge alike whether that was
// right: it was when this group and all between the last one known and it turn out to be single
// receives of that tag, none of them into device memory, and it is large enough. The chunk carries
// its tag and the era, the number of breaks before it. Where the guess was wrong the receiver drops
// the chunk, and the sender, when it sees the CTS, takes the message back and sends it where it
// belongs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "core/copy_pool.h"
#include "core/fifo.h"
#include "core/types.h"

namespace fabric::core {

// A chunk to be put on a path now. `data` stays readable until written() or quiesced().
struct Outgoing {
  ChunkHeader header;
  const std::byte* data = nullptr;
  Region region = nullptr;  // that `data` lies in: the caller's, or the copy pool's
  bool device = false;      // `data` is memory that no CPU reads
  bool again = false;       // sent before, on a path that failed
  // On a one-sided path alone:
  std::uint64_t where = 0;  // remote address of the chunk's first byte
  std::uint32_t key = 0;    // rkey of the receiver's rail; 0: the receive has none there
  std::uint32_t chunk = 0;  // its ordinal
  bool last = false;        // of its message
};

// The memory of a message, as post() gets it.
struct Origin {
  Region region = nullptr;
  bool copyable = true;  // a small message may be copied
  // A GPU's, which no CPU reads: it is never copied, and no stream carries it.
  bool device = false;
};

// What to do with a small message when the copy budget is spent. Acknowledgements soon free some of
// it, unless the callers of both ends go on posting and read nothing.
enum class NoCopy : std::uint8_t { refuse, take };

// A message that the receiving core has acknowledged.
struct Delivered {
  std::uint64_t stamp = 0;  // as post() got it
  PathIndex path = 0;       // the last that took a chunk of it
  bool timed = true;        // acknowledged at once; of small messages many are together, later
};

class SendCore {
 public:
  // `pool`: where small messages are copied to; it outlives the core. nullptr: the heap.
  explicit SendCore(std::uint32_t chunk_size, CopyPool* pool = nullptr);

  // May small messages go before their CTS? Not with one-sided writes, nor to an older peer.
  // Says whether some that were posted already go now.
  bool allow_eager(bool allowed);

  // Takes a message. A small one is copied while the copy budget lasts, if its memory is copyable
  // and the pool takes its size; otherwise `data` has to stay until done(). nullopt, try again
  // later: the budget is spent, and `no_copy` refuses, or kUncopiedMessages wait and no known CTS
  // has a free slot of this tag. `stamp` comes back in delivered().
  std::optional<Sequence> post(const void* data, std::size_t size, int tag, std::uint64_t stamp = 0,
                               NoCopy no_copy = NoCopy::refuse, Origin origin = {});
  // Would a message of this size be copied?
  [[nodiscard]] bool room_for_copy(std::size_t size) const {
    return copied_bytes_ + size <= kCopyBudget && copied_count_ < kCopyMessages;
  }
  // May the caller reuse the buffer? Also true for what was forgotten.
  [[nodiscard]] bool done(Sequence sequence) const;
  // As matched: never above the slot's. nullopt: acknowledged and forgotten, as copies may be.
  [[nodiscard]] std::optional<std::size_t> size(Sequence sequence) const;
  void forget(Sequence sequence);  // the caller has been told

  void on_cts(const Cts& cts);
  void on_acknowledge(GroupId group, std::uint8_t slot);
  void on_state(const ReceiverState& state);
  // Acknowledged since the last clear_delivered().
  [[nodiscard]] const std::vector<Delivered>& delivered() const { return delivered_; }
  void clear_delivered() { delivered_.clear(); }

  void on_progress(const Progress& progress);

  [[nodiscard]] bool has_chunk();
  // nullopt: there is none for this path. A one-sided path takes none without a credit, and none
  // that went before its CTS; a stream takes none from or into device memory.
  std::optional<Outgoing> take(PathIndex path);
  void written(PathIndex path);  // the oldest taken chunk of this path needs its bytes no more

  // A new attempt to connect this path: the epoch its hello carries. Every attempt has its own, so
  // that one which the receiver saw and we gave up is never taken for a later one.
  // Throws std::logic_error while reading(path).
  Epoch dial(PathIndex path);
  [[nodiscard]] Epoch epoch(PathIndex path) const { return paths_[path].epoch; }
  // The transport reads buffers for a former connection of this path: it may not be dialled.
  [[nodiscard]] bool reading(PathIndex path) const { return !paths_[path].reading.empty(); }
  // A second connection is attempted beside the stream that this path is: the epoch its hello
  // carries. It takes the stream's place with fail(), or is forgotten by it or by forget_beside().
  Epoch dial_beside(PathIndex path);
  void forget_beside(PathIndex path) { paths_[path].beside = 0; }
  // The connection of dial(), or of dial_beside() while there is one, stands and is one-sided.
  // `credits`: how many receives the peer keeps posted for it; no more chunks are ever on their way
  // than that. A stream needs no such call.
  void one_sided(PathIndex path, std::uint32_t credits);
  // The receiver saw so many chunks land on that connection, and has posted as many receives again.
  // An older number, that of another connection and what is beyond all that was sent are ignored.
  void on_landed(PathIndex path, Epoch epoch, std::uint64_t landed);
  // So many chunks may go out on this path now; on a stream there is no limit.
  [[nodiscard]] std::uint64_t credits(PathIndex path) const;
  // Could a one-sided connection of this path carry all that is under way? Not what was posted or
  // offered without a key for its rails. `known`: can the sender's NIC read such memory? While
  // something waits that no stream may carry, that alone counts: the rest may go over a stream.
  [[nodiscard]] bool fits_one_sided(PathIndex path, const std::function<bool(Region)>& known) const;
  // The connection is given up. Returns the epoch for the fence request: "retire all before it".
  // `beside`: the epoch of the connection that takes its place at once, whose transport reads no
  // buffer yet; the former's transport has to have quiesced() before the next chunk.
  Epoch fail(PathIndex path, Epoch beside = 0);
  [[nodiscard]] Epoch fence(PathIndex path) const { return paths_[path].fence; }
  // The transport reads no buffer on behalf of the failed connection any more.
  void quiesced(PathIndex path);
  [[nodiscard]] bool fencing(PathIndex path) const { return paths_[path].fencing; }
  // Bytes that have to be sent again; nullopt when the answer is not to the fence under way.
  std::optional<std::uint64_t> on_fence_answer(PathIndex path, Epoch epoch,
                                               const ReceiverState& state);

  // All that was told counts from here on.
  void catch_up() { apply_cumulative_ack(cumulative_ack_); }
  [[nodiscard]] bool unacknowledged() {
    catch_up();
    return unacknowledged_ != 0;
  }
  // Something that no stream may carry waits for an acknowledgement, or for its CTS.
  [[nodiscard]] bool needs_one_sided() const { return unacknowledged_device_ != 0; }
  // Of messages that are not copied: their caller waits for it.
  [[nodiscard]] bool unacknowledged_large() const { return unacknowledged_large_ != 0; }
  // Soon no more small messages are taken: time to look for acknowledgements.
  [[nodiscard]] bool nearly_full() {
    if (copied_bytes_ >= kCopyBudget / 8 * 5) {
      catch_up();
    }
    return copied_bytes_ >= kCopyBudget / 8 * 5 ||
           copied_count_ >= kCopyMessages / 8 * 5 + acked_not_applied();
  }
  // The caller was told, or would be, that a message is done, and only its copy here can still
  // bring it there.
  [[nodiscard]] bool has_unacked_copies();
  // Something with a CTS is unsent or not acknowledged.
  [[nodiscard]] bool busy() const {
    return unacknowledged_ != unmatched_.size() + eager_.size() - eager_acknowledged_;
  }
  // The caller may have been told that a message is done whose CTS is not here yet: somebody has
  // to look for it though the caller does not.
  [[nodiscard]] bool awaits_cts() const {
    return !eager_.empty() || (copied_count_ != 0 && !unmatched_.empty());
  }
  [[nodiscard]] bool in_flight(PathIndex path) const { return !paths_[path].flight.empty(); }
  [[nodiscard]] std::uint64_t in_flight_bytes(PathIndex path) const { return paths_[path].bytes; }
  [[nodiscard]] std::uint32_t chunk_size() const { return chunk_size_; }

 private:
  struct Message {
    const std::byte* data = nullptr;
    Copy copy;
    Region region = nullptr;  // that `data` lies in
    std::size_t copied = 0;
    std::uint64_t size = 0;
    int tag = 0;
    bool matched = false;    // has a group and a slot, perhaps before the CTS
    bool eager = false;      // goes before its CTS
    bool device = false;     // `data` is device memory
    bool no_stream = false;  // it, or where it goes, is device memory
    bool acknowledged = false;
    bool forgotten = false;
    bool told = false;  // done, and only our copy can still bring it there
    std::uint8_t slot = 0;
    PathIndex path = 0;
    std::uint32_t chunks = 0;
    std::uint32_t next_chunk = 0;
    std::uint32_t readers = 0;  // chunks of it that a transport is reading
    GroupId group = 0;
    std::uint64_t stamp = 0;
  };
  struct Open {
    Cts cts;
    std::uint8_t filled = 0;        // bit per slot
    std::uint8_t acknowledged = 0;  // bit per slot
    std::array<Sequence, kMaxSlots> sequence{};
  };
  struct ChunkRef {
    Sequence sequence = 0;
    std::uint32_t chunk = 0;
  };
  struct Flight {
    ChunkRef ref;
    Epoch epoch = 0;
    std::uint32_t length = 0;
  };
  struct Path {
    Epoch epoch = 0;
    Epoch newest = 0;  // that was given out
    Epoch beside = 0;  // of the connection beside the stream; 0: there is none
    std::uint32_t beside_credits = 0;
    Epoch fence = 0;
    bool fencing = false;
    PathKind kind = PathKind::stream;  // of the connection of `epoch`
    // While it is one-sided, chunks of that connection:
    std::uint64_t limit = 0;   // on their way at most
    std::uint64_t sent = 0;    // so far
    std::uint64_t landed = 0;  // of them, as the receiver said last
    Fifo<Flight> flight;
    Fifo<Sequence> reading;
    std::uint64_t bytes = 0;
  };

  // In sight of both files of the core.
  Message* find(Sequence sequence) {
    return sequence < base_ || sequence - base_ >= messages_.size() ? nullptr
                                                                    : &messages_[sequence - base_];
  }
  [[nodiscard]] const Message* find(Sequence sequence) const {
    return sequence < base_ || sequence - base_ >= messages_.size() ? nullptr
                                                                    : &messages_[sequence - base_];
  }
  Open* find_group(GroupId group);
  [[nodiscard]] const Open* find_group(GroupId group) const;
  void open(const Cts& cts);
  [[nodiscard]] Copy copy_of(const void* data, std::size_t size) const;
  bool next_chunk(PathIndex path, ChunkRef& ref, bool& again);
  [[nodiscard]] bool reaches(const Message& message, std::size_t rail,
                             const std::function<bool(Region)>& known) const;
  [[nodiscard]] bool fits(const Message* message, PathKind kind) const;
  void bar_streams(Message& message);
  void address(Outgoing& out, const Message& message, PathIndex path, std::uint32_t chunk);
  [[nodiscard]] bool budget_low() const { return !room_for_copy(kCopyLimit); }
  // The first free slot of a known CTS that has this tag.
  struct FreeSlot {
    Open* open = nullptr;
    std::uint8_t slot = 0;
  };
  std::optional<FreeSlot> free_slot(int tag);
  [[nodiscard]] bool may_send_eager(const Message& message) const;
  void send_eager(Sequence sequence, Message& message);
  void acknowledge_eager(Sequence sequence);
  void open_early();
  void open_below(GroupId group);
  void withdraw(Sequence sequence);
  void take_back();
  void match();
  bool match_cts(Sequence sequence, Message& message);
  void acknowledge(Open& opened, std::uint8_t slot);
  void acknowledged(Message& message);
  void acknowledge_below(GroupId group);
  void apply_cumulative_ack(GroupId below);
  // So many groups are known to be whole and not applied yet.
  [[nodiscard]] std::size_t acked_not_applied() const {
    return cumulative_ack_ > open_groups_base_ ? cumulative_ack_ - open_groups_base_ : 0;
  }
  void settle();
  void trim(PathIndex index);
  [[nodiscard]] std::uint32_t length_of(const Message& message, std::uint32_t chunk) const;

  std::uint32_t chunk_size_;
  CopyPool* pool_;
  std::size_t copy_limit_;  // bytes of the largest message that is copied
  bool eager_allowed_ = false;
  Fifo<Message> messages_;
  Sequence base_ = 0;  // sequence of messages_.front()
  Fifo<Sequence> unmatched_;
  Fifo<Sequence> ready_;  // matched, with chunks never sent
  Fifo<ChunkRef> again_;
  Fifo<Open> open_groups_;
  GroupId open_groups_base_ = 0;
  GroupId cumulative_ack_ = 0;  // the receiver has all groups before it whole, applied or not
  Fifo<Sequence> eager_;        // sent before their CTS, which are the next to come, in this order
  std::size_t eager_acknowledged_ = 0;
  Era era_ = 0;
  // Of the last group known, if that has one slot; before any is known, of what went eagerly first.
  std::optional<std::int32_t> run_tag_;
  bool run_has_cts_ = false;      // run_tag_ is a group's, which another tag after it breaks
  bool may_guess_ = true;         // the last group known has one slot, or none is known
  std::map<GroupId, Cts> early_;  // overtook an earlier one
  std::size_t early_many_ = 0;    // of them with several slots
  std::array<Path, kMaxPaths> paths_{};
  PathSet flying_ = 0;  // the paths with something in flight
  std::size_t copied_bytes_ = 0;
  std::size_t copied_count_ = 0;
  std::size_t unacknowledged_ = 0;
  std::size_t unacknowledged_large_ = 0;
  std::size_t unacknowledged_device_ = 0;  // of messages that no stream may carry
  std::vector<Delivered> delivered_;
};

}  // namespace fabric::core
