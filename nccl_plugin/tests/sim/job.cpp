#include "tests/sim/job.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace fabric::sim {

namespace {

constexpr std::byte kRecycled{0xcd};  // the receiver's caller put something else there
constexpr std::byte kReused{0xee};    // and the sender's
constexpr std::size_t kMostRanks = 4;
constexpr std::size_t kMostSlots = 3;
constexpr std::size_t kFlood = 30;  // receives that a flood has at least

// Addresses and keys as a transport would make them; each says whose it is.
constexpr unsigned kReceiveAt = 32;  // bits of an address
constexpr unsigned kSlotAt = 24;
constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kSlotAt) - 1;
std::uint64_t address_of(std::size_t receive, std::size_t slot) {
  return (receive + 1) << kReceiveAt | slot << kSlotAt;
}
std::uint32_t key_of(std::size_t receive, std::size_t slot, std::size_t rail) {
  return static_cast<std::uint32_t>((receive + 1) * 64 + slot * 8 + rail);
}

}  // namespace

void Random::fill(std::vector<std::byte>& bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = engine_();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

Job::Job(Random& random, core::SendCore& sender, core::ReceiveCore& receiver, Finding& finding,
         bool devices)
    : random_(random),
      devices_(devices && !random.one_in(3)),
      sender_(sender),
      receiver_(receiver),
      finding_(finding) {
  ranks_.resize(random.one_in(2) ? 1 : 2 + random.pick(kMostRanks - 1));
  const bool plain = random.one_in(2);
  for (Rank& rank : ranks_) {
    const auto at = static_cast<std::int32_t>(&rank - ranks_.data());
    rank.tag = plain ? at : at * 0x10001 - 1;  // any 32 bits, -1 too
  }
  floods_ = random.one_in(16);
  plan(floods_ ? kFlood + random.pick(kFlood) : 3 + random.pick(10));
}

void Job::plan(std::size_t receives) {
  const std::array<std::size_t, 7> sizes{
      0, 1, 100, core::kCopyLimit, core::kCopyLimit + 1, std::size_t{3} * kChunk, 40'000};
  const std::array<std::size_t, 3> flood{100, 5000, core::kCopyLimit};
  asks_late_ = random_.one_in(2);
  const bool roomy = random_.one_in(2);
  const bool small = random_.one_in(3);  // so that most may go before their CTS
  const bool runs = random_.one_in(2);   // of one rank's messages, one after the other
  std::size_t most_slots = kMostSlots;
  for (std::size_t i = 0; i < receives; ++i) {
    receives_.emplace_back();
    // Ranks with fewer steps drop out: then the groups of a node's ranks shrink, down to one slot.
    most_slots = random_.one_in(4) ? 1 + random_.pick(kMostSlots) : most_slots;
    const std::size_t slots = random_.one_in(4) ? 1 + random_.pick(most_slots) : 1;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (!runs || random_.one_in(4)) {
        last_rank_ = random_.pick(ranks_.size());
      }
      const std::size_t size = floods_ ? flood[random_.pick(flood.size())]
                                       : sizes[random_.pick(small ? 3 : sizes.size())];
      plan_slot(receives_.size() - 1, ranks_[last_rank_], size, random_.pick(roomy ? 5000 : 50));
    }
  }
}

// The next message of a rank, and the next slot of a receive, for it; `room` bytes larger.
void Job::plan_slot(std::size_t at, Rank& rank, std::size_t size, std::size_t room) {
  Receive& receive = receives_[at];
  Message& message = messages_.emplace_back();
  message.receive = at;
  message.slot = receive.buffers.size();
  message.bytes.resize(size);
  random_.fill(message.bytes);
  message.buffer = message.bytes;
  message.copyable = !random_.one_in(8);
  message.device = devices_ && random_.one_in(8);
  receive.buffers.emplace_back(size + room);
  receive.tags.push_back(rank.tag);
  receive.device.push_back(devices_ && random_.one_in(8));
  receive.messages.push_back(messages_.size() - 1);
  rank.messages.push_back(messages_.size() - 1);
}

void Job::more() { plan(1 + random_.pick(4)); }

void Job::post_send() {
  const std::size_t first = random_.pick(ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[(first + i) % ranks_.size()];
    if (rank.sent == rank.messages.size()) {
      continue;
    }
    Message& message = messages_[rank.messages[rank.sent]];
    const auto no_copy = random_.one_in(2) ? core::NoCopy::take : core::NoCopy::refuse;
    const auto sequence =
        sender_.post(message.buffer.data(), message.buffer.size(), rank.tag, 0, no_copy,
                     {message.buffer.data(), message.copyable, message.device});
    if (sequence) {  // else too many small ones are under way
      message.sequence = *sequence;
      message.posted = true;
      ++rank.sent;
    }
    return;
  }
}

void Job::post_receive() {
  if (posted_ == receives_.size()) {
    return;
  }
  Receive& receive = receives_[posted_++];
  std::vector<core::Buffer> buffers(receive.buffers.size());
  for (std::size_t slot = 0; slot < buffers.size(); ++slot) {
    buffers[slot].data = receive.buffers[slot].data();
    buffers[slot].slot.size = receive.buffers[slot].size();
    buffers[slot].slot.tag = receive.tags[slot];
    buffers[slot].slot.device = receive.device[slot];
    buffers[slot].slot.where = address_of(posted_ - 1, slot);
    for (std::size_t rail = 0; rail < core::kMaxRails; ++rail) {
      buffers[slot].slot.keys[rail] = key_of(posted_ - 1, slot, rail);
    }
  }
  receive.group = receiver_.post(buffers);
}

void Job::check(const Receive& receive) {
  for (std::size_t slot = 0; slot < receive.messages.size(); ++slot) {
    const Message& message = messages_[receive.messages[slot]];
    finding_.expect(message.posted, "received before it was sent");
    finding_.expect(receiver_.received(receive.group, slot) == message.bytes.size(), "wrong size");
    finding_.expect(
        std::equal(message.bytes.begin(), message.bytes.end(), receive.buffers[slot].begin()),
        "wrong bytes");
  }
}

void Job::complete() {
  for (std::size_t i = 0; i < posted_; ++i) {
    Receive& receive = receives_[i];
    if (!receive.done && receiver_.done(receive.group)) {
      check(receive);
      receive.done = true;
      for (std::vector<std::byte>& buffer : receive.buffers) {
        std::fill(buffer.begin(), buffer.end(), kRecycled);
      }
    }
    // Its caller may ask later: it is told by itself then, else with others in one number.
    if (receive.done && !receive.forgotten && random_.one_in(asks_late_ ? 50 : 1)) {
      receive.forgotten = true;
      receiver_.forget(receive.group);
    }
  }
  for (Message& message : messages_) {
    if (!message.posted || message.done || !sender_.done(message.sequence)) {
      continue;
    }
    message.done = true;
    if (message.bytes.size() > core::kCopyLimit || !message.copyable || message.device) {
      const Receive& receive = receives_[message.receive];
      finding_.expect(receive.done || std::equal(message.bytes.begin(), message.bytes.end(),
                                                 receive.buffers[message.slot].begin()),
                      "a send completed before the receiver had all of it");
    }
    std::fill(message.buffer.begin(), message.buffer.end(), kReused);
    sender_.forget(message.sequence);
  }
}

std::byte* Job::landing(const core::Outgoing& chunk, std::size_t rail) {
  const std::size_t at = (chunk.where >> kReceiveAt) - 1;
  const std::size_t slot = chunk.where >> kSlotAt & 0xff;
  const std::uint64_t offset = chunk.where & kOffsetMask;
  if (at >= posted_ || slot >= receives_[at].buffers.size()) {
    finding_.expect(false, "a write that no CTS allows");
    return nullptr;
  }
  Receive& receive = receives_[at];
  std::vector<std::byte>& buffer = receive.buffers[slot];
  finding_.expect(chunk.key == key_of(at, slot, rail), "a write with a key of another rail");
  if (offset + chunk.header.length > buffer.size()) {
    finding_.expect(false, "a write past the slot of its CTS");
    return nullptr;
  }
  finding_.expect(!receive.done || chunk.header.length == 0,
                  "a late write landed in a buffer that was handed back");
  return finding_.any() ? nullptr : buffer.data() + offset;
}

bool Job::finished() const {
  return posted_ == receives_.size() && !sender_.unacknowledged() &&
         std::all_of(receives_.begin(), receives_.end(), [](const Receive& r) { return r.done; }) &&
         std::all_of(messages_.begin(), messages_.end(), [](const Message& m) { return m.done; });
}

bool Job::has_group() const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [](const Receive& receive) { return receive.buffers.size() > 1; });
}

bool Job::has_empty() const {
  return std::any_of(messages_.begin(), messages_.end(),
                     [](const Message& message) { return message.bytes.empty(); });
}

bool Job::sends_device_memory() const {
  return std::any_of(messages_.begin(), messages_.end(),
                     [](const Message& message) { return message.device; });
}

bool Job::fills_device_memory() const {
  return std::any_of(receives_.begin(), receives_.end(), [](const Receive& receive) {
    return std::find(receive.device.begin(), receive.device.end(), true) != receive.device.end();
  });
}

bool Job::has_short() const {
  return std::any_of(messages_.begin(), messages_.end(), [this](const Message& message) {
    return message.bytes.size() < receives_[message.receive].buffers[message.slot].size();
  });
}

void Job::check_end() {
  for (const Receive& receive : receives_) {
    for (const std::vector<std::byte>& buffer : receive.buffers) {
      finding_.expect(std::all_of(buffer.begin(), buffer.end(),
                                  [](std::byte byte) { return byte == kRecycled; }),
                      "a buffer was written after it was handed back");
    }
  }
}

}  // namespace fabric::sim
