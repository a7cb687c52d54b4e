// One Sender without its control thread, at the other end of a socket that says what no Receiver
// would.
#include "host/sender.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "host/monotonic.h"
#include "tcp/link_out.h"

using namespace fabric;
using namespace fabric::host;

namespace {

constexpr core::PathIndex kPrimary = core::path_index(0, 0);
constexpr std::uint64_t kId = 7;

std::unique_ptr<LinkOut> link(Fd fd, core::PathIndex path, core::Epoch epoch,
                              std::uint64_t id = kId) {
  return std::make_unique<tcp::TcpLinkOut>(std::move(fd), LinkSetup{id, path, epoch, 0, 0},
                                           kWireVersion);
}

struct One {
  Context context;
  std::unique_ptr<Sender> sender;
  Fd peer;  // the far end of the connection
  Fd near;
  core::Epoch epoch = 0;

  One() {
    context.rails.push_back({});
    context.wake_control = [] {};
    sender = std::make_unique<Sender>(context, kId, kPrimary, "peer");
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
    near = Fd(pair[0]);
    peer = Fd(pair[1]);
    epoch = sender->dial(kPrimary, 1);
    REQUIRE(epoch != 0);
  }
  void attach() { sender->attach(kPrimary, epoch, link(std::move(near), kPrimary, epoch), 2); }
  void post(std::size_t size) {
    const std::vector<std::byte> bytes(size);
    bool taken = false;
    core::Sequence sequence = 0;
    CHECK(sender->post(bytes.data(), bytes.size(), 0, taken, sequence) == Result::success);
    CHECK(taken);  // no CTS yet: its bytes are not looked at
  }
  void says(const Bytes& frames) const {
    REQUIRE(::send(peer.get(), frames.data(), frames.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(frames.size()));
  }
  // Has the sender let go of the connection?
  [[nodiscard]] bool hung_up() const {
    std::array<std::byte, 4096> aside{};
    ssize_t got = 0;
    while ((got = ::recv(peer.get(), aside.data(), aside.size(), MSG_DONTWAIT)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }
};

}  // namespace

TEST_CASE("a connection that comes up after the close is let go") {
  One one;
  one.sender->close();
  CHECK_FALSE(one.hung_up());
  one.attach();
  CHECK(one.hung_up());
}

TEST_CASE("a connection that comes up after an abort is let go") {
  One one;
  one.sender->abort(Result::remote_error, "a test");
  one.attach();
  CHECK(one.hung_up());
}

TEST_CASE("a close with sends pending and garbage behind it is an error, no more") {
  One one;
  one.attach();
  one.post(100'000);
  Bytes frames;
  append_frame(frames, FrameType::close, kId);
  frames.insert(frames.end(), 64, std::byte{0xff});
  one.says(frames);
  CHECK_NOTHROW(one.sender->hangup(kPrimary, one.epoch));
  CHECK(one.hung_up());
  bool done = false;
  std::size_t size = 0;
  CHECK(one.sender->test(0, done, size) == Result::remote_error);
}

TEST_CASE("a receiver that sends payload is cut off before its body is kept") {
  for (const FrameType type : {FrameType::chunk, FrameType::eager, FrameType::path_validation}) {
    One one;
    one.attach();
    one.post(100'000);
    Bytes frames;
    append_frame(frames, type, kId);
    const std::uint32_t length = type == FrameType::path_validation ? 1U << 16U : 0xffffffffU;
    std::memcpy(frames.data() + 4, &length, sizeof length);
    one.says(frames);
    bool done = false;
    std::size_t size = 0;
    CHECK(one.sender->test(0, done, size) == Result::success);  // there may be other paths
    CHECK(one.hung_up());
  }
}

TEST_CASE("where nothing carries any more, only the first comm to close waits for its messages") {
  Context context;
  context.rails.push_back({});
  context.wake_control = [] {};
  context.close_budget_ns = 200 * kMs;
  std::vector<std::unique_ptr<Sender>> senders;
  PeerFacts facts;
  facts.version = kWireVersion;
  facts.base = facts.control_live = core::bit(kPrimary);
  facts.weight.fill(core::kFullWeight);
  for (std::uint64_t id = 0; id < 3; ++id) {
    Sender& sender = *senders.emplace_back(std::make_unique<Sender>(context, id, kPrimary, "peer"));
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
    const core::Epoch epoch = sender.dial(kPrimary, 1);
    sender.attach(kPrimary, epoch, link(Fd(pair[0]), kPrimary, epoch, id), 2);
    REQUIRE(sender.tick(monotonic_ns(), facts, true));
    bool taken = false;
    bool done = false;
    core::Sequence sequence = 0;
    std::size_t size = 0;
    const std::array<std::byte, 8> bytes{};
    REQUIRE(sender.post(bytes.data(), bytes.size(), 0, taken, sequence) == Result::success);
    REQUIRE(taken);
    REQUIRE(sender.test(sequence, done, size) == Result::success);
    REQUIRE(done);  // and the receiver has not said that it has it
    ::close(pair[1]);
    sender.hangup(kPrimary, epoch);
  }
  const auto closing = [&](std::size_t i) {
    const std::int64_t start = monotonic_ns();
    senders[i]->close();
    return monotonic_ns() - start;
  };
  CHECK(closing(0) >= context.close_budget_ns);
  CHECK(closing(1) + closing(2) < context.close_budget_ns / 2);
}

TEST_CASE("what was acknowledged while the caller did not look is no stall") {
  One one;
  one.attach();
  PeerFacts facts;
  facts.version = kWireVersion;
  facts.base = facts.control_live = core::bit(kPrimary);
  facts.weight.fill(core::kFullWeight);
  const std::int64_t begun = monotonic_ns();
  REQUIRE(one.sender->tick(begun, facts, true));
  Bytes frames;
  core::Cts cts;
  cts.count = 1;
  cts.slots[0].size = 8;
  append_cts(frames, kId, cts);
  one.says(frames);
  bool taken = false;
  bool done = false;
  core::Sequence sequence = 0;
  std::size_t size = 0;
  const std::array<std::byte, 8> bytes{};
  REQUIRE(one.sender->post(bytes.data(), bytes.size(), 0, taken, sequence) == Result::success);
  REQUIRE(one.sender->test(sequence, done, size) == Result::success);
  REQUIRE(done);  // it is copied: the caller need not come back for it
  REQUIRE(one.sender->tick(begun + kMs, facts, true));
  std::uint64_t expected = 1;
  SUBCASE("not acknowledged") {}
  SUBCASE("acknowledged") {
    Bytes answer;
    append_acknowledge(answer, kId, cts.group, 0);
    one.says(answer);
    expected = 0;
  }
  REQUIRE(one.sender->tick(begun + 3 * kStallCountNs, facts, true));
  CHECK(one.context.stats.rails[core::sender_rail(kPrimary)].stalls.load() == expected);
}

TEST_CASE("a connection that fails its path validation is told, and its path rests while held") {
  constexpr core::PathIndex kSecond = core::path_index(1, 1);
  Context context;
  context.rails.push_back({});
  context.rails.push_back({});
  context.wake_control = [] {};
  Sender sender(context, kId, kPrimary, "peer");
  PeerFacts facts;
  facts.version = kWireVersion;
  facts.base = facts.control_live = core::bit(kPrimary) | core::bit(kSecond);
  facts.weight.fill(core::kFullWeight);
  std::int64_t now = monotonic_ns();
  const auto tick = [&] {
    now += 10'000 * kMs;  // past every backoff of its own
    const auto actions = sender.tick(now, facts, true);
    REQUIRE(actions);
    return *actions;
  };
  const auto connect = [&](core::PathIndex path) {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
    const core::Epoch epoch = sender.dial(path, now);
    REQUIRE(epoch != 0);
    sender.attach(path, epoch, link(Fd(pair[0]), path, epoch), now);
    return std::pair(epoch, Fd(pair[1]));
  };
  const auto lose = [&](core::PathIndex path, std::pair<core::Epoch, Fd>& connection) {
    connection.second.reset();
    sender.hangup(path, connection.first);
  };
  auto primary = connect(kPrimary);
  auto second = connect(kSecond);
  lose(kSecond, second);
  ControlActions actions = tick();
  CHECK(actions.validations.empty());  // the first connection of a path has nothing to prove
  CHECK((actions.dial & core::bit(kSecond)) != 0);
  second = connect(kSecond);
  lose(kSecond, second);
  facts.held = core::bit(kSecond);
  actions = tick();
  REQUIRE(actions.validations.size() == 1);
  CHECK(actions.validations[0].path == kSecond);
  CHECK_FALSE(actions.validations[0].succeeded);
  CHECK((actions.dial & core::bit(kSecond)) == 0);
  facts.held = 0;
  actions = tick();
  CHECK(actions.validations.empty());  // said once
  CHECK((actions.dial & core::bit(kSecond)) != 0);
  facts.held = core::bit(kSecond);
  lose(kPrimary, primary);
  CHECK((tick().dial & core::bit(kSecond)) != 0);  // there is nothing else
}
