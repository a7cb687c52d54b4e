#include "core/send_core.h"

#include <algorithm>
#include <cstring>

namespace fabric::core {

SendCore::SendCore(std::uint32_t chunk_size) : chunk_size_(chunk_size) {}

SendCore::Message* SendCore::find(Sequence sequence) {
  if (sequence < base_ || sequence - base_ >= messages_.size()) {
    return nullptr;
  }
  return &messages_[sequence - base_];
}

const SendCore::Message* SendCore::find(Sequence sequence) const {
  if (sequence < base_ || sequence - base_ >= messages_.size()) {
    return nullptr;
  }
  return &messages_[sequence - base_];
}

SendCore::Open* SendCore::find_group(GroupId group) {
  if (group < grants_base_ || group - grants_base_ >= grants_.size()) {
    return nullptr;
  }
  return &grants_[group - grants_base_];
}

std::optional<Sequence> SendCore::post(const void* data, std::size_t size, int tag,
                                       std::uint64_t stamp) {
  const bool copy = size <= kCopyLimit;
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

bool SendCore::owes() const {
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

// The next group is known. What went ahead of it is judged as the receiver judges it.
void SendCore::open(const Grant& grant) {
  Open& opened = grants_.emplace_back();
  opened.grant = grant;
  single_ = grant.count == 1;
  if (!single_) {
    ++era_;
    take_back();
    return;
  }
  if (ahead_.empty()) {
    return;
  }
  const Sequence sequence = ahead_.front();
  ahead_.pop_front();
  opened.filled = 1;
  opened.sequence[0] = sequence;
  Message* message = find(sequence);
  if (message == nullptr || message->acknowledged) {
    opened.acknowledged = 1;
    --ahead_acknowledged_;
    return;
  }
  message->ahead = false;
  if (message->size > grant.slots[0].size) {
    message->size = grant.slots[0].size;  // too long: it was dropped, and goes again cut off
    if (message->next_chunk != 0) {
      withdraw(sequence);
      message->next_chunk = 0;
      ready_.push_back(sequence);
    }
  }
}

void SendCore::on_grant(const Grant& grant) {
  const GroupId expected = grants_base_ + grants_.size();
  if (grant.group < expected || grant.count == 0 || grant.count > kMaxSlots) {
    return;
  }
  if (grant.group > expected) {
    early_.emplace(grant.group, grant);
    return;
  }
  open(grant);
  open_early();
  match();
  if (grants_.front().acknowledged != 0) {
    settle();  // acknowledged ahead of the grant
  }
}

void SendCore::open_early() {
  for (auto next = early_.begin();
       next != early_.end() && next->first <= grants_base_ + grants_.size();
       next = early_.erase(next)) {
    if (next->first == grants_base_ + grants_.size()) {
      open(next->second);
    }
  }
}

bool SendCore::may_go_ahead(const Message& message) const {
  return ahead_allowed_ && single_ && early_.empty() && message.copy != nullptr &&
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

// A receive of several slots: which of them, only its tags say.
void SendCore::take_back() {
  std::vector<Sequence> back;
  for (const Sequence sequence : ahead_) {
    Message* message = find(sequence);
    if (message == nullptr || message->acknowledged) {
      continue;
    }
    if (message->next_chunk == 0) {
      ready_.erase(std::find(ready_.begin(), ready_.end(), sequence));
    }
    withdraw(sequence);
    message->matched = false;
    message->ahead = false;
    message->chunks = 0;
    message->next_chunk = 0;
    back.push_back(sequence);
  }
  ahead_.clear();
  ahead_acknowledged_ = 0;
  unmatched_.insert(unmatched_.begin(), back.begin(), back.end());
}

// What went out of it counts no more: the receiver has dropped it, or will.
void SendCore::withdraw(Sequence sequence) {
  each(flying_, [&](PathIndex index) {
    Path& path = paths_[index];
    for (auto at = path.flight.begin(); at != path.flight.end();) {
      if (at->ref.sequence == sequence) {
        path.bytes -= at->length;
        at = path.flight.erase(at);
      } else {
        ++at;
      }
    }
  });
  for (auto at = again_.begin(); at != again_.end();) {
    at = at->sequence == sequence ? again_.erase(at) : at + 1;
  }
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

void SendCore::acknowledge(Open& opened, std::uint8_t slot) {
  const auto bit = static_cast<std::uint8_t>(1U << slot);
  if ((opened.filled & bit) == 0) {
    return;  // nothing of ours went there: not a statement about us
  }
  Message* message = find(opened.sequence[slot]);
  if (message != nullptr && message->next_chunk != message->chunks) {
    return;  // nobody can have what has not been sent yet
  }
  opened.acknowledged = static_cast<std::uint8_t>(opened.acknowledged | bit);
  if (message != nullptr && !message->acknowledged) {
    acknowledged(*message);
  }
}

void SendCore::acknowledged(Message& message) {
  message.acknowledged = true;
  --unacknowledged_;
  unacknowledged_large_ -= message.copy == nullptr ? 1U : 0U;
  delivered_.push_back({message.stamp, message.path, message.copy == nullptr || !ahead_allowed_});
}

void SendCore::on_acknowledge(GroupId group, std::uint8_t slot) {
  Open* opened = find_group(group);
  const GroupId expected = grants_base_ + grants_.size();
  if (opened == nullptr) {
    // The acknowledgement overtook the grant: only what went ahead can be meant.
    if (slot == 0 && group >= expected && group - expected < ahead_.size()) {
      acknowledge_ahead(ahead_[group - expected]);
      settle();
    }
    return;
  }
  if (slot < opened->grant.count) {
    acknowledge(*opened, slot);
    settle();
  }
}

void SendCore::acknowledge_ahead(Sequence sequence) {
  Message* message = find(sequence);
  if (message != nullptr && !message->acknowledged && message->next_chunk == message->chunks) {
    acknowledged(*message);
    ++ahead_acknowledged_;
  }
}

// The receiver is done with groups whose grants were lost on the way here: what went ahead has
// filled them.
void SendCore::open_below(GroupId group) {
  while (grants_base_ + grants_.size() < group && !ahead_.empty()) {
    acknowledge_ahead(ahead_.front());
    const Message* message = find(ahead_.front());
    if (message != nullptr && !message->acknowledged) {
      return;  // nobody can have what has not been sent yet
    }
    if (grants_.empty()) {  // it need not be opened to be settled
      ahead_.pop_front();
      --ahead_acknowledged_;
      ++grants_base_;
      continue;
    }
    Grant grant;
    grant.group = grants_base_ + grants_.size();
    grant.count = 1;
    open(grant);
  }
  open_early();
  match();
}

void SendCore::acknowledge_below(GroupId group) {
  for (Open& opened : grants_) {
    if (opened.grant.group >= group) {
      break;
    }
    for (std::uint8_t slot = 0; slot < opened.grant.count; ++slot) {
      acknowledge(opened, slot);
    }
  }
  settle();
}

void SendCore::on_state(const ReceiverState& state) {
  open_below(state.done_below);
  for (const GroupReport& report : state.groups) {
    on_grant(report.grant);
  }
  acknowledge_below(state.done_below);
  for (const GroupReport& report : state.groups) {
    for (std::uint8_t slot = 0; slot < report.grant.count && slot < kMaxSlots; ++slot) {
      if (report.slots[slot].whole) {
        on_acknowledge(report.grant.group, slot);
      }
    }
  }
}

// Drops what nobody can ask about any more.
void SendCore::settle() {
  while (!messages_.empty()) {
    const Message& front = messages_.front();
    if (!front.acknowledged || !front.forgotten || front.readers != 0) {
      break;
    }
    if (front.copy != nullptr) {
      copied_bytes_ -= front.copied;
      --copied_count_;
    }
    messages_.pop_front();
    ++base_;
  }
  while (!grants_.empty()) {
    const Open& front = grants_.front();
    if (front.acknowledged != (1U << front.grant.count) - 1U) {
      break;
    }
    grants_.pop_front();
    ++grants_base_;
  }
  each(flying_, [this](PathIndex index) { trim(index); });
}

// Acknowledged chunks leave the flight list from its front; those behind a living one wait.
void SendCore::trim(PathIndex index) {
  Path& path = paths_[index];
  while (!path.flight.empty()) {
    const Message* message = find(path.flight.front().ref.sequence);
    if (message != nullptr && !message->acknowledged) {
      break;
    }
    path.bytes -= path.flight.front().length;
    path.flight.pop_front();
  }
  if (path.flight.empty()) {
    flying_ &= ~bit(index);
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

Epoch SendCore::fail(PathIndex index) {
  Path& path = paths_[index];
  path.fencing = true;
  path.fence = ++path.epoch;
  return path.fence;
}

void SendCore::quiesced(PathIndex index) {
  while (!paths_[index].reading.empty()) {
    written(index);
  }
}

std::optional<std::uint64_t> SendCore::on_fence_answer(PathIndex index, Epoch epoch,
                                                       const ReceiverState& state) {
  on_state(state);
  Path& path = paths_[index];
  if (!path.fencing || epoch != path.fence) {
    return std::nullopt;
  }
  path.fencing = false;
  std::map<GroupId, const GroupReport*> reports;
  for (const GroupReport& report : state.groups) {
    reports.emplace(report.grant.group, &report);
  }
  std::uint64_t bytes = 0;
  Fifo<Flight> kept;
  for (const Flight& flight : path.flight) {
    if (flight.epoch >= epoch) {
      kept.push_back(flight);  // went out on the new connection, which the fence does not touch
      continue;
    }
    path.bytes -= flight.length;
    const Message* message = find(flight.ref.sequence);
    if (message == nullptr || message->acknowledged) {
      continue;
    }
    const auto report = reports.find(message->group);
    const bool delivered =
        report != reports.end() &&
        std::any_of(report->second->slots[message->slot].have.begin(),
                    report->second->slots[message->slot].have.end(), [&](const ChunkRange& range) {
                      return flight.ref.chunk >= range.first && flight.ref.chunk < range.last;
                    });
    if (!delivered) {
      bytes += flight.length;
      again_.push_back(flight.ref);
    }
  }
  path.flight = std::move(kept);
  trim(index);
  return bytes;
}

}  // namespace fabric::core
