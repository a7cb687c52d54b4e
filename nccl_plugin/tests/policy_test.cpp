// Where traffic goes, over real sockets: striping, standby rails, validation of a path that
// returns.
#include <algorithm>
#include <array>

#include "tests/loopback_pair.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

TEST_CASE("striping: one comm over all rails, and over those that are left") {
  Params params = Pair::usual();
  params.stripe = true;
  Pair pair(3, params);
  REQUIRE(connected(*pair.a, 2));
  CHECK(exchange(pair, milliseconds(200), 60).intact);
  const std::uint64_t most = std::max({moved(*pair.a, 0), moved(*pair.a, 1), moved(*pair.a, 2)});
  for (std::size_t rail = 0; rail < 3; ++rail) {
    CHECK(moved(*pair.a, rail) > most / 2);
  }
}

// In one order they would all take the first path, then all the second.
TEST_CASE("striping: comms that run in step send their next chunks over different rails") {
  constexpr std::size_t kRails = 3;
  Params params = Pair::usual();
  params.stripe = true;
  Pair pair(kRails, params);
  std::array<SendComm*, kRails> sends{pair.send};
  std::array<RecvComm*, kRails> receives{pair.receive};
  const auto until = Clock::now() + milliseconds(120'000);
  for (std::size_t i = 1; i < kRails; ++i) {
    std::array<std::byte, kHandleSize> handle{};
    ListenComm* listener = nullptr;
    REQUIRE(pair.b->listen(0, handle, &listener) == Result::success);
    REQUIRE(pair.a->connect(0, handle, 0, &sends[i]) == Result::success);
    while (receives[i] == nullptr && Clock::now() < until) {
      REQUIRE(pair.b->accept(listener, &receives[i]) == Result::success);
      pair.b->wait(1000);
    }
    REQUIRE(receives[i] != nullptr);
    REQUIRE(pair.b->close(listener) == Result::success);
  }
  const std::vector<std::byte> bytes = contents(params.chunk_size, 1);
  std::array<std::vector<std::byte>, kRails> buffers;
  buffers.fill(std::vector<std::byte>(bytes.size()));
  const auto finished = [&](Net& net, Request*& request) {
    bool done = request == nullptr;
    if (!done) {
      REQUIRE(net.test(request, &done, nullptr) == Result::success);
      request = done ? nullptr : request;
    }
    return done;
  };
  const auto spread = [&] {
    std::array<std::uint64_t, kRails> before{};
    for (std::size_t rail = 0; rail < kRails; ++rail) {
      before[rail] = moved(*pair.a, rail);
    }
    std::array<Request*, kRails> coming{};
    std::array<Request*, kRails> going{};
    for (std::size_t i = 0; i < kRails; ++i) {
      const ReceiveSlot slot{buffers[i].data(), buffers[i].size(), 0};
      coming[i] = post(*pair.b, receives[i], {&slot, 1});
      going[i] = post(*pair.a, sends[i], bytes);
    }
    for (bool done = false; !done;) {  // both ends are driven: a chunk may wait for its turn
      REQUIRE(Clock::now() < until);
      done = true;
      for (std::size_t i = 0; i < kRails; ++i) {
        done = finished(*pair.b, coming[i]) && done;
        done = finished(*pair.a, going[i]) && done;
      }
      pair.b->wait(done ? 0 : 1000);
    }
    bool even = true;
    for (std::size_t rail = 0; rail < kRails; ++rail) {
      even = even && moved(*pair.a, rail) - before[rail] == bytes.size();
    }
    return even;
  };
  // Which comm begins where is known some ticks after the paths are there.
  int rounds = 0;
  while (rounds < 10 && Clock::now() < until) {
    rounds = spread() ? rounds + 1 : 0;
  }
  CHECK(rounds == 10);
  for (std::size_t i = 1; i < kRails; ++i) {
    CHECK(pair.a->close(sends[i]) == Result::success);
    CHECK(pair.b->close(receives[i]) == Result::success);
  }
}

TEST_CASE("FABRIC_STANDBY: standby rails move behind the others") {
  std::vector<Rail> rails(3);
  for (std::size_t i = 0; i < 3; ++i) {
    rails[i].name = "n" + std::to_string(i);
  }
  std::array<std::uint8_t, core::kMaxRails> backup_of{};
  std::size_t shown = 0;
  CHECK(set_standby("n0/n1", rails, backup_of, shown).empty());
  CHECK(shown == 2);
  CHECK(rails[0].name == "n0");
  CHECK(rails[1].name == "n2");
  CHECK(rails[2].name == "n1");
  CHECK(backup_of[2] == 0);
  CHECK(backup_of[0] == core::kBackupOfNone);
  for (const char* bad : {"n0", "n0/n9", "n0/n0", "/", "n0/", "n0/n1,n1/n2", "n0/n1,n2/n0"}) {
    CHECK_FALSE(set_standby(bad, rails, backup_of, shown).empty());
  }
  CHECK(set_standby("", rails, backup_of, shown).empty());
  CHECK(shown == 3);
}

TEST_CASE("a path that came back is tried before it is trusted") {
  Pair pair(2);
  REQUIRE(connected(*pair.a, 1));
  CHECK(exchange(pair, milliseconds(50), 5).intact);
  CHECK(kill_connections("127.0.10.1") > 0);
  const auto until = Clock::now() + milliseconds(10'000);
  const std::uint64_t before = moved(*pair.a, 0);
  while (moved(*pair.a, 0) == before && Clock::now() < until) {
    CHECK(exchange(pair, milliseconds(50), 5).intact);
  }
  CHECK(moved(*pair.a, 0) > before);
  CHECK(stats_of(*pair.a).rails[0].rejoins > 0);
  CHECK(stats_of(*pair.a).rails[0].validations > 0);
  CHECK(stats_of(*pair.a).errors == 0);
  // The validation is nobody's payload.
  CHECK(stats_of(*pair.b).rails[0].duplicate_bytes == 0);
}
