// Two plugins on fake NICs beside a daemon that takes RDMA or IP from a rail, and gives it back.
#include "verbs/tests/steer_daemon.h"

using namespace fabric;
using namespace fabric::host::loopback;
using namespace fabric::verbs::test;

namespace {

// Sends until a whole exchange went by RDMA alone (`rdma`), or without it. False: it never did.
bool carried_by(Pair& pair, Wires& wires, SteerDaemon& daemon, bool rdma) {
  const auto until = Clock::now() + milliseconds(30'000);
  while (Clock::now() < until) {
    daemon.again();
    const std::uint64_t before = wires.landed();
    const Outcome outcome = exchange(pair, milliseconds(20), 5);
    CHECK(outcome.result == Result::success);
    CHECK(outcome.intact);
    if ((wires.landed() != before) == rdma) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("verbs transport: the steer page takes RDMA from the only path, and gives it back") {
  for (const bool at_sender : {true, false}) {
    CAPTURE(at_sender);
    Wires wires(1);
    SteerDaemon daemon;
    Pair pair = pair_of(1, at_sender ? daemon.params() : with_verbs(),
                        at_sender ? with_verbs() : daemon.params());
    REQUIRE(carried_by(pair, wires, daemon, true));
    daemon.say(1000, 0);
    REQUIRE(carried_by(pair, wires, daemon, false));
    const std::uint64_t before = wires.landed();
    const auto until = Clock::now() + milliseconds(1500);
    bool held = true;
    while (held && Clock::now() < until) {  // no later look brings RDMA back
      daemon.again();
      CHECK(exchange(pair, milliseconds(20), 2).intact);
      held = daemon.held();
      CHECK((!held || wires.landed() == before));
    }
    daemon.say(1000, 1000);
    CHECK(carried_by(pair, wires, daemon, true));
  }
}

TEST_CASE("verbs transport: a page that has taken RDMA before the first path is dialled") {
  Wires wires(1);
  SteerDaemon daemon;
  daemon.say(1000, 0);
  Pair pair = pair_of(1, daemon.params(), with_verbs());
  daemon.again();
  CHECK(exchange(pair, milliseconds(50), 10).intact);
  CHECK((!daemon.held() || wires.landed() == 0));
  daemon.say(1000, 1000);
  CHECK(carried_by(pair, wires, daemon, true));
}

TEST_CASE("verbs transport: the steer page takes IP, and RDMA goes on") {
  Wires wires(2);
  SteerDaemon daemon;
  Pair pair = pair_of(2, daemon.params(), with_verbs());
  REQUIRE(connected(*pair.a, 0));
  REQUIRE(connected(*pair.a, 1));
  REQUIRE(carried_by(pair, wires, daemon, true));
  daemon.say_ip_down(1, 0);
  CHECK(exchange(pair, milliseconds(300), 20).intact);  // that is heard, and changes nothing
  daemon.again();
  const std::uint64_t landed = wires.landed();
  const std::uint64_t bytes = moved(*pair.a, 0);
  CHECK(exchange(pair, milliseconds(50), 20).intact);
  CHECK(wires.landed() > landed);
  CHECK(moved(*pair.a, 0) > bytes);
}
