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
  pending_cts_.push_back(id);
  urgent_ = urgent_ || !cts_late() || !single_ || group.large;
  note_break(group);
  group.era = era_;
  if (const auto found = eager_.find(id); found != eager_.end()) {
    const Kept kept = std::move(found->second);
    eager_bytes_ -= kept.bytes.size();
    eager_.erase(found);
    take_kept(id, kept);
  }
  return id;
}

// A break: nothing that was sent before it was known belongs where it claims to. Before the first
// receive there is no tag to break with; what came for another one goes all the same.
void ReceiveCore::note_break(const Group& group) {
  const std::int32_t tag = group.pieces[0].buffer.slot.tag;
  single_ = group.count == 1 && !group.pieces[0].buffer.slot.device;
  if (!single_ || (run_tag_ && *run_tag_ != tag)) {
    ++era_;
    urgent_ = true;  // the sender cannot guess it
  }
  run_tag_ = single_ ? std::optional(tag) : std::nullopt;
  for (auto kept = eager_.begin(); kept != eager_.end();) {
    if (single_ && kept->second.guess.era == era_ && kept->second.guess.tag == tag) {
      ++kept;
      continue;
    }
    urgent_ = true;  // its sender waits for the CTS
    eager_bytes_ -= kept->second.bytes.size();
    kept = eager_.erase(kept);
  }
}

bool ReceiveCore::done(GroupId id) const {
  const Group* group = find(id);
  return group == nullptr ? id < base_ : group->whole == group->count;
}

std::uint64_t ReceiveCore::received(GroupId id, std::size_t slot) const {
  const Group* group = find(id);
  return group == nullptr || slot >= group->count ? 0 : group->pieces[slot].size;
}

std::uint8_t ReceiveCore::landed_rails(GroupId id) const {
  const Group* group = find(id);
  return group == nullptr ? std::uint8_t{0} : group->landed_rails;
}

void ReceiveCore::forget(GroupId id) {
  if (Group* group = find(id)) {
    group->forgotten = true;
    settle();
  }
}

// A group that is whole before its CTS was told came eagerly: its sender needs that CTS no more.
void ReceiveCore::settle() {
  while (!groups_.empty() && groups_.front().forgotten &&
         groups_.front().whole == groups_.front().count) {
    groups_.pop_front();
    if (!pending_cts_.empty() && pending_cts_.front() == base_) {
      pending_cts_.pop_front();
      below_untold_ = true;
    }
    ++base_;
  }
  while (!acknowledgements_.empty() && acknowledgements_.front().group < base_) {
    acknowledgements_.pop_front();
    below_untold_ = true;
  }
}

Cts ReceiveCore::cts_of(GroupId id) const {
  const Group& group = groups_[id - base_];
  Cts cts;
  cts.group = id;
  cts.count = group.count;
  for (std::size_t i = 0; i < group.count; ++i) {
    cts.slots[i] = group.pieces[i].buffer.slot;
  }
  return cts;
}

std::optional<GroupId> ReceiveCore::next_done_below() {
  if (!below_untold_) {
    return std::nullopt;
  }
  below_untold_ = false;
  return base_;
}

std::optional<Cts> ReceiveCore::next_cts() {
  if (pending_cts_.empty()) {
    urgent_ = urgent_ && (below_untold_ || !acknowledgements_.empty());
    return std::nullopt;
  }
  const Cts cts = cts_of(pending_cts_.front());
  pending_cts_.pop_front();
  settle();
  return cts;
}

std::optional<Acknowledgement> ReceiveCore::next_acknowledgement() {
  if (acknowledgements_.empty()) {
    untold_bytes_ = 0;
    untold_messages_ = 0;
    soon_ = false;
    urgent_ = urgent_ && (below_untold_ || !pending_cts_.empty());
    return std::nullopt;
  }
  const Acknowledgement next = acknowledgements_.front();
  acknowledgements_.pop_front();
  return next;
}

ReceiverState ReceiveCore::state() const {
  ReceiverState state;
  state.done_below = base_;
  state.groups.reserve(groups_.size());
  for (const Group& group : groups_) {
    GroupReport& report = state.groups.emplace_back();
    report.cts = cts_of(base_ + state.groups.size() - 1);
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

Progress ReceiveCore::progress() const {
  Progress progress;
  progress.done_below = base_;
  for (std::size_t at = 0; at < groups_.size(); ++at) {
    const Group& group = groups_[at];
    if (at >= kProgressGroups) {
      progress.beyond = progress.beyond || group.whole != 0;
      continue;
    }
    for (std::size_t slot = 0; slot < group.count; ++slot) {
      if (group.pieces[slot].whole) {
        progress.whole[at] = static_cast<std::uint8_t>(progress.whole[at] | 1U << slot);
      }
    }
  }
  return progress;
}

void ReceiveCore::clear_output() {
  pending_cts_.clear();
  acknowledgements_.clear();
  urgent_ = false;
  soon_ = false;
  untold_bytes_ = 0;
  untold_messages_ = 0;
  settle();
  below_untold_ = false;
}

}  // namespace fabric::core
