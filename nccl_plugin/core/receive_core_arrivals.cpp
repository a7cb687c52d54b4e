// What arrives: connections that are let in and retired, and where their chunks go.
#include <algorithm>
#include <stdexcept>

#include "core/ordered_copy.h"
#include "core/receive_core.h"

namespace fabric::core {

bool ReceiveCore::admit(PathIndex index, Epoch epoch, PathKind kind, std::uint32_t credits) {
  Path& path = paths_[index];
  if (epoch < path.floor || path.open) {
    return false;
  }
  if (path.retiring) {
    return false;  // its NIC may still write
  }
  path.floor = epoch;
  path.current = epoch;
  path.open = true;
  path.kind = kind;
  path.landed = 0;
  path.told = 0;
  path.credits = credits;
  drop_partial(index);
  return true;
}

void ReceiveCore::drop_partial(PathIndex index) {
  paths_[index].partial.reset();
  arriving_ &= ~bit(index);
}

void ReceiveCore::close_path(PathIndex index) {
  Path& path = paths_[index];
  path.open = false;
  path.floor = std::max(path.floor, path.current + 1);
  credits_due_ &= ~bit(index);
  drop_partial(index);
}

void ReceiveCore::retire(PathIndex index) {
  if (paths_[index].open) {
    if (paths_[index].kind == PathKind::one_sided) {
      throw std::logic_error("a one-sided connection is retired before its end is confirmed");
    }
    close_path(index);
  }
}

void ReceiveCore::begin_retire(PathIndex index) {
  if (paths_[index].open) {
    close_path(index);
    paths_[index].retiring = true;
  }
}

bool ReceiveCore::retired(PathIndex index, Epoch epoch) {
  Path& path = paths_[index];
  if (!path.retiring || epoch != path.current) {
    return false;
  }
  path.retiring = false;
  return true;
}

bool ReceiveCore::fence(PathIndex index, Epoch epoch) {
  Path& path = paths_[index];
  path.floor = std::max(path.floor, epoch);
  return path.open && path.current < epoch;
}

bool ReceiveCore::fence_done(PathIndex index, Epoch epoch) const {
  const Path& path = paths_[index];
  return path.current >= epoch || !(path.open || path.retiring);
}

bool ReceiveCore::arriving(GroupId group, std::uint8_t slot, std::uint32_t chunk) const {
  bool found = false;
  each(arriving_, [&](PathIndex index) {
    const Partial& partial = *paths_[index].partial;
    const Group* posted = find(group);
    if (partial.kept && posted != nullptr &&
        paths_[index].kept.size() > posted->pieces[0].buffer.slot.size) {
      return;  // too long for it: it will be dropped, and goes again cut off
    }
    // What was sent eagerly in vain and is still coming in counts for nothing.
    found = found || (!partial.duplicate && partial.group == group && partial.slot == slot &&
                      partial.chunk == chunk && (!partial.eager || holds(group, partial.guess)));
  });
  return found;
}

// Is this receive, posted or the next to be, what the sender took it to be?
bool ReceiveCore::holds(GroupId id, const Guess& guess) const {
  const Group* group = find(id);
  if (group == nullptr) {
    return guess.era == era_ && single_ && (!run_tag_ || *run_tag_ == guess.tag);
  }
  const Slot& slot = group->pieces[0].buffer.slot;
  return guess.era == group->era && group->count == 1 && !slot.device && slot.tag == guess.tag;
}

Placement ReceiveCore::begin(PathIndex index, Epoch epoch, const ChunkHeader& header) {
  Path& path = paths_[index];
  if (!path.open || epoch != path.current) {
    return {Verdict::stale, nullptr};
  }
  if (path.kind != PathKind::stream) {
    return {Verdict::refuse, nullptr};
  }
  const std::uint64_t chunk = header.offset / chunk_size_;
  if (path.partial || header.offset % chunk_size_ != 0 ||
      header.offset + header.length > header.message_size ||
      chunk >= chunk_count(header.message_size, chunk_size_) ||
      header.length != std::min<std::uint64_t>(chunk_size_, header.message_size - header.offset)) {
    return {Verdict::refuse, nullptr};
  }
  sender_low_ = header.budget_low;
  Partial partial;
  partial.group = header.group;
  partial.chunk = static_cast<std::uint32_t>(chunk);
  partial.slot = header.slot;
  partial.eager = header.eager;
  partial.guess = {header.era, header.tag};
  if (header.eager && (header.message_size > kCopyLimit || header.slot != 0 ||
                       header.length != header.message_size)) {
    return {Verdict::refuse, nullptr};
  }
  Placement placement =
      header.eager ? begin_eager(index, partial, header) : place(index, partial, header);
  if (placement.verdict == Verdict::duplicate) {
    partial.duplicate = true;
    path.partial = partial;
  }
  if (path.partial) {
    arriving_ |= bit(index);
  }
  return placement;
}

// Into a receive that is posted.
Placement ReceiveCore::place(PathIndex index, const Partial& partial, const ChunkHeader& header) {
  Group* group = find(partial.group);
  if (group == nullptr) {
    return {partial.group < base_ ? Verdict::duplicate : Verdict::refuse, nullptr};
  }
  if (partial.slot >= group->count) {
    return {Verdict::refuse, nullptr};
  }
  Piece& piece = group->pieces[partial.slot];
  const bool barred = piece.buffer.slot.device && header.message_size != 0;  // no CPU writes there
  if (barred || header.message_size > piece.buffer.slot.size ||
      (piece.sized && piece.size != header.message_size)) {
    return {Verdict::refuse, nullptr};
  }
  if (!piece.sized &&
      !size_piece(piece, header.message_size, chunk_count(header.message_size, chunk_size_))) {
    return {Verdict::refuse, nullptr};
  }
  piece.waits = piece.waits || header.waits;
  const std::uint32_t chunk = partial.chunk;
  if (piece.whole || piece.chunks[chunk]) {
    return {Verdict::duplicate, nullptr};
  }
  if (arriving(partial.group, partial.slot, chunk)) {
    return {Verdict::refuse, nullptr};  // sent again without a fence
  }
  paths_[index].partial = partial;
  return {Verdict::place, piece.buffer.data + header.offset};
}

// False: chunks behind its end have landed already.
bool ReceiveCore::size_piece(Piece& piece, std::uint64_t size, std::uint32_t chunks) {
  if (piece.chunks.size() > chunks) {
    return false;
  }
  piece.sized = true;
  piece.size = size;
  piece.chunks.resize(chunks, false);
  return true;
}

// Of the groups with this remainder modulo kLandedGroups the one that is posted, or else the one
// that was forgotten last. No other can be meant: see kLandingGroups.
GroupId ReceiveCore::group_of(std::uint16_t remainder) const {
  const GroupId distance = (remainder - base_) % kLandedGroups;
  const GroupId id = base_ + distance;
  return distance < kLandingGroups || id < kLandedGroups ? id : id - kLandedGroups;
}

Landing ReceiveCore::land(PathIndex index, Epoch epoch, const Landed& landed) {
  Path& path = paths_[index];
  if (!(path.open || path.retiring) || epoch != path.current) {
    return {Verdict::stale, false};
  }
  if (path.kind != PathKind::one_sided || landed.group >= kLandedGroups ||
      landed.chunk >= kLandedChunks) {
    return {Verdict::refuse, false};
  }
  const GroupId id = group_of(landed.group);
  const Group* group = find(id);
  if (group == nullptr && id >= base_) {
    return {Verdict::refuse, false};
  }
  const Verdict verdict = group == nullptr ? Verdict::duplicate : note_landed(id, index, landed);
  if (verdict == Verdict::refuse) {
    return {verdict, false};
  }
  ++path.landed;
  if (path.open && path.landed - path.told >= std::max(path.credits / 2, 1U)) {
    credits_due_ |= bit(index);
  }
  return {verdict, verdict == Verdict::place && deliver(id, landed.slot, landed.chunk)};
}

std::uint64_t ReceiveCore::tell_landed(PathIndex index) {
  Path& path = paths_[index];
  path.told = path.landed;
  credits_due_ &= ~bit(index);
  return path.landed;
}

// Is it the notification of a chunk that this receive waits for? Its message has its size then, as
// far as that is known.
Verdict ReceiveCore::note_landed(GroupId id, PathIndex path, const Landed& landed) {
  Group& group = groups_[id - base_];
  if (landed.slot >= group.count) {
    return Verdict::refuse;
  }
  Piece& piece = group.pieces[landed.slot];
  const std::uint64_t offset = std::uint64_t{landed.chunk} * chunk_size_;
  const std::uint32_t length = landed.last || landed.length != 0 ? landed.length : chunk_size_;
  const bool shape = landed.last ? length <= chunk_size_ && (length != 0 || landed.chunk == 0)
                                 : length == chunk_size_;
  if (!shape || offset + length > piece.buffer.slot.size) {
    return Verdict::refuse;
  }
  const bool beyond = landed.chunk >= piece.chunks.size();
  if (piece.sized ? beyond || landed.last != (landed.chunk + 1 == piece.chunks.size()) ||
                        (landed.last && offset + length != piece.size)
                  : landed.last && !size_piece(piece, offset + length, landed.chunk + 1)) {
    return Verdict::refuse;
  }
  if (!piece.sized && beyond) {
    piece.chunks.resize(landed.chunk + 1, false);
  }
  if (piece.whole || piece.chunks[landed.chunk]) {
    return Verdict::duplicate;
  }
  if (arriving(id, landed.slot, landed.chunk)) {
    return Verdict::refuse;  // sent again without a fence
  }
  const auto rail = static_cast<std::uint8_t>(1U << receiver_rail(path));
  group.landed_rails = static_cast<std::uint8_t>(group.landed_rails | rail);
  return Verdict::place;
}

Placement ReceiveCore::begin_eager(PathIndex index, Partial partial, const ChunkHeader& header) {
  const Group* group = find(partial.group);
  const std::uint64_t size = header.message_size;
  if (partial.group < base_) {
    return {Verdict::duplicate, nullptr};  // late
  }
  if (!holds(partial.group, partial.guess) ||
      (group != nullptr && size > group->pieces[0].buffer.slot.size)) {
    urgent_ = true;
    return {Verdict::duplicate, nullptr};  // in vain: the sender finds out by the CTS
  }
  if (group != nullptr) {
    return place(index, partial, header);
  }
  if (eager_.contains(partial.group)) {
    return {Verdict::duplicate, nullptr};
  }
  if (arriving(partial.group, 0, 0) || partial.group - base_ - groups_.size() >= kCopyMessages ||
      eager_bytes_ + size > kCopyBudget) {
    return {Verdict::refuse, nullptr};
  }
  Path& path = paths_[index];
  partial.kept = true;
  path.partial = partial;
  path.kept.resize(size);
  return {Verdict::place, path.kept.data()};
}

bool ReceiveCore::finish(PathIndex index) {
  Path& path = paths_[index];
  if (!path.partial) {
    throw std::logic_error("no chunk is arriving on this path");
  }
  const Partial partial = *path.partial;
  path.partial.reset();
  arriving_ &= ~bit(index);
  if (partial.duplicate) {
    return false;
  }
  if (partial.kept) {
    std::vector<std::byte> bytes = std::move(path.kept);
    path.kept.clear();
    bool whole = false;
    Kept kept{std::move(bytes), partial.guess};
    if (find(partial.group) != nullptr) {
      whole = take_kept(partial.group, kept);  // its receive was posted meanwhile
    } else if (partial.group >= base_ && holds(partial.group, partial.guess)) {
      eager_bytes_ += kept.bytes.size();
      eager_.emplace(partial.group, std::move(kept));
    } else {
      urgent_ = true;  // in vain: its sender waits for the CTS
    }
    return whole;
  }
  return deliver(partial.group, partial.slot, partial.chunk);
}

std::size_t ReceiveCore::missing_behind(PathIndex index, std::size_t most) const {
  const auto& partial = paths_[index].partial;
  const Group* group =
      partial && !partial->duplicate && !partial->kept ? find(partial->group) : nullptr;
  if (group == nullptr) {
    return 0;
  }
  const std::vector<bool>& chunks = group->pieces[partial->slot].chunks;
  std::uint32_t chunk = partial->chunk + 1;
  while (chunk < chunks.size() && chunk - partial->chunk <= most && !chunks[chunk] &&
         !arriving(partial->group, partial->slot, chunk)) {
    ++chunk;
  }
  return chunk - partial->chunk - 1;
}

// What came eagerly, for a receive that is posted now: its message, or nothing that belongs there.
bool ReceiveCore::take_kept(GroupId id, const Kept& kept) {
  const std::vector<std::byte>& bytes = kept.bytes;
  Group* group = find(id);
  if (group == nullptr || !holds(id, kept.guess) || !group->pieces[0].chunks.empty() ||
      bytes.size() > group->pieces[0].buffer.slot.size) {
    urgent_ = true;  // its sender waits for the CTS
    return false;
  }
  Piece& piece = group->pieces[0];
  piece.sized = true;
  piece.size = bytes.size();
  piece.chunks.assign(1, false);
  if (!bytes.empty()) {
    copy_in_order(piece.buffer.data, bytes.data(), bytes.size());
  }
  return deliver(id, 0, 0);
}

bool ReceiveCore::deliver(GroupId id, std::uint8_t slot, std::uint32_t chunk) {
  Group* group = find(id);
  if (group == nullptr) {
    return false;
  }
  Piece& piece = group->pieces[slot];
  piece.chunks[chunk] = true;
  if (++piece.have < piece.chunks.size() || !piece.sized) {
    return false;
  }
  piece.whole = true;
  acknowledgements_.push_back({id, slot});
  untold_bytes_ += piece.size;
  ++untold_messages_;
  if (++group->whole == group->count) {
    --unfinished_;
    unfinished_large_ -= group->large ? 1U : 0U;
  }
  // Where more is to come the caller will look again at once, or post again first: then one call to
  // the kernel tells both. The last one's sender should not have to wait.
  const bool waits = piece.size > kCopyLimit || piece.waits;
  urgent_ = urgent_ || !eager_expected_ || (waits && unfinished_large_ == 0);
  soon_ = soon_ || waits;
  return true;
}

}  // namespace fabric::core
