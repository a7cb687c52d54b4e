// The whole plugin in one process, twice, over fake NICs: paths over verbs, over TCP, and from one
// to the other.
#include "verbs/tests/transport_kit.h"

using namespace fabric;
using namespace fabric::host::loopback;
using namespace fabric::verbs::test;
using verbs::fake::Call;

TEST_CASE("verbs transport: messages of a pair go by RDMA") {
  Wires wires(1);
  Pair pair = pair_of(1);
  const Outcome outcome = exchange(pair, milliseconds(200), 20);
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  CHECK(outcome.messages >= 20);
  CHECK(wires.landed() > 20);
}

TEST_CASE("verbs transport: a pair of which one has no verbs is TCP") {
  Wires wires(1);
  const host::Params off = Pair::usual();
  for (const bool sender_off : {true, false}) {
    Pair pair = pair_of(1, sender_off ? off : with_verbs(), sender_off ? with_verbs() : off);
    const Outcome outcome = exchange(pair, milliseconds(50), 10);
    CHECK(outcome.intact);
    CHECK(outcome.messages >= 10);
  }
  CHECK(wires.landed() == 0);
}

TEST_CASE("verbs transport: a rail that fails moves its load, and gets it back") {
  Wires wires(2);
  Pair pair = pair_of(2);
  REQUIRE(connected(*pair.a, 0));
  REQUIRE(connected(*pair.a, 1));
  CHECK(exchange(pair, milliseconds(50), 10).intact);
  wires.locked([&] { wires.nic("a0").cut = true; });
  Outcome outcome = exchange(pair, milliseconds(300), 20);
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  CHECK(moved(*pair.a, 1) != 0);
  wires.locked([&] { wires.nic("a0").cut = false; });
  outcome = exchange(pair, milliseconds(300), 20);
  CHECK(outcome.intact);
}

TEST_CASE("verbs transport: RDMA broken while IP works: the only rail is TCP for a while") {
  Wires wires(1);
  wires.nic("b0").cut = true;
  Pair pair = pair_of(1);
  Outcome outcome = exchange(pair, milliseconds(100), 10);
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
  CHECK(outcome.messages >= 10);
  CHECK(wires.landed() == 0);
  wires.locked([&] { wires.nic("b0").cut = false; });
  const auto until = Clock::now() + milliseconds(30'000);
  while (wires.landed() == 0 && Clock::now() < until) {  // tried again when nothing is under way
    CHECK(exchange(pair, milliseconds(20), 2).intact);
    std::this_thread::sleep_for(milliseconds(100));
  }
  CHECK(wires.landed() != 0);
}

TEST_CASE("verbs transport: a NIC that registers nothing leaves TCP") {
  Wires wires(1);
  wires.nic("a0").fail(Call::reg_mr, ENOMEM, 1'000'000);
  Pair pair = pair_of(1);
  const Outcome outcome = exchange(pair, milliseconds(50), 10);
  CHECK(outcome.intact);
  CHECK(outcome.messages >= 10);
  CHECK(wires.landed() == 0);
}

TEST_CASE("verbs transport: a device that is unplugged under load") {
  Wires wires(2);
  Pair pair = pair_of(2);
  REQUIRE(connected(*pair.a, 1));
  CHECK(exchange(pair, milliseconds(50), 10).intact);
  wires.locked([&] { wires.nic("b0").unplug(); });
  const Outcome outcome = exchange(pair, milliseconds(300), 20);
  CHECK(outcome.result == Result::success);
  CHECK(outcome.intact);
}

TEST_CASE("verbs transport: connections that die young make a path TCP, one that lasts forgives") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  verbs::PathHistory history;
  std::int64_t now = 100 * kSecond;
  for (std::uint32_t i = 0; i < verbs::PathHistory::kShortLives; ++i) {
    CHECK_FALSE(history.backs_off(now));
    history.lost_after(kSecond / 10, now);
  }
  CHECK(history.backs_off(now));
  now += verbs::PathHistory::kBackoffNs;
  CHECK_FALSE(history.backs_off(now));
  history.lost_after(kSecond / 10, now);  // again: twice as long
  CHECK(history.backs_off(now + verbs::PathHistory::kBackoffNs));
  now += 2 * verbs::PathHistory::kBackoffNs;
  CHECK_FALSE(history.backs_off(now));
  history.lost_after(5 * kSecond, now);
  CHECK_FALSE(history.backs_off(now));
  history.never_connected(now);
  CHECK_FALSE(history.backs_off(now));
  history.never_connected(now);
  CHECK(history.backs_off(now));
}

TEST_CASE("verbs transport: memory faults make a path TCP ever longer, and service forgives them") {
  using verbs::PathHistory;
  PathHistory history;
  std::int64_t now = 100 * PathHistory::kForgiveNs;
  for (int i = 0; i < 3; ++i) {
    history.memory_unknown(now);
  }
  CHECK(history.backs_off(now + 4 * PathHistory::kBackoffNs - 1));
  CHECK_FALSE(history.backs_off(now + 4 * PathHistory::kBackoffNs));
  history.lost_after(PathHistory::kForgiveNs - 1, now);  // not long enough
  history.memory_unknown(now);
  CHECK(history.backs_off(now + 8 * PathHistory::kBackoffNs - 1));
  history.lost_after(10 * PathHistory::kForgiveNs, now);
  CHECK_FALSE(history.backs_off(now));
  history.memory_unknown(now);
  CHECK(history.backs_off(now + PathHistory::kBackoffNs - 1));
  CHECK_FALSE(history.backs_off(now + PathHistory::kBackoffNs));
}

TEST_CASE("verbs transport: a peer's rail that refuses is asked seldomer the longer it does") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  verbs::Refusals refusals;
  const std::int64_t begin = 100 * kSecond;
  CHECK_FALSE(refusals.holds(begin));
  refusals.tries(begin);
  CHECK_FALSE(refusals.holds(begin));  // others may try as well
  refusals.again(begin);
  CHECK(refusals.holds(begin + verbs::Refusals::kLeastNs - 1));
  CHECK_FALSE(refusals.holds(begin + verbs::Refusals::kLeastNs));
  refusals.tries(begin + 80 * kSecond);
  CHECK(refusals.holds(begin + 89 * kSecond));  // one is under way
  CHECK_FALSE(refusals.holds(begin + 90 * kSecond));
  refusals.again(begin + 1000 * kSecond);
  CHECK(refusals.holds(begin + 1000 * kSecond + verbs::Refusals::kMostNs - 1));
  CHECK_FALSE(refusals.holds(begin + 1000 * kSecond + verbs::Refusals::kMostNs));
  refusals.over();
  CHECK_FALSE(refusals.holds(begin));
}

TEST_CASE("verbs transport: NCCL_IB_DISABLE=1 leaves TCP") {
  Wires wires(1);
  host::Params disabled = with_verbs();
  disabled.ib_disable = true;
  Pair pair = pair_of(1, disabled, with_verbs());
  const Outcome outcome = exchange(pair, milliseconds(50), 10);
  CHECK(outcome.intact);
  CHECK(outcome.messages >= 10);
  CHECK(wires.landed() == 0);
}
