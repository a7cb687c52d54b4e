// Messages on their way out: posted, matched to slots, taken chunk by chunk, told done.
#include "core/send_core.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace fabric::core {

namespace {

constexpr GroupId kAckedWithPost = 2;  // more than one post brings

}  // namespace

SendCore::SendCore(std::uint32_t chunk_size, CopyPool* pool)
    : chunk_size_(chunk_size),
      pool_(pool),
      copy_limit_(pool == nullptr ? kCopyLimit : std::min(kCopyLimit, pool->largest())) {}

std::optional<Sequence> SendCore::post(const void* data, std::size_t size, int tag,
                                       std::uint64_t stamp, NoCopy no_copy, Origin origin) {
  const bool small = origin.copyable && !origin.device && size <= copy_limit_;
  apply_cumulative_ack(std::min(cumulative_ack_, open_groups_base_ + kAckedWithPost));
  if (!small || !room_for_copy(size)) {
    catch_up();
  }
  Copy copy = small && room_for_copy(size) ? copy_of(data, size) : Copy();
  const bool crowded = unacknowledged_large_ >= kUncopiedMessages && !free_slot(tag);
  if (small && copy == nullptr && (no_copy == NoCopy::refuse || crowded)) {
    return std::nullopt;
  }
  const Sequence sequence = base_ + messages_.size();
  Message& message = messages_.emplace_back();
  message.size = size;
  message.tag = tag;
  message.stamp = stamp;
  message.data = static_cast<const std::byte*>(data);
  message.region = origin.region;
  message.device = origin.device;
  if (copy != nullptr) {
    message.copy = std::move(copy);
    message.data = message.copy.get();
    message.region = pool_ == nullptr ? nullptr : pool_->region(message.data);
    message.forgotten = true;
    message.copied = size;
    copied_bytes_ += size;
    ++copied_count_;
  }
  ++unacknowledged_;
  unacknowledged_large_ += message.copy == nullptr ? 1U : 0U;
  if (message.device) {
    bar_streams(message);
  }
  unmatched_.push_back(sequence);
  match();
  return sequence;
}

// An empty message touches no memory, and may go over any path.
void SendCore::bar_streams(Message& message) {
  if (message.size != 0 && !message.no_stream) {
    message.no_stream = true;
    ++unacknowledged_device_;
  }
}

// nullptr: the pool has no room.
Copy SendCore::copy_of(const void* data, std::size_t size) const {
  Copy copy(pool_ == nullptr ? new std::byte[size] : pool_->take(size), ReleaseCopy{pool_});
  if (copy != nullptr && size != 0) {
    std::memcpy(copy.get(), data, size);
  }
  return copy;
}

bool SendCore::done(Sequence sequence) const {
  const Message* message = find(sequence);
  if (message == nullptr) {
    return true;
  }
  return message->told || (message->acknowledged && message->readers == 0);
}

bool SendCore::has_unacked_copies() {
  catch_up();
  for (Sequence sequence = base_; const Message* message = find(sequence); ++sequence) {
    if (!message->acknowledged && message->told) {
      return true;
    }
  }
  return false;
}

std::optional<std::size_t> SendCore::size(Sequence sequence) const {
  const Message* message = find(sequence);
  return message == nullptr ? std::nullopt : std::optional<std::size_t>(message->size);
}

void SendCore::forget(Sequence sequence) {
  if (Message* message = find(sequence)) {
    message->forgotten = true;
    settle();
  }
}

bool SendCore::allow_eager(bool allowed) {
  const bool now = allowed && !eager_allowed_;
  eager_allowed_ = allowed;
  const std::size_t waiting = unmatched_.size();
  if (now) {
    match();
  }
  return unmatched_.size() != waiting;
}

bool SendCore::may_send_eager(const Message& message) const {
  return eager_allowed_ && may_guess_ && early_many_ == 0 && message.copy != nullptr &&
         message.size <= chunk_size_ && (!run_tag_ || *run_tag_ == message.tag);
}

void SendCore::send_eager(Sequence sequence, Message& message) {
  message.matched = true;
  message.eager = true;
  message.group = open_groups_base_ + open_groups_.size() + eager_.size();
  message.slot = 0;
  message.chunks = 1;
  run_tag_ = message.tag;
  eager_.push_back(sequence);
  ready_.push_back(sequence);
}

std::optional<SendCore::FreeSlot> SendCore::free_slot(int tag) {
  for (Open& opened : open_groups_) {
    for (std::uint8_t slot = 0; slot < opened.cts.count; ++slot) {
      if ((opened.filled & (1U << slot)) == 0 && opened.cts.slots[slot].tag == tag) {
        return FreeSlot{&opened, slot};
      }
    }
  }
  return std::nullopt;
}

bool SendCore::match_cts(Sequence sequence, Message& message) {
  const auto free = free_slot(message.tag);
  if (!free) {
    return false;
  }
  Open& opened = *free->open;
  opened.filled = static_cast<std::uint8_t>(opened.filled | (1U << free->slot));
  opened.sequence[free->slot] = sequence;
  message.matched = true;
  message.group = opened.cts.group;
  message.slot = free->slot;
  message.size = std::min(message.size, opened.cts.slots[free->slot].size);
  message.chunks = chunk_count(message.size, chunk_size_);
  if (opened.cts.slots[free->slot].device) {
    bar_streams(message);
  }
  ready_.push_back(sequence);
  return true;
}

void SendCore::match() {
  bool run_waits = false;  // an earlier message of the run's tag has no slot yet
  for (auto next = unmatched_.begin(); next != unmatched_.end();) {
    Message& message = messages_[*next - base_];
    bool matched = match_cts(*next, message);
    if (!matched && !run_waits && may_send_eager(message)) {
      send_eager(*next, message);
      matched = true;
    }
    run_waits = run_waits || (!matched && (!run_tag_ || *run_tag_ == message.tag));
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

Epoch SendCore::dial(PathIndex index) {
  Path& path = paths_[index];
  if (!path.reading.empty()) {
    throw std::logic_error("a path is dialled while its former connection reads buffers");
  }
  path.kind = PathKind::stream;
  path.epoch = ++path.newest;
  return path.epoch;
}

Epoch SendCore::dial_beside(PathIndex index) {
  Path& path = paths_[index];
  if (path.kind != PathKind::stream) {
    throw std::logic_error("a connection is attempted beside one that is no stream");
  }
  path.beside = ++path.newest;
  path.beside_credits = 0;
  return path.beside;
}

void SendCore::one_sided(PathIndex index, std::uint32_t credits) {
  Path& path = paths_[index];
  if (path.beside != 0) {
    path.beside_credits = credits;
    return;
  }
  path.kind = PathKind::one_sided;
  path.limit = credits;
  path.sent = 0;
  path.landed = 0;
}

std::uint64_t SendCore::credits(PathIndex index) const {
  const Path& path = paths_[index];
  return path.kind == PathKind::stream ? std::numeric_limits<std::uint64_t>::max()
                                       : path.limit - (path.sent - path.landed);
}

void SendCore::on_landed(PathIndex index, Epoch epoch, std::uint64_t landed) {
  Path& path = paths_[index];
  if (epoch == path.epoch) {
    path.landed = std::max(path.landed, std::min(landed, path.sent));
  }
}

// What went before its CTS has no address yet, and a stream's ends have the CPU move the bytes.
bool SendCore::fits(const Message* message, PathKind kind) const {
  return message != nullptr && !message->acknowledged &&
         (kind == PathKind::stream ? !message->no_stream : !message->eager);
}

// The next chunk, out of its queue; false: there is none for this path.
bool SendCore::next_chunk(PathIndex index, ChunkRef& ref, bool& again) {
  if (!has_chunk()) {
    return false;
  }
  auto replay = again_.begin();
  auto fresh = ready_.begin();
  const PathKind kind = paths_[index].kind;
  if (kind == PathKind::one_sided || unacknowledged_device_ != 0) {
    replay = std::find_if(replay, again_.end(),
                          [&](const ChunkRef& one) { return fits(find(one.sequence), kind); });
    fresh = std::find_if(fresh, ready_.end(),
                         [&](Sequence sequence) { return fits(find(sequence), kind); });
  }
  again = replay != again_.end();
  if (again) {
    ref = *replay;
    again_.remove(replay);
    return true;
  }
  if (fresh == ready_.end()) {
    return false;
  }
  Message& message = messages_[*fresh - base_];
  ref = {*fresh, message.next_chunk++};
  if (message.next_chunk == message.chunks) {
    ready_.remove(fresh);
  }
  return true;
}

// Where a one-sided write goes.
void SendCore::address(Outgoing& out, const Message& message, PathIndex path, std::uint32_t chunk) {
  const Slot& slot = find_group(message.group)->cts.slots[message.slot];
  out.where = slot.where + out.header.offset;
  out.key = slot.keys[receiver_rail(path)];
  out.chunk = chunk;
  out.last = chunk + 1 == message.chunks;
}

std::optional<Outgoing> SendCore::take(PathIndex index) {
  Path& path = paths_[index];
  if (credits(index) == 0) {
    return std::nullopt;
  }
  Outgoing out;
  ChunkRef ref;
  if (!next_chunk(index, ref, out.again)) {
    return std::nullopt;
  }
  Message& message = messages_[ref.sequence - base_];
  out.header.group = message.group;
  out.header.slot = message.slot;
  out.header.message_size = message.size;
  out.header.offset = std::uint64_t{ref.chunk} * chunk_size_;
  out.header.length = length_of(message, ref.chunk);
  out.header.budget_low = eager_allowed_ && budget_low();
  out.header.waits = eager_allowed_ && message.copy == nullptr && message.size <= kCopyLimit;
  out.header.eager = message.eager;
  if (message.eager) {
    out.header.era = era_;
    out.header.tag = message.tag;
  }
  out.data = message.data + out.header.offset;
  out.region = message.region;
  out.device = message.device;
  if (path.kind == PathKind::one_sided) {
    address(out, message, index, ref.chunk);
    ++path.sent;
  }
  ++message.readers;
  message.path = index;
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
