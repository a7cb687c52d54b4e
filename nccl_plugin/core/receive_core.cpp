#include "core/receive_core.h"

#include <algorithm>
#include <stdexcept>

namespace fabric::core {

ReceiveCore::ReceiveCore(std::uint32_t chunk_size) : chunk_size_(chunk_size) {}

ReceiveCore::Group* ReceiveCore::find(GroupId group) {
  if (group < base_ || group - base_ >= groups_.size()) {
    return nullptr;
  }
  return &groups_[group - base_];
}

const ReceiveCore::Group* ReceiveCore::find(GroupId group) const {
  if (group < base_ || group - base_ >= groups_.size()) {
    return nullptr;
  }
  return &groups_[group - base_];
}

GroupId ReceiveCore::post(std::span<const Buffer> buffers) {
  if (buffers.empty() || buffers.size() > kMaxSlots) {
    throw std::invalid_argument("a receive has 1 to 8 buffers");
  }
  const GroupId id = base_ + groups_.size();
  Group& group = groups_.emplace_back();
  group.count = static_cast<std::uint8_t>(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    group.pieces[i].buffer = buffers[i];
  }
  ++unfinished_;
  grants_.push_back(id);
  return id;
}

bool ReceiveCore::done(GroupId id) const {
  const Group* group = find(id);
  return group == nullptr ? id < base_ : group->whole == group->count;
}

std::uint64_t ReceiveCore::received(GroupId id, std::size_t slot) const {
  const Group* group = find(id);
  return group == nullptr || slot >= group->count ? 0 : group->pieces[slot].size;
}

void ReceiveCore::forget(GroupId id) {
  if (Group* group = find(id)) {
    group->forgotten = true;
    settle();
  }
}

void ReceiveCore::settle() {
  while (!groups_.empty() && groups_.front().forgotten &&
         groups_.front().whole == groups_.front().count) {
    groups_.pop_front();
    ++base_;
  }
}

bool ReceiveCore::admit(PathIndex index, Epoch epoch) {
  Path& path = paths_[index];
  if (epoch < path.floor || path.open) {
    return false;
  }
  path.floor = epoch;
  path.current = epoch;
  path.open = true;
  path.partial.reset();
  return true;
}

void ReceiveCore::retire(PathIndex index) {
  Path& path = paths_[index];
  if (path.open) {
    path.open = false;
    path.floor = std::max(path.floor, path.current + 1);
    path.partial.reset();
  }
}

bool ReceiveCore::fence(PathIndex index, Epoch epoch) {
  Path& path = paths_[index];
  path.floor = std::max(path.floor, epoch);
  return path.open && path.current < epoch;
}

bool ReceiveCore::arriving(GroupId group, std::uint8_t slot, std::uint32_t chunk) const {
  return std::any_of(paths_.begin(), paths_.end(), [&](const Path& path) {
    return path.partial && !path.partial->duplicate && path.partial->group == group &&
           path.partial->slot == slot && path.partial->chunk == chunk;
  });
}

Placement ReceiveCore::begin(PathIndex index, Epoch epoch, const ChunkHeader& header) {
  Path& path = paths_[index];
  if (!path.open || epoch != path.current) {
    return {Verdict::stale, nullptr};
  }
  const std::uint64_t chunk = header.offset / chunk_size_;
  if (path.partial || header.offset % chunk_size_ != 0 ||
      header.offset + header.length > header.message_size ||
      chunk >= chunk_count(header.message_size, chunk_size_) ||
      header.length != std::min<std::uint64_t>(chunk_size_, header.message_size - header.offset)) {
    return {Verdict::refuse, nullptr};
  }
  Partial partial{header.group, static_cast<std::uint32_t>(chunk), header.slot, false};
  Group* group = find(header.group);
  if (group == nullptr) {
    if (header.group >= base_) {
      return {Verdict::refuse, nullptr};  // never granted
    }
    partial.duplicate = true;
    path.partial = partial;
    return {Verdict::duplicate, nullptr};
  }
  if (header.slot >= group->count) {
    return {Verdict::refuse, nullptr};
  }
  Piece& piece = group->pieces[header.slot];
  if (header.message_size > piece.buffer.slot.size ||
      (piece.sized && piece.size != header.message_size)) {
    return {Verdict::refuse, nullptr};
  }
  if (!piece.sized) {
    piece.sized = true;
    piece.size = header.message_size;
    piece.chunks.assign(chunk_count(piece.size, chunk_size_), false);
  }
  if (piece.whole || piece.chunks[chunk]) {
    partial.duplicate = true;
    path.partial = partial;
    return {Verdict::duplicate, nullptr};
  }
  if (arriving(header.group, header.slot, partial.chunk)) {
    return {Verdict::refuse, nullptr};  // sent again without a fence
  }
  path.partial = partial;
  return {Verdict::place, piece.buffer.data + header.offset};
}

bool ReceiveCore::finish(PathIndex index) {
  Path& path = paths_[index];
  if (!path.partial) {
    throw std::logic_error("no chunk is arriving on this path");
  }
  const Partial partial = *path.partial;
  path.partial.reset();
  Group* group = find(partial.group);
  if (partial.duplicate || group == nullptr) {
    return false;
  }
  Piece& piece = group->pieces[partial.slot];
  piece.chunks[partial.chunk] = true;
  if (++piece.have < piece.chunks.size()) {
    return false;
  }
  piece.whole = true;
  acknowledgements_.push_back({partial.group, partial.slot});
  if (++group->whole == group->count) {
    --unfinished_;
  }
  return true;
}

Grant ReceiveCore::grant_of(GroupId id) const {
  const Group& group = *find(id);
  Grant grant;
  grant.group = id;
  grant.count = group.count;
  for (std::size_t i = 0; i < group.count; ++i) {
    grant.slots[i] = group.pieces[i].buffer.slot;
  }
  return grant;
}

std::optional<Grant> ReceiveCore::next_grant() {
  while (!grants_.empty()) {
    const GroupId id = grants_.front();
    grants_.pop_front();
    if (id >= base_) {
      return grant_of(id);
    }
  }
  return std::nullopt;
}

std::optional<Acknowledgement> ReceiveCore::next_acknowledgement() {
  if (acknowledgements_.empty()) {
    return std::nullopt;
  }
  const Acknowledgement next = acknowledgements_.front();
  acknowledgements_.pop_front();
  return next;
}

ReceiverState ReceiveCore::state() const {
  ReceiverState state;
  state.done_below = base_;
  for (const Group& group : groups_) {
    GroupReport& report = state.groups.emplace_back();
    report.grant = grant_of(base_ + state.groups.size() - 1);
    for (std::size_t i = 0; i < group.count; ++i) {
      const Piece& piece = group.pieces[i];
      report.slots[i].whole = piece.whole;
      std::vector<ChunkRange>& have = report.slots[i].have;
      const auto count = static_cast<std::uint32_t>(piece.whole ? 0 : piece.chunks.size());
      for (std::uint32_t chunk = 0; chunk < count; ++chunk) {
        if (!piece.chunks[chunk]) {
          continue;
        }
        if (!have.empty() && have.back().last == chunk) {
          ++have.back().last;
        } else {
          have.push_back({chunk, chunk + 1});
        }
      }
    }
  }
  return state;
}

void ReceiveCore::clear_output() {
  grants_.clear();
  acknowledgements_.clear();
}

}  // namespace fabric::core
