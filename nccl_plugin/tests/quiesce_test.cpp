// Sender and Receiver over links that let go of memory only later, as a NIC does whose queue pair
// still has to be flushed. TCP's links let go at once.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "host/monotonic.h"
#include "host/receiver.h"
#include "host/sender.h"
#include "tests/link_kit.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::test;

namespace {

// What the NIC of a link does, seen from the test. It outlives the link.
struct Nic {
  bool flush() { return flushed = flushed || (flushes_after != 0 && ++asked > flushes_after); }

  bool flushed = false;
  int asked = 0;          // for that
  int flushes_after = 0;  // so many questions; 0: when the test says so
  bool dead = false;
  int closes = 0;
  std::vector<core::Outgoing> posted;
  std::vector<core::ChunkHeader> landing;  // at the receiver: by the next poll()
  std::vector<core::Cts> answered;         // at the sender: by the next poll()
};

class LateLinkOut final : public IdleOut {
 public:
  explicit LateLinkOut(Nic& nic) : nic_(nic) {}
  [[nodiscard]] std::size_t room() const override { return 1; }
  void put(std::span<const core::Outgoing> chunks, SendProgress& progress) override {
    nic_.posted.insert(nic_.posted.end(), chunks.begin(), chunks.end());
    progress.carried = true;
  }
  void poll(core::SendCore& core, SendProgress& progress) override {
    for (const core::Cts& cts : std::exchange(nic_.answered, {})) {
      core.on_cts(cts);
    }
    if (nic_.dead) {
      progress.dead = pages::PathDownReason::socket_error;
    }
  }
  void close() override { ++nic_.closes; }
  bool quiesce() override { return nic_.flush(); }
  [[nodiscard]] std::string why() const override { return "RETRY_EXC"; }

 private:
  Nic& nic_;
};

class LateLinkIn final : public IdleIn {
 public:
  explicit LateLinkIn(Nic& nic) : nic_(nic) {}
  void poll(core::ReceiveCore& core, const ReceiveHints&, ReceiveProgress& progress) override {
    for (const core::ChunkHeader& header : std::exchange(nic_.landing, {})) {
      if (core.begin(kPrimary, 1, header).verdict == core::Verdict::place) {
        progress.messages += core.finish(kPrimary) ? 1U : 0U;
        progress.carried = true;
        ++progress.chunks;
      }
    }
    if (nic_.dead) {
      progress.dead = pages::PathDownReason::socket_error;
    }
  }
  bool send_state(const core::ReceiverState&, ReceiveProgress&) override { return false; }
  void close(const core::ReceiverState&) override { ++nic_.closes; }
  bool quiesce() override { return nic_.flush(); }

 private:
  Nic& nic_;
};

struct Sending {
  Context context;
  Nic nic;
  std::unique_ptr<Sender> sender;
  std::vector<std::byte> bytes = std::vector<std::byte>(100'000);
  core::Sequence sequence = 0;

  Sending() {
    context.rails.push_back({});
    context.wake_control = [] {};
    context.params.chunk_size = kChunk;
    sender = std::make_unique<Sender>(context, kId, kPrimary, "peer");
    const core::Epoch epoch = sender->dial(kPrimary, 1);
    sender->attach(kPrimary, epoch, std::make_unique<LateLinkOut>(nic), 2);
    tick(2);
  }
  ControlActions tick(std::int64_t now) const {
    return sender->tick(now, facts_now(), true).value();
  }
  bool done() {
    bool is = false;
    std::size_t size = 0;
    sender->test(sequence, is, size);
    return is;
  }
  // One message, of which the NIC has begun to read a chunk.
  void send() {
    bool taken = false;
    REQUIRE(sender->post(bytes.data(), bytes.size(), 0, taken, sequence) == Result::success);
    REQUIRE(taken);
    core::Cts cts;
    cts.count = 1;
    cts.slots[0].size = bytes.size();
    nic.answered.push_back(cts);
    CHECK_FALSE(done());
    REQUIRE_FALSE(nic.posted.empty());
  }
};

struct Receiving {
  Context context;
  Nic nic;
  std::unique_ptr<Receiver> receiver;
  std::vector<std::byte> bytes = std::vector<std::byte>(kChunk);
  core::GroupId group = 0;

  Receiving() {
    context.rails.push_back({});
    context.wake_control = [] {};
    receiver = std::make_unique<Receiver>(context, kId, kPrimary, kChunk, "peer");
    REQUIRE_FALSE(attach(1));
    tick(2);
    const ReceiveSlot slot{bytes.data(), bytes.size(), 0};
    bool taken = false;
    REQUIRE(receiver->post({&slot, 1}, taken, group) == Result::success);
    REQUIRE(taken);
  }
  std::optional<core::Epoch> attach(core::Epoch epoch) {
    return receiver->attach(
        kPrimary, epoch, [this] { return std::make_unique<LateLinkIn>(nic); }, kWireVersion);
  }
  ControlActions tick(std::int64_t now) const {
    return receiver->tick(now, facts_now(), true).value();
  }
  void lands() {
    core::ChunkHeader header;
    header.group = group;
    header.message_size = bytes.size();
    header.length = kChunk;
    nic.landing.push_back(header);
  }
  bool done() {
    bool is = false;
    receiver->test(group, 1, is, nullptr);
    return is;
  }
};

}  // namespace

TEST_CASE("a path is dialled again once the NIC has let go of the old connection") {
  Sending one;
  one.send();
  one.nic.dead = true;
  CHECK_FALSE(one.done());
  const std::int64_t later = monotonic_ns() + 60'000 * kMs;
  const ControlActions before = one.tick(later);
  CHECK(before.dial == 0);
  CHECK(before.announce.size() == 1);  // the fence does not wait for our own NIC
  CHECK(one.sender->dial(kPrimary, later) == 0);
  one.nic.flushed = true;
  CHECK(one.tick(later + kMs).dial == core::bit(kPrimary));
  CHECK(one.sender->dial(kPrimary, later) != 0);
}

TEST_CASE("a message is not done while a NIC reads it, though it is acknowledged by then") {
  Sending one;
  one.send();
  one.nic.dead = true;
  CHECK_FALSE(one.done());
  StateFrame answer{PathEpoch{kPrimary, 2, 0}, {}};
  answer.state.done_below = 1;  // all of it had arrived
  one.sender->on_state(answer);
  CHECK_FALSE(one.done());
  one.nic.flushed = true;
  one.tick(monotonic_ns());
  CHECK(one.done());
}

TEST_CASE("a sender's close returns when no NIC reads any more") {
  Sending one;
  one.send();
  one.nic.flushes_after = 3;
  one.sender->cancel();
  CHECK(one.sender->closed());
  CHECK(one.nic.flushed);
  CHECK(one.nic.closes == 1);
}

TEST_CASE("a receiver's close returns when nothing can land in a posted buffer any more") {
  Receiving one;
  one.nic.flushes_after = 3;
  one.receiver->close();
  CHECK(one.receiver->closed());
  CHECK(one.nic.flushed);
  CHECK(one.nic.closes == 1);
}

TEST_CASE("a fence is answered when nothing can land any more, and what landed counts") {
  Receiving one;
  const PathEpoch fence{kPrimary, 2, 0};
  CHECK_FALSE(one.receiver->on_fence(fence));
  CHECK_FALSE(one.receiver->on_fence(fence));
  const std::int64_t now = monotonic_ns();
  CHECK(one.tick(now).announce.empty());
  const auto floor = one.attach(2);
  REQUIRE(floor);  // the old link may still write where the new one would
  one.lands();
  one.tick(now + kMs);
  CHECK(one.done());
  CHECK_FALSE(one.receiver->on_fence(fence));
  one.nic.flushed = true;
  one.tick(now + 2 * kMs);
  const auto answer = one.receiver->on_fence(fence);
  REQUIRE(answer);
  CHECK(answer->state.done_below == 1);
  CHECK_FALSE(one.attach(2));
}

TEST_CASE("a path that the receiver gives up is announced when nothing can land any more") {
  Receiving one;
  one.nic.dead = true;
  CHECK_FALSE(one.done());
  const std::int64_t now = monotonic_ns();
  CHECK(one.tick(now).announce.empty());
  one.nic.dead = false;
  one.nic.flushed = true;
  const ControlActions actions = one.tick(now + kMs);
  REQUIRE(actions.announce.size() == 1);
  CHECK(actions.announce[0].epoch == 2);
}

TEST_CASE("a link without room for a whole state has the control links say it") {
  Receiving one;
  one.nic.dead = one.nic.flushed = true;
  CHECK_FALSE(one.done());  // what was said on it may be lost: the state is owed
  one.nic.dead = false;
  REQUIRE_FALSE(one.attach(2));
  const std::int64_t now = monotonic_ns();
  CHECK(one.tick(now).say_state);
  CHECK_FALSE(one.tick(now + kMs).say_state);
}
