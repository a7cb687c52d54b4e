// Tallies, latencies and comm groups: what is counted where, once, within bounds.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "core/send_core.h"
#include "tcp/groups.h"
#include "tcp/socket.h"
#include "tcp/tally.h"
#include "tcp/ticks.h"

using namespace fabric;
using namespace fabric::tcp;
using pages::StatsDirection;

namespace {

Address address(std::uint8_t last) {
  Address made;
  made.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
  return made;
}

std::uint64_t total(const pages::StatsLatency& latency) {
  return std::accumulate(std::begin(latency.bucket), std::end(latency.bucket), std::uint64_t{0});
}

std::uint64_t messages(const Groups& groups) {
  std::uint64_t sum = 0;
  for (const pages::StatsGroup& row : groups.rows()) {
    sum += row.messages;
  }
  return sum;
}

}  // namespace

TEST_CASE("a latency's bucket is the power of two above it, in microseconds") {
  const TickClock nanoseconds;  // not calibrated
  CHECK(nanoseconds.bucket(0) == 0);
  CHECK(nanoseconds.bucket(900) == 0);
  CHECK(nanoseconds.bucket(1'500) == 1);
  CHECK(nanoseconds.bucket(3'000) == 2);
  CHECK(nanoseconds.bucket(1'100'000) == 11);  // 1,024 to 2,048 us
  CHECK(nanoseconds.bucket(120'000'000'000) == 27);
  CHECK(nanoseconds.bucket(std::numeric_limits<std::uint64_t>::max()) == 27);
  CHECK(TickClock::span(10, 7) == 0);  // a counter that went back
}

TEST_CASE("ticks are worth what the system's clock says") {
  TickClock clock;
  clock.calibrate();
  const std::int64_t began = monotonic_ns();
  const std::uint64_t ticks = clock.now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::uint64_t measured = clock.ns(TickClock::span(ticks, clock.now()));
  const auto longest = static_cast<double>(monotonic_ns() - began);
  CHECK(static_cast<double>(measured) >= 20e6 * 0.99);
  CHECK(static_cast<double>(measured) <= longest * 1.01);
  CHECK(clock.bucket(std::numeric_limits<std::uint64_t>::max()) == 27);
}

TEST_CASE("the core says of each message once that it was delivered, and over which path") {
  core::SendCore core(4096);
  core::Grant grant;
  grant.count = 1;
  grant.slots[0].size = 10'000;
  core.on_grant(grant);
  grant.group = 1;
  core.on_grant(grant);
  const std::vector<std::byte> bytes(10'000);
  REQUIRE(core.post(bytes.data(), bytes.size(), 0, 77));
  REQUIRE(core.post(bytes.data(), 100, 0, 78));
  const std::array<core::PathIndex, 4> paths{0, 9, 9, 18};
  for (const core::PathIndex path : paths) {
    REQUIRE(core.take(path));
    core.written(path);
  }
  CHECK(core.delivered().empty());
  core.on_acknowledge(1, 0);
  core.on_acknowledge(0, 0);
  core.on_acknowledge(0, 0);
  REQUIRE(core.delivered().size() == 2);
  CHECK(core.delivered()[0].stamp == 78);
  CHECK(core.delivered()[0].path == 18);
  CHECK(core.delivered()[1].stamp == 77);
  CHECK(core.delivered()[1].path == 9);
  core.clear_delivered();
  core.on_acknowledge(0, 0);
  CHECK(core.delivered().empty());
}

TEST_CASE("a harvest brings everything to group and rail once") {
  const TickClock clock;
  Tally tally(2);
  Harvest harvest(2);
  Groups groups;
  Deliveries rails;
  const Groups::Index index = groups.join(address(2), 11, StatsDirection::send);
  tally.bytes.add(500);
  tally.delivered(clock, 0, 1'500);
  tally.delivered(clock, 1, 3'000);
  tally.delivered(clock, 1, 3'500);
  for (int i = 0; i < 3; ++i) {
    harvest.take(tally, clock, StatsDirection::send, groups.row(index), rails);
  }
  tally.delivered(clock, 1, 900);
  tally.failovers.add(1);
  harvest.take(tally, clock, StatsDirection::send, groups.row(index), rails);
  const pages::StatsGroup& row = groups.rows()[index];
  CHECK(row.bytes == 500);
  CHECK(row.messages == 4);
  CHECK(row.failovers == 1);
  CHECK(row.latency.sum_ns == 8'900);
  CHECK(total(row.latency) == 4);
  CHECK(rails.tx_messages[0] == 1);
  CHECK(rails.tx_messages[1] == 3);
  CHECK(rails.latency[0].bucket[1] == 1);
  CHECK(rails.latency[1].bucket[2] == 2);
  CHECK(rails.latency[1].bucket[0] == 1);
  CHECK(rails.latency[1].sum_ns == 7'400);
}

TEST_CASE("comms of one peer and direction share a row, which outlives them") {
  Groups groups;
  const auto sending = groups.join(address(2), 11, StatsDirection::send);
  CHECK(groups.join(address(2), 11, StatsDirection::send) == sending);
  CHECK(groups.join(address(2), 11, StatsDirection::receive) != sending);
  CHECK(groups.join(address(2), 12, StatsDirection::send) != sending);  // the peer began anew
  CHECK(groups.rows().size() == 3);
  groups.row(sending).bytes = 5;
  groups.leave(sending);
  groups.leave(sending);
  CHECK(groups.rows()[sending].comms == 0);
  CHECK(groups.join(address(2), 11, StatsDirection::send) == sending);
  CHECK(groups.rows()[sending].bytes == 5);
}

TEST_CASE("the table is bounded and its sums never lose anything") {
  Groups groups;
  std::vector<Groups::Index> open;
  for (std::uint64_t peer = 1; peer <= 100; ++peer) {
    open.push_back(
        groups.join(address(static_cast<std::uint8_t>(peer)), peer, StatsDirection::send));
    groups.row(open.back()).messages += 1;
  }
  REQUIRE(groups.rows().size() == pages::kStatsMaxGroups);
  CHECK(messages(groups) == 100);
  const pages::StatsGroup& others = groups.rows()[Groups::kOthers];
  CHECK(others.comms == 36);
  CHECK(others.messages == 36);
  CHECK(others.incarnation == 0);
  CHECK(others.direction == static_cast<std::uint8_t>(StatsDirection::both));

  // Rows that nobody uses any more are given away, the one that is idle for longest first.
  groups.leave(open[7]);
  groups.leave(open[3]);
  CHECK(groups.join(address(1), 1, StatsDirection::send) == open[0]);
  const auto first = groups.join(address(200), 200, StatsDirection::receive);
  CHECK(first == open[7]);
  CHECK(groups.rows()[first].messages == 0);
  CHECK(groups.rows()[first].incarnation == 200);
  CHECK(groups.join(address(201), 201, StatsDirection::receive) == open[3]);
  CHECK(groups.join(address(202), 202, StatsDirection::receive) == Groups::kOthers);
  CHECK(messages(groups) == 100);
  groups.leave(Groups::kOthers);
}
