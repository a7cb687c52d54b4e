// What a process makes of carrier, steer page and its peer's report, as streams and over RDMA.
#include "host/hints.h"

#include "tests/steer_page_kit.h"

#include <doctest/doctest.h>

#include <cstring>

#include "host/monotonic.h"

using namespace fabric;
using namespace fabric::host;
using pages::LinkState;

namespace {

// One rail here, two at the peer.
constexpr std::size_t kRemoteRails = 2;
constexpr core::PathIndex kFirst = core::path_index(0, 0);
constexpr core::PathIndex kSecond = core::path_index(0, 1);
constexpr core::PathSet kBoth = core::bit(kFirst) | core::bit(kSecond);

Address address(std::uint8_t last) {
  Address made;
  made.ip[10] = made.ip[11] = 0xff;
  made.ip[12] = 10;
  made.ip[15] = last;
  return made;
}

template <typename Entry>
void give_rdma(Entry& entry, std::uint16_t weight, LinkState state) {
  entry.rdma_given = 1;
  entry.rdma_weight = weight;
  entry.rdma_state = static_cast<std::uint8_t>(state);
}

template <typename Entry>
void say(Entry& entry, std::uint16_t weight, LinkState state) {
  std::strcpy(entry.netdev, "lo");
  entry.weight = weight;
  entry.state = static_cast<std::uint8_t>(state);
}

// A sender with a rail that has carrier, and what its page says of that.
struct Steered {
  pages::Directory directory;
  Context context;
  Poller poller;
  PeerFacts facts;
  RailTable remotes{};
  RailsReport remote;
  RailsReport local;
  pages::SteerRail rail{};
  pages::SteerPath exception{};  // for the peer's second rail
  bool excepts = false;

  Steered() {
    context.params.run_dir = directory.path;
    Rail own;
    own.name = "lo";
    context.rails.push_back(own);
    remotes[0] = address(1);
    remotes[1] = address(2);
    remote.weight.fill(core::kFullWeight);
    remote.rdma_weight.fill(core::kFullWeight);
    facts.control_live = kBoth;
    say(rail, 1000, LinkState::up);
    say(exception, 1000, LinkState::up);
    std::memcpy(exception.remote, remotes[1].ip.data(), sizeof exception.remote);
  }
  SaidDown look() {
    const std::int64_t now = monotonic_ns();
    pages::SteerPageKit page(now);
    page.rails = {rail};
    if (excepts) {
      page.paths = {exception};
    }
    pages::store(directory.path + "/steer", page.bytes());
    Hints hints(context, poller);
    hints.poll(now);
    REQUIRE(hints.page() != nullptr);
    local = hints.local();
    const SaidDown said = hints.apply(facts, remotes, remote, kRemoteRails, true);
    facts.down.report(said.stream, now);
    facts.rdma.down.report(said.rdma, now);
    return said;
  }
};

}  // namespace

TEST_CASE("hints: without a word on RDMA both kinds go by the one weight") {
  Steered of;
  of.excepts = true;
  say(of.exception, 0, LinkState::down);
  const SaidDown said = of.look();
  CHECK(of.facts.weight[kFirst] == 1000);
  CHECK(of.facts.rdma.weight[kFirst] == 1000);
  CHECK(of.facts.rdma.weight[kSecond] == 0);
  CHECK(said.stream == core::bit(kSecond));
  CHECK(said.rdma == core::bit(kSecond));
  CHECK(of.facts.rdma_well == 0);
  CHECK_FALSE(of.facts.to_stream(kSecond));  // TCP is no better
}

TEST_CASE("hints: RDMA broken, IP sound: the path goes on as a stream") {
  Steered of;
  give_rdma(of.rail, 0, LinkState::down);
  const SaidDown said = of.look();
  CHECK(of.facts.weight[kFirst] == 1000);
  CHECK(of.facts.rdma.weight[kFirst] == 0);
  CHECK(of.facts.to_stream(kFirst));
  CHECK(said.rdma == kBoth);
  CHECK(said.stream == 0);
  CHECK(of.facts.rdma.why[kFirst] == pages::PathDownReason::steer_page);
  CHECK(of.facts.rdma_well == 0);
  CHECK(of.local.rdma_weight[0] == 0);
  CHECK(of.local.rdma_down[0]);
  CHECK_FALSE(of.local.down[0]);
  // Only what is connected over RDMA is given up for it, and the last path is not.
  CHECK(of.facts.should_close(kFirst, 0, kBoth, core::bit(kFirst)));
  CHECK_FALSE(of.facts.should_close(kFirst, 0, kBoth, core::bit(kSecond)));
  CHECK_FALSE(of.facts.should_close(kFirst, 0, kBoth, kBoth));
  // Without the control link no stream could take its place.
  of.facts.control_live = core::bit(kSecond);
  CHECK_FALSE(of.facts.to_stream(kFirst));
}

TEST_CASE("hints: RDMA without weight that is not called down moves just as well") {
  Steered of;
  give_rdma(of.rail, 0, LinkState::hold);
  const SaidDown said = of.look();
  CHECK(of.facts.to_stream(kFirst));
  CHECK(said.rdma == 0);
}

TEST_CASE("hints: IP broken, RDMA sound: what goes over RDMA goes on") {
  Steered of;
  say(of.rail, 0, LinkState::down);
  give_rdma(of.rail, 1000, LinkState::up);
  const SaidDown said = of.look();
  CHECK(of.facts.weight[kFirst] == 0);
  CHECK(of.facts.rdma.weight[kFirst] == 1000);
  CHECK_FALSE(of.facts.to_stream(kFirst));
  CHECK(said.stream == kBoth);
  CHECK(said.rdma == 0);
  CHECK(of.facts.rdma_well == kBoth);
  CHECK_FALSE(of.facts.should_close(kFirst, 0, kBoth, kBoth));
  CHECK(of.facts.should_close(kFirst, 0, kBoth, core::bit(kSecond)));
  CHECK_FALSE(of.facts.should_close(kFirst, 0, kBoth, 0));
}

TEST_CASE("hints: the lower of both ends, for each kind by itself") {
  Steered of;
  give_rdma(of.rail, 700, LinkState::degraded);
  of.remote.weight[0] = 400;
  of.remote.rdma_weight[1] = 0;
  of.remote.rdma_down[1] = true;
  const SaidDown said = of.look();
  CHECK(of.facts.weight[kFirst] == 400);
  CHECK(of.facts.rdma.weight[kFirst] == 700);
  CHECK(of.facts.weight[kSecond] == 1000);
  CHECK(of.facts.rdma.weight[kSecond] == 0);
  CHECK(of.facts.to_stream(kSecond));
  CHECK(said.rdma == core::bit(kSecond));
  CHECK(said.stream == 0);
  CHECK(of.facts.rdma.why[kSecond] == pages::PathDownReason::peer_told);
  of.remote.rdma_weight[0] = 65535;  // whatever a peer says, no more than the page
  of.look();
  CHECK(of.facts.rdma.weight[kFirst] == 700);
}

TEST_CASE("hints: an exception for one of the peer's addresses") {
  Steered of;
  of.excepts = true;
  give_rdma(of.rail, 1000, LinkState::up);
  give_rdma(of.exception, 0, LinkState::down);
  SaidDown said = of.look();
  CHECK(of.facts.rdma.weight[kFirst] == 1000);
  CHECK(of.facts.rdma.weight[kSecond] == 0);
  CHECK(of.facts.weight[kSecond] == 1000);
  CHECK(said.rdma == core::bit(kSecond));
  CHECK(of.facts.rdma_well == core::bit(kFirst));
  // One that says nothing of RDMA says it of both.
  of.exception.rdma_given = 0;
  of.exception.weight = 300;
  said = of.look();
  CHECK(of.facts.rdma.weight[kSecond] == 300);
  CHECK(said.rdma == 0);
}
