#include "tests/sim/job.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace fabric::sim {

namespace {

constexpr std::byte kRecycled{0xcd};  // the receiver's caller put something else there
constexpr std::byte kReused{0xee};    // and the sender's

}  // namespace

void Random::fill(std::vector<std::byte>& bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = engine_();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

Job::Job(Random& random, core::SendCore& sender, core::ReceiveCore& receiver, Finding& finding)
    : random_(random), sender_(sender), receiver_(receiver), finding_(finding) {
  plan(3 + random.pick(10));
}

void Job::plan(std::size_t receives) {
  const std::array<std::size_t, 7> sizes{
      0, 1, 100, core::kCopyLimit, core::kCopyLimit + 1, std::size_t{3} * kChunk, 40'000};
  asks_late_ = random_.one_in(2);
  const bool roomy = random_.one_in(2);
  const bool small = random_.one_in(3);  // so that most may go ahead of their grants
  for (std::size_t i = 0; i < receives; ++i) {
    Receive& receive = receives_.emplace_back();
    const std::size_t slots = random_.one_in(4) ? 2 + random_.pick(2) : 1;
    const std::size_t first = messages_.size();
    for (std::size_t slot = 0; slot < slots; ++slot) {
      Message& message = messages_.emplace_back();
      message.receive = receives_.size() - 1;
      message.slot = slot;
      message.bytes.resize(sizes[random_.pick(small ? 3 : sizes.size())]);
      random_.fill(message.bytes);
      message.buffer = message.bytes;
      receive.buffers.emplace_back(message.bytes.size() + random_.pick(roomy ? 5000 : 50));
    }
    // Tags tell the slots of one receive apart, so its messages may come in any order.
    if (slots > 1) {
      std::swap(messages_[first], messages_[first + random_.pick(slots)]);
    }
    receive.messages.resize(slots);
    for (std::size_t at = first; at < messages_.size(); ++at) {
      receive.messages[messages_[at].slot] = at;
    }
  }
}

void Job::more() { plan(1 + random_.pick(4)); }

void Job::post_send() {
  if (sent_ == messages_.size()) {
    return;
  }
  Message& message = messages_[sent_];
  const auto sequence =
      sender_.post(message.buffer.data(), message.buffer.size(), static_cast<int>(message.slot));
  if (!sequence) {
    return;  // too many small ones under way
  }
  message.sequence = *sequence;
  ++sent_;
  if (message.bytes.size() <= core::kCopyLimit) {
    std::fill(message.buffer.begin(), message.buffer.end(), kReused);  // copied means copied
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
    buffers[slot].slot.tag = static_cast<std::int32_t>(slot);
  }
  receive.group = receiver_.post(buffers);
}

void Job::check(const Receive& receive) {
  for (std::size_t slot = 0; slot < receive.messages.size(); ++slot) {
    const Message& message = messages_[receive.messages[slot]];
    finding_.expect(receive.messages[slot] < sent_, "received before it was sent");
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
  for (std::size_t i = 0; i < sent_; ++i) {
    Message& message = messages_[i];
    if (message.done || !sender_.done(message.sequence)) {
      continue;
    }
    message.done = true;
    if (message.bytes.size() > core::kCopyLimit) {
      const Receive& receive = receives_[message.receive];
      finding_.expect(receive.done || std::equal(message.bytes.begin(), message.bytes.end(),
                                                 receive.buffers[message.slot].begin()),
                      "a send completed before the receiver had all of it");
    }
    std::fill(message.buffer.begin(), message.buffer.end(), kReused);
    sender_.forget(message.sequence);
  }
}

std::byte* Job::landing(const core::ChunkHeader& header) {
  if (header.group >= posted_ || header.slot >= receives_[header.group].buffers.size()) {
    finding_.expect(false, "a write into nothing that was granted");
    return nullptr;
  }
  Receive& receive = receives_[header.group];
  std::vector<std::byte>& buffer = receive.buffers[header.slot];
  if (header.offset + header.length > buffer.size()) {
    finding_.expect(false, "a write past the granted slot");
    return nullptr;
  }
  finding_.expect(!receive.done || header.length == 0,
                  "a late write landed in a buffer that was handed back");
  return buffer.data() + header.offset;
}

bool Job::finished() const {
  return sent_ == messages_.size() && posted_ == receives_.size() && !sender_.unacknowledged() &&
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
