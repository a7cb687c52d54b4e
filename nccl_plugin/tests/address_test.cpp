// Addresses that change: what is believed, what is dialled, what is cut.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "core/schedule.h"
#include "host/hints.h"
#include "host/monotonic.h"
#include "host/peer.h"
#include "tcp/socket.h"

using namespace fabric;
using namespace fabric::host;

namespace {

Address v4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d, std::uint16_t port) {
  Address made;
  made.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
  made.port = port;
  return made;
}

struct Known {
  Context context;
  Peer peer{context, true, 1, 1, {}, {}};

  explicit Known(const Address& own = v4(10, 0, 0, 1, 5000)) {
    for (int i = 0; i < 2; ++i) {
      Rail rail;
      rail.name = "lo";
      rail.address = own;
      context.rails.push_back(rail);
    }
  }
  static RailTable at(const Address& first, const Address& second = {}) { return {first, second}; }
};

const Address kX = v4(10, 0, 0, 2, 4000);
const Address kY = v4(10, 0, 0, 3, 4000);
const Address kZ = v4(10, 0, 0, 4, 4000);

}  // namespace

TEST_CASE("addresses: what can be connected to") {
  CHECK(kX.reachable());
  CHECK_FALSE(v4(10, 0, 0, 2, 0).reachable());
  CHECK_FALSE(v4(0, 0, 0, 0, 1).reachable());
  CHECK_FALSE(v4(224, 0, 0, 1, 1).reachable());
  CHECK_FALSE(v4(255, 255, 255, 255, 1).reachable());
  CHECK_FALSE(Address{}.reachable());
  CHECK(v4(127, 3, 0, 1, 1).loopback());
  CHECK_FALSE(kX.loopback());
  Address v6;
  v6.port = 1;
  CHECK_FALSE(v6.reachable());
  v6.ip[15] = 1;
  CHECK(v6.loopback());
  v6.ip[0] = 0xfd;
  CHECK(v6.reachable());
  CHECK_FALSE(v6.loopback());
  v6.ip[0] = 0xff;
  CHECK_FALSE(v6.reachable());
}

TEST_CASE("addresses: the newest word wins, whatever the order of arrival") {
  Known known;
  Peer& peer = known.peer;
  peer.learn_absent(Known::at(kX), 1, 1);
  CHECK(peer.addresses[0] == kX);
  peer.learn(Known::at(kZ), 1, 3, 2);
  peer.learn(Known::at(kY), 1, 2, 3);  // delayed
  CHECK(peer.addresses[0] == kZ);
  peer.learn(Known::at(kX), 1, 0, 4);  // a welcome: unnumbered
  peer.learn_absent(Known::at(kX), 1, 5);
  CHECK(peer.addresses[0] == kZ);
  peer.learn(Known::at({}, kY), 2, 4, 6);  // absent: as it was
  CHECK(peer.addresses[0] == kZ);
  CHECK(peer.addresses[1] == kY);
  CHECK(peer.rails == 2);
}

TEST_CASE("addresses: a peer that does not number them") {
  Known known;
  known.peer.learn(Known::at(kX), 1, 0, 1);
  known.peer.learn(Known::at(kY), 1, 0, 2);
  CHECK(known.peer.addresses[0] == kY);
}

TEST_CASE("addresses: no port, nobody's, and loopback from afar are not taken") {
  Known known;
  known.peer.learn(Known::at(v4(10, 0, 0, 2, 0), v4(127, 0, 0, 1, 22)), 2, 1, 1);
  CHECK_FALSE(known.peer.addresses[0].present());
  CHECK_FALSE(known.peer.addresses[1].present());
  CHECK(known.peer.to_dial(1) == 0);
  Known local(v4(127, 0, 0, 5, 5000));
  local.peer.learn(Known::at(v4(127, 0, 0, 1, 22)), 1, 1, 1);
  CHECK(local.peer.addresses[0].present());
}

TEST_CASE("addresses: one that this host has as well is no way to a peer on another host") {
  Known known;
  const Address bridge = v4(172, 17, 0, 1, 4000);
  known.context.rails.set_own_addresses({v4(10, 0, 0, 1, 0), v4(172, 17, 0, 1, 0)});
  known.peer.learn(Known::at(bridge, kX), 2, 1, 1);
  CHECK_FALSE(known.peer.addresses[0].present());
  CHECK(known.peer.addresses[1] == kX);
  CHECK((known.peer.to_dial(2) & core::bit(core::path_index(0, 0))) == 0);
  Known here;  // another process of this host: all its addresses are ours
  here.context.rails.set_own_addresses({v4(10, 0, 0, 1, 0), v4(172, 17, 0, 1, 0)});
  here.peer.learn(Known::at(v4(10, 0, 0, 1, 4000), bridge), 2, 1, 1);
  CHECK(here.peer.addresses[0].present());
  CHECK(here.peer.addresses[1] == bridge);
}

TEST_CASE("addresses: a link-local one goes with its link") {
  Address local;
  local.ip[0] = 0xfe;
  local.ip[1] = 0x80;
  local.ip[15] = 1;
  sockaddr_storage storage{};
  CHECK(local.link_local());
  REQUIRE(local.to(storage, 7) == sizeof(sockaddr_in6));
  CHECK(reinterpret_cast<const sockaddr_in6&>(storage).sin6_scope_id == 7);
  local.ip[0] = 0xfd;
  CHECK_FALSE(local.link_local());
  local.to(storage, 7);
  CHECK(reinterpret_cast<const sockaddr_in6&>(storage).sin6_scope_id == 0);
  CHECK(v4(169, 254, 1, 1, 1).link_local());
  CHECK_FALSE(v4(169, 253, 1, 1, 1).link_local());
  CHECK(v4(169, 254, 1, 1, 9).host_text() == "169.254.1.1");
}

TEST_CASE("addresses: a peer that probes us lives, and is dialled at once") {
  Known known;
  Peer& peer = known.peer;
  const core::PathIndex path = core::path_index(0, 0);
  peer.learn(Known::at(kX), 1, 1, 1);
  const std::int64_t now = monotonic_ns();
  peer.dialing(path, now);
  peer.refused(path, now);
  peer.dial_failed(path, now);
  peer.refused(path, now + 1);
  CHECK(peer.dead(now + 300 * kMs));
  CHECK((peer.to_dial(now + 1) & core::bit(path)) == 0);  // backs off
  SUBCASE("the same address") { peer.on_liveness_probe(Known::at(kX), 1, 1, now + 2); }
  SUBCASE("another") { peer.on_liveness_probe(Known::at(kY), 1, 2, now + 2); }
  SUBCASE("told over another link") { peer.learn(Known::at(kZ), 1, 2, now + 2); }
  CHECK_FALSE(peer.dead(now + 300 * kMs));
  CHECK((peer.to_dial(now + 2) & core::bit(path)) != 0);
}

TEST_CASE("a process is gone when each of its rails refuses, or one for long") {
  Known known;
  Peer& peer = known.peer;
  peer.learn(Known::at(kX, kY), 2, 1, 1);
  const core::PathIndex first = core::path_index(0, 0);
  const core::PathIndex second = core::path_index(1, 1);
  const std::int64_t start = monotonic_ns();
  peer.refused(first, start);
  SUBCASE("both") {
    peer.refused(first, start + 150 * kMs);
    peer.refused(second, start + 10 * kMs);
    CHECK_FALSE(peer.dead(start + 250 * kMs));  // a single word of the second
    peer.refused(second, start + 200 * kMs);
    CHECK(peer.dead(start + 250 * kMs));
    peer.answered();
    CHECK_FALSE(peer.dead(start + 250 * kMs));
  }
  SUBCASE("one, while the other is silent: a firewall that reloads, or a rail that died before") {
    std::int64_t now = start;
    for (; now < start + 1900 * kMs; now += 400 * kMs) {
      peer.refused(first, now);
      CHECK_FALSE(peer.dead(now));
    }
    peer.refused(first, now);
    CHECK(peer.dead(now));
  }
  SUBCASE("now and then is not in a row") {
    peer.refused(second, start);
    peer.refused(first, start + 60'000 * kMs);
    peer.refused(second, start + 60'000 * kMs);
    CHECK_FALSE(peer.dead(start + 60'300 * kMs));
  }
}

TEST_CASE("addresses: connections older than a move are outdated once the control link is new") {
  Known known;
  Peer& peer = known.peer;
  const core::PathIndex path = core::path_index(0, 0);
  const core::PathIndex other = core::path_index(1, 0);
  peer.learn(Known::at(kX), 1, 1, 1);
  CHECK(peer.facts.moved[path] == 0);
  peer.rail_moved(0, 10);
  CHECK(peer.facts.moved[path] == 10);
  CHECK(peer.facts.moved[other] == 0);
  CHECK_FALSE(peer.facts.outdated(path, 5));
  peer.facts.control_live = core::bit(path);
  CHECK(peer.facts.outdated(path, 5));
  CHECK_FALSE(peer.facts.outdated(path, 10));
  peer.learn(Known::at(kY), 1, 2, 20);  // its own move
  CHECK(peer.facts.moved[path] == 20);
  CHECK(peer.facts.moved[other] == 20);
}

TEST_CASE("addresses: a rail that comes later is paired with the peer's") {
  Known known;
  Peer& peer = known.peer;
  const core::PathSet two = core::bit(core::path_index(0, 0)) | core::bit(core::path_index(1, 1));
  peer.learn(Known::at(kX, kY), 2, 1, 1);
  CHECK(peer.facts.base == two);
  known.context.rails.push_back(Rail{known.context.rails[0]});
  peer.rail_came();
  CHECK(peer.facts.base == (two | core::bit(core::path_index(2, 0))));  // it has no third one yet
  CHECK((peer.to_dial(2) & core::bit(core::path_index(2, 0))) != 0);
  peer.learn({kX, kY, kZ}, 3, 2, 3);
  CHECK(peer.facts.base == (two | core::bit(core::path_index(2, 2))));
  CHECK((peer.to_dial(4) & core::bit(core::path_index(2, 2))) != 0);
}

TEST_CASE("addresses: only what a list names is taken in later") {
  Params params;
  const std::vector<Rail> none;
  for (const char* list : {"", "^eth", "^=lo"}) {
    params.ifname = list;
    CHECK(rails_come(params, none).empty());
  }
  params.ifname = "=lo";
  REQUIRE(rails_come(params, none).size() == 1);
  Rail known;
  known.name = "lo";
  known.address = v4(10, 0, 0, 1, 5000);
  const std::vector<Rail> there(1, known);
  CHECK(rails_come(params, there).empty());
  known.name = "other";
  const std::vector<Rail> full(core::kMaxRails, known);
  CHECK(rails_come(params, full).empty());
  CHECK(rails_come(params, std::span(full).first(3)).size() == 1);
  params.family = "AF_INET";
  CHECK(rails_come(params, std::span(full).first(3)).size() == 1);
  params.family = "AF_INET6";  // as asked for, whatever the others have
  for (const Rail& rail : rails_come(params, std::span(full).first(3))) {
    CHECK_FALSE(rail.address.v4());
  }
  params.family.clear();
  known.address.ip[10] = 0xfe;  // no longer IPv4-mapped
  const std::vector<Rail> v6(1, known);
  for (const Rail& rail : rails_come(params, v6)) {
    CHECK_FALSE(rail.address.v4());
  }
}

TEST_CASE("addresses: a kernel that gives no answer is no news") {
  Params params;
  params.ifname = "=lo";
  Rail known;
  known.name = "lo";
  known.address = v4(127, 0, 0, 1, 5000);
  const std::vector<Rail> rails(1, known);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;  // getifaddrs needs a descriptor
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto silent = rails_now(params, rails);
  const auto come = rails_come(params, std::span<const Rail>());
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_FALSE(silent.has_value());  // not "all rails are gone"
  CHECK(come.empty());
  const auto heard = rails_now(params, rails);
  REQUIRE(heard.has_value());
  CHECK(heard->rails.front().present);
  CHECK(heard->rails.front().ifindex == static_cast<int>(::if_nametoindex("lo")));
  CHECK(heard->own_addresses.size() > 0);
}

TEST_CASE("addresses: a rail that moved stays down for its time and says why") {
  Known known;
  known.context.params.run_dir = "/nonexistent/fabric";
  Poller poller;
  Hints hints(known.context, poller);
  PeerFacts facts;
  hints.moved(0, 100);
  hints.lost(0, false);  // the next of a burst of notifications
  hints.poll(50);
  CHECK(hints.local().down[0]);
  const core::PathIndex path = core::path_index(0, 0);
  CHECK(hints.apply(facts, {}, RailsReport{}, 1, true).stream == core::bit(path));
  CHECK(facts.why[path] == pages::PathDownReason::moved);
  hints.poll(100);
  CHECK_FALSE(hints.local().down[0]);
}

TEST_CASE("addresses: a listener that is opened again keeps its port if it can") {
  Rail rail;
  rail.name = "lo";
  rail.address = v4(127, 0, 77, 1, 0);
  std::string error;
  Fd listener = tcp::listen_on(rail, error);
  REQUIRE(listener.open());
  const std::uint16_t port = rail.address.port;
  REQUIRE(port != 0);
  Fd dialled = tcp::start_connect(rail, rail.address, Params{});
  REQUIRE(dialled.open());
  Fd accepted;
  for (int i = 0; i < 1000 && !accepted.open(); ++i) {
    accepted.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  }
  REQUIRE(accepted.open());
  CHECK(tcp::far_end(accepted.get()).ip == rail.address.ip);
  CHECK(tcp::far_end(dialled.get()) == rail.address);
  listener.reset();  // the connection stays
  listener = tcp::listen_on(rail, error);
  REQUIRE(listener.open());
  CHECK(rail.address.port == port);
  Rail second = rail;  // taken
  Fd elsewhere = tcp::listen_on(second, error);
  REQUIRE(elsewhere.open());
  CHECK(second.address.port != port);
  CHECK(second.address.port != 0);
}
