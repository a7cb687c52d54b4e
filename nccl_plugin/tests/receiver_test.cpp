// One Receiver without its control thread: the peer's close overtakes what lies in the kernel.
#include "tcp/receiver.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/loopback_pair.h"

using namespace fabric;
using namespace fabric::tcp;
using fabric::tcp::loopback::contents;

namespace {

constexpr core::PathIndex kHome = core::path_index(0, 0);
constexpr std::uint64_t kId = 7;
constexpr std::uint32_t kChunk = 128 * 1024;

struct One {
  Context context;
  std::unique_ptr<Receiver> receiver;
  Fd peer;

  One() {
    context.rails.push_back({});
    context.wake_control = [] {};
    receiver = std::make_unique<Receiver>(context, kId, kHome, kChunk, "peer");
    PeerFacts facts;
    facts.version = 2;
    receiver->tick(1, facts, true);
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
    Fd near(pair[0]);
    peer = Fd(pair[1]);
    const std::array<std::byte, 1> welcome{};
    REQUIRE_FALSE(receiver->attach(kHome, 1, near, welcome, 2));
  }
  void says(std::span<const std::byte> bytes) const {
    REQUIRE(::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void sends(core::GroupId group, std::uint8_t slot, const std::vector<std::byte>& bytes,
             bool ahead = false) const {
    core::ChunkHeader header;
    header.group = group;
    header.slot = slot;
    header.message_size = bytes.size();
    header.length = static_cast<std::uint32_t>(bytes.size());
    header.ahead = ahead;
    says(encode_chunk(kId, header));
    says(bytes);
  }
  void closes() {
    Bytes frame;
    append_frame(frame, FrameType::close, kId);
    says(frame);
    peer.reset();
  }
  bool post(std::span<const ReceiveSlot> slots, core::GroupId& group) const {
    bool taken = false;
    return receiver->post(slots, taken, group) == Result::success && taken;
  }
  Result test(core::GroupId group, bool& done) const {
    done = false;
    return receiver->test(group, 1, done, nullptr);
  }
};

}  // namespace

TEST_CASE("a close over the control link overtakes large messages: they are received whole") {
  One one;
  std::array<std::vector<std::byte>, 3> buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].resize(60'000);
    const ReceiveSlot slot{buffers[i].data(), buffers[i].size(), 0};
    core::GroupId group = 0;
    REQUIRE(one.post({&slot, 1}, group));
    REQUIRE(group == i);
  }
  one.sends(0, 0, contents(60'000, 0));
  one.sends(1, 0, contents(60'000, 1));
  one.receiver->on_peer_close();
  bool done = false;
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(one.test(i, done) == Result::success);
    CHECK(done);
    CHECK(buffers[i] == contents(60'000, i));
  }
  // The connection has not ended: the third may be on its way.
  CHECK(one.test(2, done) == Result::success);
  CHECK_FALSE(done);
  one.closes();
  CHECK(one.test(2, done) == Result::remote_error);
}

TEST_CASE("a close overtakes a group of eight: none of them is lost") {
  One one;
  std::array<std::vector<std::byte>, 8> buffers;
  std::array<ReceiveSlot, 8> slots{};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    buffers[i].resize(64);
    slots[i] = {buffers[i].data(), buffers[i].size(), static_cast<int>(i)};
  }
  core::GroupId group = 0;
  REQUIRE(one.post(slots, group));
  for (std::uint8_t i = 0; i < slots.size(); ++i) {
    one.sends(group, i, contents(64, i));
  }
  one.closes();
  one.receiver->on_peer_close();
  bool done = false;
  CHECK(one.test(group, done) == Result::success);
  CHECK(done);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    CHECK(buffers[i] == contents(64, i));
  }
}

TEST_CASE("what went ahead is received after the peer has closed") {
  One one;
  for (core::GroupId group = 0; group < 2; ++group) {
    one.sends(group, 0, contents(64, group), true);
  }
  one.closes();
  one.receiver->on_peer_close();
  std::vector<std::byte> buffer(64);
  const ReceiveSlot slot{buffer.data(), buffer.size(), 0};
  bool done = false;
  core::GroupId group = 0;
  for (std::uint64_t i = 0; i < 2; ++i) {
    REQUIRE(one.post({&slot, 1}, group));
    CHECK(one.test(group, done) == Result::success);
    CHECK(done);
    CHECK(buffer == contents(64, i));
  }
  REQUIRE(one.post({&slot, 1}, group));
  CHECK(one.test(group, done) == Result::remote_error);
}
