// Messages on their way out: posted, matched to slots, taken chunk by chunk, told done.
#include "core/send_core.h"

#include <algorithm>
#include <cstring>

namespace fabric::core {

namespace {

constexpr GroupId kHeedWithPost = 2;  // more than one post brings

}  // namespace

SendCore::SendCore(std::uint32_t chunk_size) : chunk_size_(chunk_size) {}

std::optional<Sequence> SendCore::post(const void* data, std::size_t size, int tag,
                                       std::uint64_t stamp) {
  const bool copy = size <= kCopyLimit;
  heed(std::min(told_below_, grants_base_ + kHeedWithPost));
  if (!copy || copied_bytes_ + size > kCopyBudget || copied_count_ >= kCopyMessages) {
    catch_up();
  }
  if (copy && (copied_bytes_ + size > kCopyBudget || copied_count_ >= kCopyMessages)) {
    return std::nullopt;
  }
  const Sequence sequence = base_ + messages_.size();
  Message& message = messages_.emplace_back();
  message.size = size;
  message.tag = tag;
  message.stamp = stamp;
  message.data = static_cast<const std::byte*>(data);
  if (copy) {
    message.copy = std::make_unique<std::byte[]>(size);
    if (size != 0) {
      std::memcpy(message.copy.get(), data, size);
    }
    message.data = message.copy.get();
    message.forgotten = true;
    message.copied = size;
    copied_bytes_ += size;
    ++copied_count_;
  }
  ++unacknowledged_;
  unacknowledged_large_ += copy ? 0U : 1U;
  unmatched_.push_back(sequence);
  match();
  return sequence;
}

bool SendCore::done(Sequence sequence) const {
  const Message* message = find(sequence);
  if (message == nullptr) {
    return true;
  }
  return message->told || (message->acknowledged && message->readers == 0);
}

bool SendCore::owes() {
  catch_up();
  for (Sequence sequence = base_; const Message* message = find(sequence); ++sequence) {
    if (!message->acknowledged && message->told) {
      return true;
    }
  }
  return false;
}

std::size_t SendCore::size(Sequence sequence) const {
  const Message* message = find(sequence);
  return message == nullptr ? 0 : message->size;
}

void SendCore::forget(Sequence sequence) {
  if (Message* message = find(sequence)) {
    message->forgotten = true;
    settle();
  }
}

bool SendCore::send_ahead(bool allowed) {
  const bool now = allowed && !ahead_allowed_;
  ahead_allowed_ = allowed;
  const std::size_t waiting = unmatched_.size();
  if (now) {
    match();
  }
  return unmatched_.size() != waiting;
}

bool SendCore::may_go_ahead(const Message& message) const {
  return ahead_allowed_ && single_ && early_many_ == 0 && message.copy != nullptr &&
         message.size <= chunk_size_;
}

void SendCore::go_ahead(Sequence sequence, Message& message) {
  message.matched = true;
  message.ahead = true;
  message.group = grants_base_ + grants_.size() + ahead_.size();
  message.slot = 0;
  message.chunks = 1;
  ahead_.push_back(sequence);
  ready_.push_back(sequence);
}

bool SendCore::match_one(Sequence sequence, Message& message) {
  for (Open& opened : grants_) {
    for (std::uint8_t slot = 0; slot < opened.grant.count; ++slot) {
      const auto bit = static_cast<std::uint8_t>(1U << slot);
      const Slot& buffer = opened.grant.slots[slot];
      if ((opened.filled & bit) != 0 || (opened.grant.count > 1 && buffer.tag != message.tag)) {
        continue;
      }
      opened.filled = static_cast<std::uint8_t>(opened.filled | bit);
      opened.sequence[slot] = sequence;
      message.matched = true;
      message.group = opened.grant.group;
      message.slot = slot;
      message.size = std::min(message.size, buffer.size);
      message.chunks = chunk_count(message.size, chunk_size_);
      ready_.push_back(sequence);
      return true;
    }
  }
  return false;
}

void SendCore::match() {
  for (auto next = unmatched_.begin(); next != unmatched_.end();) {
    Message& message = messages_[*next - base_];
    bool matched = match_one(*next, message);
    if (!matched && next == unmatched_.begin() && may_go_ahead(message)) {
      go_ahead(*next, message);
      matched = true;
    }
    next = matched ? unmatched_.erase(next) : next + 1;
  }
}

std::uint32_t SendCore::length_of(const Message& message, std::uint32_t chunk) const {
  const std::uint64_t offset = std::uint64_t{chunk} * chunk_size_;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk_size_, message.size - offset));
}

bool SendCore::has_chunk() {
  while (!again_.empty()) {
    const Message* message = find(again_.front().sequence);
    if (message != nullptr && !message->acknowledged) {
      return true;
    }
    again_.pop_front();
  }
  return !ready_.empty();
}

std::optional<Outgoing> SendCore::take(PathIndex index) {
  if (!has_chunk()) {
    return std::nullopt;
  }
  Outgoing out;
  ChunkRef ref;
  if (!again_.empty()) {
    ref = again_.front();
    again_.pop_front();
    out.again = true;
  } else {
    ref.sequence = ready_.front();
    Message& message = messages_[ref.sequence - base_];
    ref.chunk = message.next_chunk++;
    if (message.next_chunk == message.chunks) {
      ready_.pop_front();
    }
  }
  Message& message = messages_[ref.sequence - base_];
  out.header.group = message.group;
  out.header.slot = message.slot;
  out.header.message_size = message.size;
  out.header.offset = std::uint64_t{ref.chunk} * chunk_size_;
  out.header.length = length_of(message, ref.chunk);
  out.header.ahead = message.ahead;
  out.header.era = message.ahead ? era_ : Era{0};
  out.data = message.data + out.header.offset;
  ++message.readers;
  message.path = index;
  Path& path = paths_[index];
  path.reading.push_back(ref.sequence);
  path.flight.push_back({ref, path.epoch, out.header.length});
  path.bytes += out.header.length;
  flying_ |= bit(index);
  return out;
}

void SendCore::written(PathIndex index) {
  Path& path = paths_[index];
  if (path.reading.empty()) {
    return;
  }
  Message* message = find(path.reading.front());
  path.reading.pop_front();
  if (message == nullptr || --message->readers != 0) {
    return;
  }
  // For good: it may be taken back and go again, but the caller believes that it is done.
  const bool sent = message->matched && message->next_chunk == message->chunks;
  message->told = message->told || (message->copy != nullptr && sent);
  if (message->acknowledged) {
    settle();
  }
}

}  // namespace fabric::core
