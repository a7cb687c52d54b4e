// Small messages that go eagerly, before their CTS: one case for each way it may end.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "tests/pair_kit.h"

using namespace fabric::core;
using namespace fabric::core::kit;

TEST_CASE("a message that came eagerly waits for its receive") {
  Pair pair;
  std::string to(8, '-');
  const Sequence sequence = pair.send("ahead");
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.sender.done(sequence));
  CHECK(pair.sender.unacknowledged());
  CHECK_FALSE(pair.sender.busy());  // there is no CTS: it does not stall
  CHECK(pair.sender.awaits_cts());
  const GroupId group = pair.receiver.post(std::array{buffer(to)});
  CHECK(pair.receiver.done(group));
  CHECK(pair.receiver.received(group, 0) == 5);
  CHECK(to == "ahead---");
  CHECK_FALSE(pair.receiver.urgent());
  pair.receiver.forget(group);
  pair.tell();  // the CTS is told though the group is gone
  CHECK_FALSE(pair.sender.unacknowledged());
  CHECK_FALSE(pair.sender.awaits_cts());
}

TEST_CASE("what was posted before messages might go eagerly goes when they may") {
  SendCore sender(64);
  sender.dial(kPrimary);
  const std::string text = "early";
  CHECK(sender.post(text.data(), text.size(), 0) == Sequence{0});
  CHECK_FALSE(sender.allow_eager(false));
  CHECK_FALSE(sender.has_chunk());
  CHECK(sender.allow_eager(true));
  REQUIRE(sender.has_chunk());
  CHECK(sender.take(kPrimary)->header.eager);
  CHECK_FALSE(sender.allow_eager(true));
  CHECK_FALSE(sender.has_chunk());
}

TEST_CASE("what was whole and forgotten before it was told is told in one number") {
  Pair pair;
  std::string to(8, '-');
  for (int i = 0; i < 20; ++i) {
    pair.send("many");
    CHECK(pair.carry(kPrimary) == Verdict::place);
    pair.receiver.forget(pair.receiver.post(std::array{buffer(to)}));
  }
  const GroupId waiting = pair.receiver.post(std::array{buffer(to)});
  CHECK_FALSE(pair.receiver.urgent());
  CHECK(pair.receiver.has_output());
  CHECK(pair.receiver.next_done_below() == waiting);
  CHECK_FALSE(pair.receiver.next_done_below());
  CHECK_FALSE(pair.receiver.next_acknowledgement());
  const auto cts = pair.receiver.next_cts();
  REQUIRE(cts);
  CHECK(cts->group == waiting);
  CHECK_FALSE(pair.receiver.next_cts());
  CHECK_FALSE(pair.receiver.has_output());
  SUBCASE("in order") {
    pair.sender.on_state({waiting, {}});
    pair.sender.on_cts(*cts);
  }
  SUBCASE("the CTS comes first, on another path") {
    pair.sender.on_cts(*cts);
    pair.sender.on_state({waiting, {}});
  }
  CHECK_FALSE(pair.sender.unacknowledged());
  pair.send("next");
  CHECK(pair.sender.take(kPrimary)->header.group == waiting);
}

TEST_CASE("acknowledgements are urgent before the sender has to stop") {
  Pair pair;
  std::string to(8, '-');
  std::size_t sent = 0;
  while (!pair.receiver.urgent()) {
    REQUIRE(pair.sender.post("x", 1, 0));
    CHECK(pair.carry(kPrimary) == Verdict::place);
    pair.receiver.forget(pair.receiver.post(std::array{buffer(to)}));
    ++sent;
  }
  CHECK(sent < kCopyMessages);
  CHECK(pair.sender.nearly_full());
  pair.tell();
  CHECK_FALSE(pair.sender.nearly_full());
  CHECK_FALSE(pair.sender.unacknowledged());
}

TEST_CASE("nothing goes before a message that may not") {
  Pair pair;
  const std::string large(kCopyLimit + 1, 'x');
  pair.send(large);
  pair.send("small");
  CHECK_FALSE(pair.sender.has_chunk());
  std::string to(large.size(), '-');
  pair.receiver.post(std::array{buffer(to)});
  CHECK(pair.receiver.urgent());  // the sender cannot go on without it
  pair.tell();
  while (!pair.receiver.done(0)) {
    CHECK(pair.carry(kPrimary) == Verdict::place);
  }
  CHECK(to == large);
  CHECK(pair.sender.take(kPrimary)->header.eager);  // nor does it wait longer than that
}

TEST_CASE("a receive of several slots: what went eagerly goes again where it belongs") {
  Pair pair;
  std::string a(4, '-');
  std::string b(4, '-');
  std::string c(4, '-');
  pair.send("bbbb", 2);
  pair.send("cccc", 2);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  const Outgoing late = *pair.sender.take(kOther);  // still on its way
  pair.sender.written(kOther);
  const GroupId group = pair.receiver.post(std::array{buffer(a, 1), buffer(b, 2)});
  const GroupId next = pair.receiver.post(std::array{buffer(c, 2)});
  CHECK(pair.receiver.urgent());
  CHECK(pair.carry(kOther, late) == Verdict::duplicate);  // for `next`, but of an older era
  CHECK_FALSE(pair.receiver.done(next));
  pair.tell();
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.receiver.done(next));
  CHECK(c == "cccc");
  CHECK_FALSE(pair.receiver.done(group));
  pair.send("aaaa", 1);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.receiver.done(group));
  CHECK(a + b == "aaaabbbb");
  pair.tell();
  CHECK_FALSE(pair.sender.unacknowledged());
}

TEST_CASE("a receive into device memory: what went eagerly is not put there, and waits") {
  for (const bool posted : {true, false}) {
    CAPTURE(posted);
    Pair pair;
    std::string device(4, '-');
    std::string host(4, '-');
    Buffer into_device = buffer(device, 2);
    into_device.slot.device = true;
    into_device.slot.keys = {7};
    pair.send("aaaa", 2);
    pair.send("bbbb", 2);
    CHECK((posted || pair.carry(kPrimary) == Verdict::place));
    const GroupId first = pair.receiver.post(std::array{into_device});
    const GroupId second = pair.receiver.post(std::array{buffer(host, 2)});
    CHECK((!posted || pair.carry(kPrimary) == Verdict::duplicate));
    CHECK(pair.carry(kPrimary) == Verdict::duplicate);  // of an older era
    CHECK(pair.receiver.urgent());
    pair.tell();
    CHECK(pair.sender.needs_one_sided());
    CHECK(pair.carry(kPrimary) == Verdict::place);  // the second goes on, the first may not
    CHECK(pair.receiver.done(second));
    CHECK(host == "bbbb");
    CHECK_FALSE(pair.sender.take(kPrimary));
    CHECK_FALSE(pair.receiver.done(first));
    CHECK(device == "----");
  }
}

TEST_CASE("a receive that is too small: what went eagerly goes again, cut to it") {
  Pair pair;
  std::string to(3, '-');
  std::string then(8, '-');
  const Sequence sequence = pair.send("too long");
  pair.send("next");
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  const GroupId group = pair.receiver.post(std::array{buffer(to)});
  const GroupId next = pair.receiver.post(std::array{buffer(then)});
  CHECK_FALSE(pair.receiver.done(group));
  CHECK(pair.receiver.done(next));
  pair.tell();
  CHECK(pair.sender.size(sequence) == 3U);
  CHECK(pair.carry(kPrimary) == Verdict::place);
  CHECK(pair.receiver.done(group));
  CHECK(to == "too");
  pair.tell();
  CHECK_FALSE(pair.sender.unacknowledged());
}

TEST_CASE("what is too long and still coming in does not bar its cut from another path") {
  Pair pair;
  std::string to(3, '-');
  pair.send("too long");
  const auto early = pair.sender.take(kPrimary);
  REQUIRE(early);
  const Placement kept = pair.receiver.begin(kPrimary, pair.epoch[kPrimary], early->header);
  REQUIRE(kept.verdict == Verdict::place);
  pair.sender.written(kPrimary);
  const GroupId group = pair.receiver.post(std::array{buffer(to)});
  pair.tell();
  CHECK(pair.carry(kOther) == Verdict::place);
  CHECK(pair.receiver.done(group));
  std::memcpy(kept.data, early->data, early->header.length);
  CHECK_FALSE(pair.receiver.finish(kPrimary));
  CHECK(to == "too");
}

TEST_CASE("a message that was said to be done is owed until it is acknowledged, come what may") {
  Pair pair;
  std::string to(8, '-');
  std::string other(8, '-');
  const Sequence sequence = pair.send("owed", 7);
  CHECK_FALSE(pair.sender.has_unacked_copies());
  CHECK(pair.carry(kPrimary) == Verdict::place);
  REQUIRE(pair.sender.done(sequence));
  CHECK(pair.sender.has_unacked_copies());
  SUBCASE("taken back, and no tag of the receive is its") {
    pair.receiver.post(std::array{buffer(to, 1), buffer(other, 2)});
    pair.tell();
    CHECK(pair.sender.done(sequence));
    CHECK(pair.sender.has_unacked_copies());
    pair.receiver.post(std::array{buffer(to, 7), buffer(other, 3)});
    pair.tell();
    CHECK(pair.sender.has_unacked_copies());
    CHECK(pair.carry(kOther) == Verdict::place);
    CHECK(pair.sender.has_unacked_copies());
    CHECK(to == "owed----");
  }
  SUBCASE("cut, because the receive is small") {
    to.resize(2);
    pair.receiver.post(std::array{buffer(to, 7)});
    pair.tell();
    CHECK(pair.sender.done(sequence));
    CHECK(pair.sender.has_unacked_copies());
    CHECK(pair.carry(kOther) == Verdict::place);
    CHECK(to == "ow");
  }
  pair.tell();
  CHECK_FALSE(pair.sender.has_unacked_copies());
}

TEST_CASE("a path dies with what went eagerly: it goes again, and counts once") {
  Pair pair;
  std::string to(8, '-');
  pair.send("kept");
  pair.send("lost");
  CHECK(pair.carry(kPrimary) == Verdict::place);
  REQUIRE(pair.sender.take(kPrimary));
  const Epoch fence = pair.sender.fail(kPrimary);
  pair.sender.quiesced(kPrimary);
  CHECK(pair.receiver.fence(kPrimary, fence));
  pair.receiver.retire(kPrimary);
  CHECK(pair.sender.on_fence_answer(kPrimary, fence, pair.receiver.state()) == 8);
  CHECK(pair.carry(kOther) == Verdict::duplicate);
  CHECK(pair.carry(kOther) == Verdict::place);
  for (const char* text : {"kept----", "lost----"}) {
    to.assign(8, '-');
    const GroupId group = pair.receiver.post(std::array{buffer(to)});
    CHECK(pair.receiver.done(group));
    CHECK(to == text);
  }
  // CTS and acknowledgements are lost, the groups forgotten: a state tells it all.
  pair.receiver.clear_output();
  pair.receiver.forget(0);
  pair.receiver.forget(1);
  pair.sender.on_state(pair.receiver.state());
  CHECK_FALSE(pair.sender.unacknowledged());
  CHECK_FALSE(pair.sender.awaits_cts());
}

TEST_CASE("no more is kept than the sender's budget") {
  Pair pair;
  ChunkHeader header{.length = 1024, .eager = true};
  header.message_size = header.length;
  header.group = kCopyMessages;
  CHECK(pair.receiver.begin(kPrimary, 1, header).verdict == Verdict::refuse);
  for (header.group = 0; header.group < kCopyBudget / header.length; ++header.group) {
    REQUIRE(pair.receiver.begin(kPrimary, 1, header).verdict == Verdict::place);
    pair.receiver.finish(kPrimary);
  }
  CHECK(pair.receiver.begin(kPrimary, 1, header).verdict == Verdict::refuse);
  header.group = 0;
  header.offset = kChunk;
  CHECK(pair.receiver.begin(kPrimary, 1, header).verdict == Verdict::refuse);
}

TEST_CASE("what one number tells of hundreds counts at once, though it is applied bit by bit") {
  Pair pair;
  std::array<std::string, 2 * kCopyMessages> into;
  const auto round_of = [&](std::size_t from) {
    for (std::size_t i = from; i < from + kCopyMessages; ++i) {
      into[i].resize(8);
      const std::array<Buffer, 1> buffers{buffer(into[i])};
      const GroupId group = pair.receiver.post(buffers);
      pair.send("message" + std::to_string(i % 10));
      REQUIRE(pair.carry(kPrimary) == Verdict::place);
      REQUIRE(pair.receiver.done(group));
      pair.receiver.forget(group);
    }
    CHECK(pair.sender.nearly_full());  // until the receiver speaks
    pair.tell();
  };
  round_of(0);
  CHECK_FALSE(pair.sender.nearly_full());
  round_of(kCopyMessages);  // all the room is there again
  CHECK(into.back() == "message" + std::to_string((into.size() - 1) % 10));
  CHECK_FALSE(pair.sender.unacknowledged());
  CHECK_FALSE(pair.sender.in_flight(kPrimary));
}

TEST_CASE("a CTS that comes with such a number serves a large message at once") {
  Pair pair;
  std::array<std::string, 100> into;
  for (std::string& text : into) {
    text.resize(8);
    const std::array<Buffer, 1> buffers{buffer(text)};
    const GroupId group = pair.receiver.post(buffers);
    pair.send("messages");
    REQUIRE(pair.carry(kPrimary) == Verdict::place);
    pair.receiver.forget(group);
  }
  std::string large(20'000, '.');
  const std::array<Buffer, 1> buffers{buffer(large)};
  const GroupId group = pair.receiver.post(buffers);
  const std::string later(20'000, 'x');
  SUBCASE("posted before it") {
    pair.send(later);
    CHECK_FALSE(pair.sender.has_chunk());
    pair.tell();
  }
  SUBCASE("posted after it") {
    pair.tell();
    pair.send(later);
  }
  CHECK(pair.sender.has_chunk());
  CHECK(pair.sender.busy());
  CHECK_FALSE(pair.receiver.done(group));
}

TEST_CASE("a number beyond what was sent says nothing of what is sent later") {
  Pair pair;
  pair.send("first");
  REQUIRE(pair.sender.take(kPrimary));
  pair.sender.written(kPrimary);
  pair.sender.on_state({~GroupId{0}, {}});
  pair.send("second");
  REQUIRE(pair.sender.take(kPrimary));
  pair.sender.written(kPrimary);
  CHECK(pair.sender.unacknowledged());
}
