// The whole plugin in one process, twice, over fake NICs: paths over verbs, over TCP, and from one
// to the other.
#include "verbs/transport.h"

#include "tcp/network.h"
#include "tcp/transport.h"
#include "tests/loopback_pair.h"
#include "verbs/fake/network.h"

using namespace fabric;
using namespace fabric::host::loopback;
using verbs::fake::Call;

namespace {

std::string address(std::size_t host, std::size_t rail) {
  return "127.0." + std::to_string(10 + host) + "." + std::to_string(1 + rail);
}

// NICs `a0`, `b0`, ... with the addresses of the loopback pair's rails.
struct Wires {
  verbs::fake::Network network;
  explicit Wires(std::size_t rails) {
    for (std::size_t rail = 0; rail < rails; ++rail) {
      network.add_nic("a" + std::to_string(rail), address(0, rail));
      network.add_nic("b" + std::to_string(rail), address(1, rail));
    }
    network.carries_at_once = true;
  }
  verbs::fake::Nic& nic(const std::string& name) { return *network.find(name); }
  template <typename F>
  auto locked(F&& change) {
    const std::scoped_lock lock(network.mutex);
    return change();
  }
  std::uint64_t landed() {
    return locked([this] { return network.landed; });
  }
};

std::unique_ptr<Net> net_of(const host::Params& params, std::size_t host, std::size_t rails) {
  std::vector<host::Rail> given;
  for (std::size_t rail = 0; rail < rails; ++rail) {
    given.push_back(rail_of(host, rail));
  }
  host::Parts parts;
  parts.network = [](host::Context& context, host::Poller& poller,
                     host::Network::SecretOf secret_of, host::Network::OnHello on_hello) {
    return std::make_unique<tcp::TcpNetwork>(context, poller, std::move(secret_of),
                                             std::move(on_hello));
  };
  parts.transports = [](host::Context& context) {
    std::vector<std::unique_ptr<host::Transport>> made;
    if (auto transport =
            verbs::VerbsTransport::make(context, &verbs::fake::Network::functions(), "")) {
      made.push_back(std::move(transport));
    }
    made.push_back(std::make_unique<tcp::TcpTransport>());
    return made;
  };
  return host::make_host_net(params, given, std::move(parts));
}

host::Params with_verbs() {
  host::Params params = Pair::usual();
  params.verbs = true;
  return params;
}

Pair pair_of(std::size_t rails, const host::Params& of_a = with_verbs(),
             const host::Params& of_b = with_verbs()) {
  return Pair(net_of(of_a, 0, rails), net_of(of_b, 1, rails));
}

}  // namespace

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
