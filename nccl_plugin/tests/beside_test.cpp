// A one-sided connection beside a stream, whose place it takes: Sender and Receiver over links that
// the test plays.
#include <doctest/doctest.h>

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

constexpr std::uint32_t kCredits = 16;

// What a link is told to do, and did. It outlives the link.
struct Wire {
  bool one_sided = false;
  bool beside = false;     // is offered so
  bool connected = false;  // a one-sided one
  bool dead = false;
  bool quiet = true;  // nothing lands or is read any more, once it is asked to end
  bool alive = true;
  bool validated = false;
  bool in_service = false;
  bool abandoned = false;  // through no fault of its own
  std::optional<core::Liveness> judged;
  std::size_t takes = 1000;  // chunks
  std::vector<core::Outgoing> posted;
  std::vector<core::Landed> landing;
  core::Epoch epoch = 0;
};

class PlayedOut final : public IdleOut {
 public:
  explicit PlayedOut(Wire& wire) : wire_(wire) {}
  ~PlayedOut() override { wire_.alive = false; }
  [[nodiscard]] core::PathKind kind() const override {
    return wire_.one_sided && wire_.connected ? core::PathKind::one_sided : core::PathKind::stream;
  }
  [[nodiscard]] bool over_rdma() const override { return wire_.one_sided; }
  [[nodiscard]] std::size_t room() const override {
    return wire_.posted.size() < wire_.takes ? 1 : 0;
  }
  void put(std::span<const core::Outgoing> chunks, SendProgress& progress) override {
    wire_.posted.insert(wire_.posted.end(), chunks.begin(), chunks.end());
    progress.carried = true;
  }
  void poll(core::SendCore& core, SendProgress& progress) override {
    if (wire_.one_sided && wire_.connected && !told_) {
      told_ = true;
      core.one_sided(kPrimary, kCredits);
    }
    if (wire_.dead) {
      progress.dead = pages::PathDownReason::socket_error;
    }
  }
  void start_validation() override { wire_.validated = true; }
  void begin_service() override { wire_.in_service = true; }
  void abandon() override { wire_.abandoned = true; }
  std::optional<core::Liveness> judge(std::int64_t) override { return wire_.judged; }
  bool quiesce() override { return wire_.quiet; }

 private:
  Wire& wire_;
  bool told_ = false;
};

class PlayedIn final : public IdleIn {
 public:
  explicit PlayedIn(Wire& wire) : wire_(wire) {}
  ~PlayedIn() override { wire_.alive = false; }
  void prepare(ReceiveProgress& progress) override {
    if (wire_.dead) {
      progress.dead = pages::PathDownReason::socket_error;
    }
  }
  void poll(core::ReceiveCore& core, const ReceiveHints&, ReceiveProgress& progress) override {
    for (const core::Landed& landed : std::exchange(wire_.landing, {})) {
      const core::Landing landing = core.land(kPrimary, wire_.epoch, landed);
      progress.chunks += landing.verdict == core::Verdict::place ? 1U : 0U;
      progress.messages += landing.whole ? 1U : 0U;
    }
    if (wire_.dead) {
      progress.dead = pages::PathDownReason::socket_error;
    }
  }
  bool quiesce() override { return wire_.quiet; }

 private:
  Wire& wire_;
};

core::Cts cts_of(core::GroupId group, std::size_t size, std::uint32_t key) {
  core::Cts cts;
  cts.group = group;
  cts.count = 1;
  cts.slots[0].size = size;
  cts.slots[0].keys[0] = key;
  return cts;
}

struct Sending {
  Context context;
  Wire stream;
  Wire better;
  std::unique_ptr<Sender> sender;
  std::vector<std::byte> bytes = std::vector<std::byte>(100'000);
  std::int64_t now = monotonic_ns();

  Sending() {
    better.one_sided = true;
    context.rails.push_back({});
    context.wake_control = [] {};
    context.params.chunk_size = kChunk;
    sender = std::make_unique<Sender>(context, kId, kPrimary, "peer");
    const core::Epoch epoch = sender->dial(kPrimary, now);
    sender->attach(kPrimary, epoch, std::make_unique<PlayedOut>(stream), now);
    tick();
    CHECK(sender->streams() == 0);
    tick(2 * kStreamNs);
    REQUIRE(sender->streams() == core::bit(kPrimary));
    better.epoch = sender->dial_beside(kPrimary, now);
    REQUIRE(better.epoch > epoch);
    sender->attach(kPrimary, better.epoch, std::make_unique<PlayedOut>(better), now);
    tick();
    CHECK(sender->streams() == 0);
  }
  ControlActions tick(std::int64_t passed = kMs) {
    now += passed;
    return sender->tick(now, facts_now(), true).value();
  }
  // A message whose receive is known by `key` to the receiver's NIC.
  void send(core::GroupId group, std::uint32_t key) {
    core::ReceiverState state;
    state.groups.emplace_back().cts = cts_of(group, bytes.size(), key);
    sender->on_state({std::nullopt, state});
    bool taken = false;
    core::Sequence sequence = 0;
    REQUIRE(sender->post(bytes.data(), bytes.size(), 0, taken, sequence) == Result::success);
    REQUIRE(taken);
  }
};

struct Receiving {
  Context context;
  Wire stream;
  Wire better;
  std::unique_ptr<Receiver> receiver;
  std::vector<std::byte> bytes = std::vector<std::byte>(kChunk);
  core::GroupId group = 0;

  Receiving() {
    better.one_sided = true;
    better.beside = true;
    stream.epoch = 1;
    context.rails.push_back({});
    context.wake_control = [] {};
    receiver = std::make_unique<Receiver>(context, kId, kPrimary, kChunk, "peer");
    REQUIRE_FALSE(attach(stream, 1));
    const ReceiveSlot slot{bytes.data(), bytes.size(), 0};
    bool taken = false;
    REQUIRE(receiver->post({&slot, 1}, taken, group) == Result::success);
    REQUIRE_FALSE(attach(better, 2));
    tick();
  }
  std::optional<core::Epoch> attach(Wire& wire, core::Epoch epoch) {
    wire.epoch = epoch;
    const auto kind = wire.one_sided ? core::PathKind::one_sided : core::PathKind::stream;
    return receiver->attach(kPrimary, epoch, [&wire] { return std::make_unique<PlayedIn>(wire); },
                            kWireVersion, {kind, kCredits, wire.beside});
  }
  void tick() { receiver->tick(monotonic_ns(), facts_now(), true); }
  std::optional<StateFrame> fence(core::Epoch epoch) {
    return receiver->on_fence({kPrimary, epoch, 0});
  }
  bool done() {
    bool is = false;
    receiver->test(group, 1, is, nullptr);
    return is;
  }
};

const core::Landed kWhole{0, 0, 0, kChunk, true};

}  // namespace

TEST_CASE("beside a stream: nothing goes over a connection that has not proved itself") {
  Sending one;
  one.tick();
  one.send(0, 5);
  CHECK_FALSE(one.stream.posted.empty());
  CHECK(one.better.posted.empty());
  CHECK(one.tick().announce.empty());
  one.better.dead = true;
  one.tick();
  CHECK_FALSE(one.better.alive);
  CHECK(one.stream.alive);
  CHECK(one.sender->streams() == 0);  // not again at once
  one.tick(2 * kStreamNs);
  CHECK(one.sender->streams() == core::bit(kPrimary));
}

TEST_CASE("beside a stream: one that delivers nothing of its validation is given up at once") {
  Sending one;
  one.better.connected = true;
  one.better.takes = 0;
  one.tick();
  CHECK(one.better.validated);
  one.better.judged = core::Liveness::suspect;
  one.tick();
  CHECK(one.better.alive);
  one.better.judged = core::Liveness::dead;
  one.tick();
  CHECK_FALSE(one.better.alive);
  CHECK_FALSE(one.better.abandoned);  // it was its own fault
  CHECK_FALSE(one.better.in_service);
  CHECK(one.stream.alive);
}

TEST_CASE("beside a stream: the change-over fences the stream, and goes on at the next chunk") {
  Sending one;
  one.stream.takes = 1;
  one.send(0, 5);
  one.better.connected = true;
  one.tick();
  CHECK(one.better.validated);
  CHECK(one.stream.alive);
  const ControlActions actions = one.tick();
  CHECK_FALSE(one.stream.alive);
  CHECK(one.better.in_service);
  REQUIRE(actions.announce.size() == 1);
  CHECK(actions.announce[0].epoch == one.better.epoch);
  REQUIRE_FALSE(one.better.posted.empty());
  CHECK(one.better.posted[0].key == 5);
  CHECK(one.better.posted[0].header.offset == kChunk);  // the stream's goes again when it is fenced
  one.sender->on_state({PathEpoch{kPrimary, one.better.epoch, 0}, {}});
  one.sender->cancel();
}

TEST_CASE("beside a stream: it stays while a CTS names memory that the other NIC does not know") {
  Sending one;
  one.send(0, 0);
  one.better.connected = true;
  for (int i = 0; i < 5; ++i) {
    CHECK(one.tick().announce.empty());
  }
  CHECK(one.stream.alive);
  core::ReceiverState whole;
  whole.done_below = 1;
  for (int i = 0; i < 100; ++i) {  // the stream has carried it all
    one.tick();
  }
  one.sender->on_state({std::nullopt, whole});
  one.tick();
  CHECK_FALSE(one.stream.alive);
  one.sender->cancel();
}

TEST_CASE(
    "beside a stream: a death of the stream gives the other up, and its welcome is too late") {
  Sending one;
  one.stream.dead = true;
  one.sender->hangup(kPrimary, 1);
  CHECK_FALSE(one.stream.alive);
  CHECK_FALSE(one.better.alive);
  CHECK(one.better.abandoned);
  Wire late;
  late.one_sided = true;
  one.sender->attach(kPrimary, one.better.epoch, std::make_unique<PlayedOut>(late), one.now);
  CHECK_FALSE(late.alive);
}

TEST_CASE("beside a stream: the receiver's waits for the fence, and what landed before it counts") {
  Receiving one;
  one.better.landing = {kWhole};
  CHECK_FALSE(one.done());  // nobody knows of it yet
  CHECK(one.stream.alive);
  const auto answer = one.fence(2);
  REQUIRE(answer);
  CHECK_FALSE(one.stream.alive);
  CHECK(one.better.alive);
  CHECK(one.done());
  one.better.quiet = false;  // it is as any other from here on
  CHECK_FALSE(one.fence(3));
}

TEST_CASE("beside a stream: given up, it may still land, and until then no fence is answered") {
  for (const bool hung_up : {true, false}) {
    Receiving one;
    one.better.quiet = false;
    if (hung_up) {
      one.receiver->hangup(kPrimary, 2);
    }
    CHECK_FALSE(one.fence(3));
    CHECK_FALSE(one.stream.alive);
    one.better.landing = {kWhole};  // of a sender that had changed over: it sends that again
    one.tick();
    CHECK_FALSE(one.done());
    Wire next;
    next.one_sided = true;
    next.beside = true;
    CHECK(one.attach(next, 4));
    CHECK_FALSE(one.fence(3));
    one.better.quiet = true;
    one.tick();
    CHECK_FALSE(one.better.alive);
    const auto answer = one.fence(3);
    REQUIRE(answer);
    CHECK(answer->state.done_below == 0);
    CHECK_FALSE(one.attach(next, 4));
  }
}

TEST_CASE("beside a stream: one that is not offered beside it ends the stream at once") {
  Receiving one;
  Wire next;
  next.one_sided = true;
  CHECK_FALSE(one.attach(next, 3));
  CHECK_FALSE(one.stream.alive);
  CHECK_FALSE(one.better.alive);
  CHECK(next.alive);
  next.landing = {kWhole};
  CHECK(one.done());
}

TEST_CASE("beside a stream: a stream that dies by itself leaves its place at once") {
  Receiving one;
  one.stream.dead = true;
  CHECK_FALSE(one.done());
  CHECK_FALSE(one.stream.alive);
  one.better.landing = {kWhole};
  CHECK(one.done());
}

TEST_CASE("beside a stream: a close waits for what may land on its behalf") {
  Receiving one;
  one.better.quiet = false;
  std::int64_t asked = 0;
  one.receiver->abort(Result::remote_error, "over");
  for (; asked < 3; ++asked) {
    one.tick();
    CHECK_FALSE(one.receiver->closed());
  }
  one.better.quiet = true;
  one.receiver->close();
  CHECK(one.receiver->closed());
  CHECK_FALSE(one.better.alive);
}
