// One Receiver without its control thread: the peer's close overtakes what lies in the kernel, and
// chunks come in any order, over two paths, in pieces of any length.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <vector>

#include "core/ordered_copy.h"
#include "rounds.h"
#include "tests/receiver_kit.h"

using namespace fabric;
using namespace fabric::host;
using fabric::host::loopback::contents;

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

TEST_CASE("what went eagerly is received after the peer has closed") {
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

namespace {

struct Piece {
  core::GroupId group;
  std::uint8_t slot;
  std::size_t number;
};

// How many behind the one `at` are the next of its message.
std::size_t following(const std::vector<Piece>& sent, std::size_t at) {
  std::size_t count = 0;
  while (at + count + 1 < sent.size() && sent[at + count + 1].group == sent[at].group &&
         sent[at + count + 1].slot == sent[at].slot &&
         sent[at + count + 1].number == sent[at].number + count + 1) {
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("chunks in any order, twice, over two paths and in pieces of any length are put right") {
  constexpr std::size_t kGroups = 3;
  constexpr std::size_t kSlots = 2;
  std::mt19937_64 random(20261125);
  for (int round = 0; round < fabric::testing::rounds(400); ++round) {
    CAPTURE(round);
    One one(kSmallChunk);
    std::array<Stream, 2> streams;
    streams[0].fd = std::move(one.peer);
    streams[1].fd = one.connect(kOther);
    // Few out of place, so that runs in order begin, break off and begin again.
    const std::uint64_t disorder = random() % 3 == 0 ? 0 : 1 + random() % 6;
    const bool shared = random() % 2 == 0;
    std::array<std::array<std::vector<std::byte>, kSlots>, kGroups> messages;
    std::array<std::array<std::vector<std::byte>, kSlots>, kGroups> buffers;
    std::vector<Piece> pieces;
    for (std::size_t g = 0; g < kGroups; ++g) {
      std::array<ReceiveSlot, kSlots> slots{};
      for (std::size_t s = 0; s < kSlots; ++s) {
        messages[g][s] = contents(9000 + random() % 80'000, random());
        buffers[g][s] = messages[g][s];
        std::ranges::transform(buffers[g][s], buffers[g][s].begin(), std::bit_not());
        buffers[g][s].resize(messages[g][s].size() + random() % 2);
        slots[s] = {buffers[g][s].data(), buffers[g][s].size(), static_cast<int>(s)};
        const std::size_t chunks = (messages[g][s].size() + kSmallChunk - 1) / kSmallChunk;
        for (std::size_t i = 0; i < chunks; ++i) {
          pieces.push_back({g, static_cast<std::uint8_t>(s), i});
        }
      }
      core::GroupId group = 0;
      REQUIRE(one.post(slots, group));
    }
    for (std::uint64_t i = 0; i < disorder; ++i) {
      std::swap(pieces[random() % pieces.size()], pieces[random() % pieces.size()]);
    }
    std::array<std::vector<Piece>, 2> sent;
    for (const Piece& p : pieces) {
      // Again only behind itself: elsewhere it would need a fence.
      const std::size_t times = disorder != 0 && random() % 16 == 0 ? 2 : 1;
      auto& on = sent[shared ? random() % 2 : 0];
      on.insert(on.end(), times, p);
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      for (std::size_t at = 0; at < sent[i].size(); ++at) {
        const Piece& p = sent[i][at];
        const std::size_t follow = std::min<std::size_t>(following(sent[i], at), random() % 16);
        streams[i].chunk(p.group, p.slot, messages[p.group][p.slot], p.number,
                         static_cast<std::uint8_t>(follow));
      }
    }
    // NCCL's LL and LL128 read the buffer while it fills: what belongs elsewhere must never be in
    // it. Before its byte comes, each is that byte's complement.
    const auto own_alone = [&] {
      for (std::size_t g = 0; g < kGroups; ++g) {
        for (std::size_t s = 0; s < kSlots; ++s) {
          unsigned strange = 0;
          for (std::size_t i = 0; i < messages[g][s].size(); ++i) {
            const auto differs =
                std::to_integer<std::uint8_t>(buffers[g][s][i] ^ messages[g][s][i]);
            strange |= static_cast<std::uint8_t>(differs + 1) & 0xfeU;  // 0 and 255: none
          }
          if (strange != 0) {
            return false;
          }
        }
      }
      return true;
    };
    std::array<bool, kGroups> done{};
    for (int turns = 0; turns < 100'000 && !(done[0] && done[1] && done[2]); ++turns) {
      streams[random() % 2].write(1 + random() % (random() % 2 == 0 ? 30'000 : 100));
      const std::size_t g = random() % kGroups;
      bool now = done[g];
      if (!done[g]) {
        REQUIRE(one.receiver->test(g, kSlots, now, nullptr) == Result::success);
        done[g] = now;
      }
      if (random() % 256 == 0) {
        REQUIRE(own_alone());
      }
    }
    for (std::size_t g = 0; g < kGroups; ++g) {
      REQUIRE(done[g]);
      for (std::size_t s = 0; s < kSlots; ++s) {
        buffers[g][s].resize(messages[g][s].size());
        CHECK(buffers[g][s] == messages[g][s]);
      }
    }
  }
}

TEST_CASE("a sender that breaks its promise of what follows loses its connection") {
  const std::vector<std::byte> message = contents(5 * kSmallChunk, 1);
  for (const std::size_t next : {2UL, 3UL, 0UL}) {
    CAPTURE(next);
    One one(kSmallChunk);
    std::vector<std::byte> buffer(message.size());
    const std::array slots{ReceiveSlot{buffer.data(), buffer.size(), 0}};
    core::GroupId group = 0;
    REQUIRE(one.post(slots, group));
    Stream stream{std::move(one.peer), {}};
    stream.chunk(group, 0, message, 0, 2);
    stream.chunk(group, 0, message, next);
    stream.write(stream.bytes.size());
    bool done = false;
    for (int turn = 0; turn < 10; ++turn) {
      CHECK(one.test(group, done) == Result::success);
      CHECK_FALSE(done);
    }
    std::array<std::byte, 4096> told;
    ssize_t count = 1;
    while (count > 0) {
      count = ::recv(stream.fd.get(), told.data(), told.size(), MSG_DONTWAIT);
    }
    CHECK(count == 0);
  }
}

TEST_CASE("a copy in order copies what memcpy does, at every alignment and length") {
  std::vector<std::byte> from(300);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(i * 7 + 1);
  }
  for (std::size_t at = 0; at < 9; ++at) {
    for (std::size_t source = 0; source < 9; ++source) {
      for (std::size_t size = 0; size < 280; size += size < 40 ? 1 : 13) {
        std::vector<std::byte> to(320);
        core::copy_in_order(to.data() + at, from.data() + source, size);
        std::vector<std::byte> want(320);
        std::copy_n(from.data() + source, size, want.data() + at);
        REQUIRE(to == want);
      }
    }
  }
}
