// The reliability core by hand: one case for each rule of its headers.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

#include "core/ack_timeout.h"
#include "core/lifecycle.h"
#include "core/receive_core.h"
#include "core/reported_down.h"
#include "core/schedule.h"
#include "core/send_core.h"

using namespace fabric::core;

namespace {

constexpr std::uint32_t kChunk = 4096;
constexpr PathIndex kPrimary = path_index(0, 0);
constexpr PathIndex kOther = path_index(1, 1);

struct Memory {
  std::vector<std::byte> bytes;
  explicit Memory(std::size_t size, int seed = 0) : bytes(size) {
    for (std::size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(seed) * 7) & 0xff);
    }
  }
  Buffer buffer(int tag = 0) {
    Buffer made;
    made.data = bytes.data();
    made.slot.size = bytes.size();
    made.slot.tag = tag;
    return made;
  }
};

void exchange_cts(ReceiveCore& receiver, SendCore& sender) {
  while (const auto cts = receiver.next_cts()) {
    sender.on_cts(*cts);
  }
}

void acknowledge_all(ReceiveCore& receiver, SendCore& sender) {
  if (const auto below = receiver.next_done_below()) {
    sender.on_state({*below, {}});
  }
  while (const auto next = receiver.next_acknowledgement()) {
    sender.on_acknowledge(next->group, next->slot);
  }
}

// Carries one chunk over; the verdict says what became of it.
Verdict carry(ReceiveCore& receiver, PathIndex path, Epoch epoch, const Outgoing& out) {
  const Placement placement = receiver.begin(path, epoch, out.header);
  if (placement.verdict == Verdict::place && out.header.length != 0) {
    std::memcpy(placement.data, out.data, out.header.length);
  }
  if (placement.verdict == Verdict::place || placement.verdict == Verdict::duplicate) {
    receiver.finish(path);
  }
  return placement.verdict;
}

}  // namespace

TEST_CASE("a large message is done only when the receiving core acknowledged it") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory from(10'000, 1);
  Memory to(12'000);
  const Epoch epoch = sender.dial(kPrimary);
  REQUIRE(receiver.admit(kPrimary, epoch));
  const auto sequence = sender.post(from.bytes.data(), from.bytes.size(), 0);
  REQUIRE(sequence);
  CHECK_FALSE(sender.has_chunk());  // there is no CTS
  const GroupId group = receiver.post(std::array{to.buffer()});
  exchange_cts(receiver, sender);
  int chunks = 0;
  while (const auto out = sender.take(kPrimary)) {
    CHECK(carry(receiver, kPrimary, epoch, *out) == Verdict::place);
    sender.written(kPrimary);
    ++chunks;
  }
  CHECK(chunks == 3);
  CHECK(receiver.done(group));
  CHECK(receiver.received(group, 0) == 10'000);
  CHECK_FALSE(sender.done(*sequence));
  acknowledge_all(receiver, sender);
  CHECK(sender.done(*sequence));
  CHECK(std::equal(from.bytes.begin(), from.bytes.end(), to.bytes.begin()));
}

TEST_CASE("a small message is done once sent, its copy stays until acknowledged") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  std::vector<std::byte> scratch(100, std::byte{7});
  Memory to(100);
  const Epoch epoch = sender.dial(kPrimary);
  receiver.admit(kPrimary, epoch);
  receiver.post(std::array{to.buffer()});
  const auto sequence = sender.post(scratch.data(), scratch.size(), 0);
  CHECK_FALSE(sender.done(*sequence));
  exchange_cts(receiver, sender);
  const auto lost = sender.take(kPrimary);  // goes down with the path
  sender.written(kPrimary);
  CHECK(sender.done(*sequence));
  scratch.assign(100, std::byte{9});  // the caller uses its buffer again
  const Epoch fence = sender.fail(kPrimary);
  sender.quiesced(kPrimary);
  CHECK_FALSE(sender.has_chunk());  // not before the fence is answered
  receiver.fence(kPrimary, fence);
  receiver.retire(kPrimary);
  CHECK(sender.on_fence_answer(kPrimary, fence, receiver.state()) == 100);
  const Epoch second = sender.dial(kOther);
  receiver.admit(kOther, second);
  const auto again = sender.take(kOther);
  REQUIRE(again);
  CHECK(again->again);
  CHECK(carry(receiver, kOther, second, *again) == Verdict::place);
  CHECK(to.bytes[50] == std::byte{7});
  CHECK(lost.has_value());
}

TEST_CASE("the copy ring is bounded and drains by acknowledgement") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory from(kCopyLimit);
  std::size_t posted = 0;
  while (sender.post(from.bytes.data(), kCopyLimit, 0)) {
    ++posted;
  }
  CHECK(posted == kCopyBudget / kCopyLimit);
  CHECK(sender.post(from.bytes.data(), kCopyLimit + 1, 0));  // large ones are not bounded here
  std::vector<Memory> to(posted, Memory(kCopyLimit));
  const Epoch epoch = sender.dial(kPrimary);
  receiver.admit(kPrimary, epoch);
  for (Memory& memory : to) {
    receiver.post(std::array{memory.buffer()});
  }
  exchange_cts(receiver, sender);
  while (const auto out = sender.take(kPrimary)) {
    carry(receiver, kPrimary, epoch, *out);
    sender.written(kPrimary);
  }
  CHECK_FALSE(sender.post(from.bytes.data(), kCopyLimit, 0));
  acknowledge_all(receiver, sender);
  CHECK(sender.post(from.bytes.data(), kCopyLimit, 0));
}

TEST_CASE("tags pick the buffer, in a group and in a single receive") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory a(10'000, 1);
  Memory b(10'000, 2);
  Memory c(10'000, 3);
  Memory to_a(10'000);
  Memory to_b(10'000);
  Memory to_c(10'000);
  const Epoch epoch = sender.dial(kPrimary);
  receiver.admit(kPrimary, epoch);
  sender.post(b.bytes.data(), b.bytes.size(), 22);
  sender.post(a.bytes.data(), a.bytes.size(), 11);
  sender.post(c.bytes.data(), c.bytes.size(), 33);
  const GroupId group = receiver.post(std::array{to_a.buffer(11), to_b.buffer(22)});
  receiver.post(std::array{to_c.buffer(33)});
  exchange_cts(receiver, sender);
  while (const auto out = sender.take(kPrimary)) {
    carry(receiver, kPrimary, epoch, *out);
    sender.written(kPrimary);
  }
  CHECK(receiver.done(group));
  CHECK(to_a.bytes == a.bytes);
  CHECK(to_b.bytes == b.bytes);
  CHECK(to_c.bytes == c.bytes);
}

TEST_CASE("empty messages and receives larger than the send") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory to(64);
  const Epoch epoch = sender.dial(kPrimary);
  receiver.admit(kPrimary, epoch);
  const GroupId first = receiver.post(std::array{to.buffer()});
  const GroupId second = receiver.post(std::array{Buffer{}});
  sender.post(nullptr, 0, 0);
  sender.post(nullptr, 0, 0);
  exchange_cts(receiver, sender);
  while (const auto out = sender.take(kPrimary)) {
    CHECK(out->header.length == 0);
    carry(receiver, kPrimary, epoch, *out);
    sender.written(kPrimary);
  }
  CHECK(receiver.done(first));
  CHECK(receiver.received(first, 0) == 0);
  CHECK(receiver.done(second));
}

TEST_CASE("a send larger than its receive is cut to it") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory from(20'000);
  Memory to(9'000);
  const auto sequence = sender.post(from.bytes.data(), from.bytes.size(), 0);
  receiver.post(std::array{to.buffer()});
  exchange_cts(receiver, sender);
  CHECK(sender.size(*sequence) == 9'000);
}

TEST_CASE(
    "what is missing right behind a chunk ends where something is here or arrives elsewhere") {
  ReceiveCore receiver(kChunk);
  Memory into(8 * kChunk - 100);
  const Buffer buffer = into.buffer();
  const GroupId group = receiver.post({&buffer, 1});
  REQUIRE(receiver.admit(kPrimary, 1));
  REQUIRE(receiver.admit(kOther, 1));
  const auto begin = [&](PathIndex path, std::uint64_t chunk) {
    ChunkHeader header;
    header.group = group;
    header.message_size = into.bytes.size();
    header.offset = chunk * kChunk;
    header.length = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(kChunk, header.message_size - header.offset));
    return receiver.begin(path, 1, header).verdict;
  };
  CHECK(receiver.missing_behind(kPrimary, 15) == 0);  // nothing arrives
  REQUIRE(begin(kPrimary, 1) == Verdict::place);
  CHECK(receiver.missing_behind(kPrimary, 15) == 6);
  CHECK(receiver.missing_behind(kPrimary, 4) == 4);
  REQUIRE(begin(kOther, 5) == Verdict::place);
  CHECK(receiver.missing_behind(kPrimary, 15) == 3);
  CHECK(receiver.missing_behind(kOther, 15) == 2);
  receiver.finish(kOther);
  CHECK(receiver.missing_behind(kPrimary, 15) == 3);
  receiver.finish(kPrimary);
  REQUIRE(begin(kPrimary, 5) == Verdict::duplicate);
  CHECK(receiver.missing_behind(kPrimary, 15) == 0);
  receiver.finish(kPrimary);
  REQUIRE(begin(kOther, 3) == Verdict::place);
  receiver.retire(kOther);
  CHECK(receiver.missing_behind(kOther, 15) == 0);
  REQUIRE(begin(kPrimary, 2) == Verdict::place);
  CHECK(receiver.missing_behind(kPrimary, 15) == 2);
}

TEST_CASE("stale epochs, repeated fences and late packets change nothing") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory from(3 * kChunk, 4);
  Memory to(3 * kChunk);
  const Epoch old = sender.dial(kPrimary);
  receiver.admit(kPrimary, old);
  const GroupId group = receiver.post(std::array{to.buffer()});
  const auto sequence = sender.post(from.bytes.data(), from.bytes.size(), 0);
  exchange_cts(receiver, sender);
  const auto first = sender.take(kPrimary);
  sender.written(kPrimary);
  const auto late = sender.take(kPrimary);
  sender.written(kPrimary);
  CHECK(carry(receiver, kPrimary, old, *first) == Verdict::place);
  const Epoch fence = sender.fail(kPrimary);
  sender.quiesced(kPrimary);
  CHECK(receiver.fence(kPrimary, fence));
  receiver.retire(kPrimary);
  CHECK_FALSE(receiver.fence(kPrimary, fence));  // idempotent
  CHECK_FALSE(receiver.admit(kPrimary, old));
  CHECK(carry(receiver, kPrimary, old, *late) == Verdict::stale);
  CHECK_FALSE(sender.on_fence_answer(kPrimary, old, receiver.state()));  // not the fence under way
  CHECK(sender.on_fence_answer(kPrimary, fence, receiver.state()) == kChunk);
  CHECK_FALSE(sender.on_fence_answer(kPrimary, fence, receiver.state()));  // answered already
  const Epoch next = sender.dial(kPrimary);
  CHECK(receiver.admit(kPrimary, next));
  while (const auto out = sender.take(kPrimary)) {
    CHECK(carry(receiver, kPrimary, next, *out) == Verdict::place);
    sender.written(kPrimary);
  }
  CHECK(receiver.done(group));
  CHECK(to.bytes == from.bytes);
  // The buffer is handed back and used for something else: nothing old may land in it.
  acknowledge_all(receiver, sender);
  receiver.forget(group);
  to.bytes.assign(to.bytes.size(), std::byte{0xee});
  CHECK(carry(receiver, kPrimary, next, *late) == Verdict::duplicate);
  CHECK(to.bytes[kChunk] == std::byte{0xee});
  CHECK(sender.done(*sequence));
}

TEST_CASE("the buffer is not the caller's while a transport reads it") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory from(kChunk * 3);
  const auto sequence = sender.post(from.bytes.data(), from.bytes.size(), 0);
  Memory to(kChunk * 3);
  receiver.post(std::array{to.buffer()});
  exchange_cts(receiver, sender);
  sender.dial(kPrimary);
  while (sender.take(kPrimary)) {
  }
  sender.on_acknowledge(0, 0);
  CHECK_FALSE(sender.done(*sequence));
  sender.fail(kPrimary);
  CHECK_FALSE(sender.done(*sequence));  // verbs: not before the ERR state is confirmed
  sender.quiesced(kPrimary);
  CHECK(sender.done(*sequence));
}

TEST_CASE("nonsense is refused and throws nothing") {
  ReceiveCore receiver(kChunk);
  Memory to(kChunk);
  receiver.admit(kPrimary, 1);
  receiver.post(std::array{to.buffer()});
  ChunkHeader header{.group = 0, .message_size = kChunk, .offset = 0, .length = kChunk, .slot = 0};
  auto with = [&](auto change) {
    ChunkHeader bad = header;
    change(bad);
    return receiver.begin(kPrimary, 1, bad).verdict;
  };
  CHECK(with([](ChunkHeader& h) { h.group = 7; }) == Verdict::refuse);
  CHECK(with([](ChunkHeader& h) { h.slot = 1; }) == Verdict::refuse);
  CHECK(with([](ChunkHeader& h) { h.offset = 1; }) == Verdict::refuse);
  CHECK(with([](ChunkHeader& h) { h.length = 5; }) == Verdict::refuse);
  CHECK(with([](ChunkHeader& h) { h.message_size = kChunk + 1; }) == Verdict::refuse);
  CHECK(with([](ChunkHeader& h) { h.offset = ~std::uint64_t{4095}; }) == Verdict::refuse);
  CHECK(receiver.begin(kPrimary, 1, header).verdict == Verdict::place);
  CHECK(receiver.begin(kPrimary, 1, header).verdict == Verdict::refuse);  // one is still arriving
  receiver.admit(kOther, 1);
  CHECK(receiver.begin(kOther, 1, header).verdict == Verdict::refuse);  // sent again, no fence
}

TEST_CASE("CTS messages may overtake each other, acknowledgements may be late") {
  SendCore sender(kChunk);
  Memory from(kChunk);
  Cts all_cts[3];
  for (GroupId i = 0; i < 3; ++i) {
    all_cts[i].group = i;
    all_cts[i].count = 1;
    all_cts[i].slots[0].size = kChunk;
  }
  std::vector<Sequence> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back(*sender.post(from.bytes.data(), kCopyLimit + 1, 0));
  }
  sender.on_cts(all_cts[2]);
  CHECK_FALSE(sender.has_chunk());
  sender.on_cts(all_cts[0]);
  sender.on_cts(all_cts[1]);
  for (GroupId i = 0; i < 3; ++i) {
    CHECK(sender.take(kPrimary)->header.group == i);
    sender.written(kPrimary);
  }
  sender.on_acknowledge(5, 0);  // never offered
  sender.on_acknowledge(2, 0);
  sender.on_acknowledge(2, 0);
  CHECK(sender.done(sequences[2]));
  CHECK_FALSE(sender.done(sequences[0]));
}

TEST_CASE("reported down: older than the connection it closes nothing, nor the last path") {
  const PathIndex a = path_index(0, 0);
  const PathIndex b = path_index(1, 1);
  const PathSet both = bit(a) | bit(b);
  ReportedDown said;
  CHECK_FALSE(said.should_close(a, 5, both));
  said.report(bit(a), 10);
  CHECK(said.reports(a));
  CHECK(said.should_close(a, 5, both));
  CHECK(said.should_close(a, 10, both));
  CHECK_FALSE(said.should_close(a, 11, both));  // connected since: the report is old
  CHECK_FALSE(said.should_close(a, 5, bit(a)));
  CHECK_FALSE(said.should_close(b, 5, both));
  said.report(both, 20);
  CHECK_FALSE(said.should_close(a, 11, both));  // nobody is left
  CHECK_FALSE(
      said.should_close(a, 11, both | bit(path_index(2, 2))));  // said at 10, repeated at 20
  CHECK(said.should_close(b, 11, both | bit(path_index(2, 2))));
  said.report(0, 30);
  CHECK_FALSE(said.reports(a));
  said.report(bit(a), 40);
  CHECK(said.should_close(a, 11, both));  // said anew
}

TEST_CASE("lifecycle: illegal transitions throw and change nothing") {
  Lifecycle life;
  CHECK_THROWS_AS(life.on(LinkEvent::lost), std::logic_error);
  CHECK(life.phase() == LinkPhase::idle);
  life.on(LinkEvent::dial);
  CHECK_THROWS(life.on(LinkEvent::dial));
  life.on(LinkEvent::connected);
  CHECK(life.live());
  life.on(LinkEvent::lost);
  life.on(LinkEvent::connected);  // the peer dialled
  life.on(LinkEvent::close);
  CHECK_THROWS(life.on(LinkEvent::dial));
  CHECK(life.phase() == LinkPhase::closed);
}

TEST_CASE("ACK timeout: what is and what is not a dead connection") {
  constexpr std::int64_t kMs = 1'000'000;
  const auto run = [](PathSample sample, int until_ms, std::int64_t heard_ms, int step_ms = 5) {
    AckTimeoutDetector ack_timeout;
    for (int t = 1; t <= until_ms; t += step_ms) {
      sample.since_ack_ns = t * kMs;
      if (ack_timeout.judge(sample, t * kMs, heard_ms * kMs) == Liveness::dead) {
        return t;
      }
    }
    return 0;
  };
  const PathSample lost{
      .unacknowledged = 3, .acknowledged_bytes = 10, .ack_due_ns = 2 * (500 + 4 * 200) * 1000};
  const int found = run(lost, 1000, 0);
  CHECK(found >= 60);
  CHECK(found <= 70);
  CHECK(run({.unacknowledged = 0}, 1000, 0) == 0);  // idle, or a peer's closed window
  PathSample slow = lost;
  slow.ack_due_ns = 2 * (40'000 + 4 * 200) * 1000;  // a full queue
  CHECK(run(slow, 1000, 0) >= 80);
  CHECK(run(slow, 1000, 0) <= 190);
  CHECK(run(lost, 300, 250) >= 250);  // the witness spoke: one lost packet, or one bad connection
  AckTimeoutDetector full;            // a queue of our own host took the last packet
  CHECK(full.judge({.held = true}, 1 * kMs, 0) == Liveness::alive);
  CHECK_FALSE(full.moving());
  CHECK(full.judge({}, 2 * kMs, 0) == Liveness::alive);
  CHECK(full.moving());
  AckTimeoutDetector seldom;  // looks 50 ms apart: the witness is asked before it judges
  std::int64_t answered = 1;
  for (int t = 1; t < 240; t += t < 100 ? 50 : 4) {
    PathSample alone = lost;
    alone.since_ack_ns = t * kMs;
    const Liveness liveness = seldom.judge(alone, t * kMs, answered);
    CHECK(liveness != Liveness::dead);
    answered = liveness == Liveness::suspect ? t * kMs : answered;
  }
  AckTimeoutDetector paused;  // the host slept: look again before judging
  CHECK(paused.judge(lost, 1 * kMs, 0) == Liveness::alive);
  PathSample after = lost;
  after.since_ack_ns = 500 * kMs;
  CHECK(paused.judge(after, 500 * kMs, 0) == Liveness::suspect);
  after.acknowledged_bytes = 20;
  CHECK(paused.judge(after, 505 * kMs, 0) == Liveness::alive);
}

TEST_CASE("an acknowledgement of what was not sent is not believed") {
  SendCore sender(kChunk);
  ReceiveCore receiver(kChunk);
  Memory from(10'000, 1);
  Memory to(12'000);
  receiver.admit(kPrimary, sender.dial(kPrimary));
  const auto sequence = sender.post(from.bytes.data(), from.bytes.size(), 0);
  const GroupId group = receiver.post(std::array{to.buffer()});
  exchange_cts(receiver, sender);
  REQUIRE(sender.take(kPrimary));  // one of three chunks
  sender.written(kPrimary);
  ReceiverState state = receiver.state();
  state.groups[0].slots[0].whole = true;
  sender.on_acknowledge(group, 0);
  sender.on_state(state);
  sender.on_state({group + 1, {}});
  CHECK_FALSE(sender.done(*sequence));
  CHECK(sender.take(kPrimary)->header.offset == kChunk);
}
