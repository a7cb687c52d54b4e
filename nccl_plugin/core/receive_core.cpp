// Receives as they are posted, and what the sender is told of them.
#include "core/receive_core.h"

#include <algorithm>
#include <stdexcept>

namespace fabric::core {

ReceiveCore::ReceiveCore(std::uint32_t chunk_size) : chunk_size_(chunk_size) {}

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
  group.large =
      group.count != 1 || buffers[0].slot.size > std::min<std::uint64_t>(kCopyLimit, chunk_size_);
  ++unfinished_;
  unfinished_large_ += group.large ? 1U : 0U;
  grants_.push_back(id);
  urgent_ = urgent_ || !ahead_expected_ || !single_ || group.large;
  single_ = group.count == 1;
  if (!single_) {
    ++era_;  // nothing that was sent before this was known belongs where it claims to
    ahead_.clear();
    ahead_bytes_ = 0;
  }
  group.era = era_;
  if (const auto kept = ahead_.find(id); kept != ahead_.end()) {
    const std::vector<std::byte> bytes = std::move(kept->second);
    ahead_bytes_ -= bytes.size();
    ahead_.erase(kept);
    take_kept(id, bytes, era_);
  }
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

// A group that is whole before its grant was told came ahead: its sender needs that grant no more.
void ReceiveCore::settle() {
  while (!groups_.empty() && groups_.front().forgotten &&
         groups_.front().whole == groups_.front().count) {
    groups_.pop_front();
    if (!grants_.empty() && grants_.front() == base_) {
      grants_.pop_front();
      below_untold_ = true;
    }
    ++base_;
  }
  while (!acknowledgements_.empty() && acknowledgements_.front().group < base_) {
    acknowledgements_.pop_front();
    below_untold_ = true;
  }
}

Grant ReceiveCore::grant_of(GroupId id) const {
  const Group& group = groups_[id - base_];
  Grant grant;
  grant.group = id;
  grant.count = group.count;
  for (std::size_t i = 0; i < group.count; ++i) {
    grant.slots[i] = group.pieces[i].buffer.slot;
  }
  return grant;
}

std::optional<GroupId> ReceiveCore::next_done_below() {
  if (!below_untold_) {
    return std::nullopt;
  }
  below_untold_ = false;
  return base_;
}

std::optional<Grant> ReceiveCore::next_grant() {
  if (grants_.empty()) {
    urgent_ = urgent_ && (below_untold_ || !acknowledgements_.empty());
    return std::nullopt;
  }
  const Grant grant = grant_of(grants_.front());
  grants_.pop_front();
  settle();
  return grant;
}

std::optional<Acknowledgement> ReceiveCore::next_acknowledgement() {
  if (acknowledgements_.empty()) {
    untold_bytes_ = 0;
    untold_messages_ = 0;
    soon_ = false;
    urgent_ = urgent_ && (below_untold_ || !grants_.empty());
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
  urgent_ = false;
  soon_ = false;
  untold_bytes_ = 0;
  untold_messages_ = 0;
  settle();
  below_untold_ = false;
}

}  // namespace fabric::core
