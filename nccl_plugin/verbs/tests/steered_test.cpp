// Two plugins on fake NICs beside a daemon that takes RDMA or IP from a rail, and gives it back.
#include <cstring>

#include "host/monotonic.h"
#include "tests/steer_page_kit.h"
#include "verbs/tests/transport_kit.h"

using namespace fabric;
using namespace fabric::host::loopback;
using namespace fabric::verbs::test;

namespace {

// What a daemon says of one end's rails; its heartbeat is as of the last word.
class Daemon {
 public:
  using State = pages::LinkState;
  Daemon() {
    std::strcpy(rail_.netdev, "lo");  // all rails of the pair
    say(1000, 1000);
  }
  host::Params params() const {
    host::Params made = with_verbs();
    made.run_dir = directory_.path;
    return made;
  }
  // Weights of all rails; 0 is down.
  void say(std::uint16_t ip, std::uint16_t rdma) {
    const auto state = [](std::uint16_t weight) {
      return static_cast<std::uint8_t>(weight == 0 ? State::down : State::up);
    };
    generation_ += ip != rail_.weight || rdma != rail_.rdma_weight ? 1 : 0;
    rail_.weight = ip;
    rail_.state = state(ip);
    rail_.rdma_given = 1;
    rail_.rdma_weight = rdma;
    rail_.rdma_state = state(rdma);
    again();
  }
  // IP of the paths to one rail of the other end is down, RDMA is not.
  void say_ip_down(std::size_t host, std::size_t rail) {
    pages::SteerPath path{};
    std::strcpy(path.netdev, "lo");
    std::memcpy(path.remote, host::loopback::rail_of(host, rail).address.ip.data(), 16);
    path.state = static_cast<std::uint8_t>(State::down);
    path.rdma_given = 1;
    path.rdma_weight = 1000;
    path.rdma_state = static_cast<std::uint8_t>(State::up);
    paths_ = {path};
    ++generation_;
    again();
  }
  void again() {
    said_at_ = host::monotonic_ns();
    pages::SteerPageKit page(said_at_);
    page.header.generation = generation_;
    page.rails = {rail_};
    page.paths = paths_;
    pages::store(directory_.path + "/steer", page.bytes());
  }
  // What was said last has held until now: on a slow machine it may not have.
  [[nodiscard]] bool held() const {
    return host::monotonic_ns() - said_at_ < static_cast<std::int64_t>(pages::kSteerStaleNs);
  }

 private:
  pages::Directory directory_;
  pages::SteerRail rail_{};
  std::vector<pages::SteerPath> paths_;
  std::uint64_t generation_ = 1;
  std::int64_t said_at_ = 0;  // ns
};

// Sends until a whole exchange went by RDMA alone (`rdma`), or without it. False: it never did.
bool carried_by(Pair& pair, Wires& wires, Daemon& daemon, bool rdma) {
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
    Daemon daemon;
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
  Daemon daemon;
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
  Daemon daemon;
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
