// Tallies, latencies and comm groups: what is counted where, once, within bounds.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "core/send_core.h"
#include "host/comm_counters.h"
#include "host/groups.h"
#include "host/host_net.h"
#include "host/monotonic.h"
#include "host/ticks.h"
#include "pages/stats_page.h"
#include "src/assembly.h"

using namespace fabric;
using namespace fabric::host;
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

struct PageOf {
  pages::StatsHeader header{};
  pages::StatsRail rail{};
  pages::StatsLatency latency{};
  std::vector<pages::StatsGroup> groups;
};

std::vector<PageOf> read_pages(const std::string& run_dir) {
  std::vector<PageOf> found;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/stats")) {
    std::vector<char> bytes(pages::kStatsPageSize);
    std::ifstream(entry.path(), std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    PageOf page;
    std::memcpy(&page.header, bytes.data(), sizeof page.header);
    std::memcpy(&page.rail, bytes.data() + pages::kStatsRailsAt, sizeof page.rail);
    std::memcpy(&page.latency, bytes.data() + pages::kStatsLatencyAt, sizeof page.latency);
    page.groups.resize(std::min<std::size_t>(page.header.group_count, pages::kStatsMaxGroups));
    if (!page.groups.empty()) {
      std::memcpy(page.groups.data(), bytes.data() + pages::kStatsGroupsAt,
                  page.groups.size() * sizeof(pages::StatsGroup));
    }
    found.push_back(page);
  }
  return found;
}

Rail loopback(std::uint8_t last) {
  Rail made;
  made.name = "lo";
  made.address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last};
  return made;
}

}  // namespace

TEST_CASE("every message that a real comm delivers is on both ends' pages, once") {
  constexpr std::uint64_t kCount = 200;
  // Every other one is of those that are copied and acknowledged in their own time: their
  // acknowledgement tells no latency.
  constexpr std::size_t kSmall = 1000;
  constexpr std::size_t kLarge = 20'000;
  std::string run_dir = "/tmp/fabric-stats-XXXXXX";
  REQUIRE(::mkdtemp(run_dir.data()) != nullptr);
  Params params;
  params.run_dir = run_dir;
  const auto a = make_net(params, std::vector<Rail>{loopback(41)});
  const auto b = make_net(params, std::vector<Rail>{loopback(42)});
  REQUIRE(a->init(nullptr) == Result::success);
  REQUIRE(b->init(nullptr) == Result::success);
  std::array<std::byte, kHandleSize> handle{};
  ListenComm* listener = nullptr;
  SendComm* send = nullptr;
  RecvComm* receive = nullptr;
  REQUIRE(b->listen(0, handle, &listener) == Result::success);
  REQUIRE(a->connect(0, handle, 0, &send) == Result::success);
  const std::int64_t until = monotonic_ns() + 20'000'000'000;
  while (receive == nullptr && monotonic_ns() < until) {
    REQUIRE(b->accept(listener, &receive) == Result::success);
    b->wait(1000);
  }
  REQUIRE(receive != nullptr);
  std::vector<std::byte> out(kLarge);
  std::vector<std::byte> in(kLarge);
  // One message; whether it was copied: then it is done before there is a receive for it.
  const auto pass = [&](std::size_t size) {
    Request* to = nullptr;
    bool sent = false;
    const std::int64_t copied_by = monotonic_ns() + (size == kSmall ? 50'000'000 : 0);
    while (to == nullptr && monotonic_ns() < until) {
      REQUIRE(a->isend(send, out.data(), size, 0, &to) == Result::success);
    }
    while (!sent && monotonic_ns() < copied_by) {
      REQUIRE(a->test(to, &sent, nullptr) == Result::success);
    }
    const bool copied = sent;
    const ReceiveSlot slot{in.data(), in.size(), 0};
    Request* from = nullptr;
    bool got = false;
    while ((!got || !sent) && monotonic_ns() < until) {
      if (!sent) {
        REQUIRE(a->test(to, &sent, nullptr) == Result::success);
      }
      if (from == nullptr) {
        REQUIRE(b->irecv(receive, {&slot, 1}, false, &from) == Result::success);
      } else if (!got) {
        REQUIRE(b->test(from, &got, nullptr) == Result::success);
      }
    }
    REQUIRE(got);
    return copied;
  };
  // Until the first ticks of both ends have agreed on it, small ones are not copied either.
  std::uint64_t early = 0;
  while (!pass(kSmall)) {
    ++early;
  }
  for (std::uint64_t i = 1; i < kCount; ++i) {
    CHECK(pass(i % 2 == 0 ? kSmall : kLarge) == (i % 2 == 0));
  }
  // Acknowledgements are read by a closing sender at the latest; the page follows within a publish.
  REQUIRE(a->close(send) == Result::success);
  std::vector<PageOf> pages_now;
  const auto complete = [&] {
    pages_now = read_pages(run_dir);
    return pages_now.size() == 2 &&
           std::all_of(pages_now.begin(), pages_now.end(), [early](const PageOf& page) {
             return page.groups.size() == 1 && page.groups[0].messages == kCount + early;
           });
  };
  while (!complete() && monotonic_ns() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(complete());
  std::uint64_t sent_messages = 0;
  for (const PageOf& page : pages_now) {
    const pages::StatsGroup& group = page.groups[0];
    CHECK(group.bytes == kCount / 2 * (kSmall + kLarge) + early * kSmall);
    CHECK(group.failovers == 0);
    CHECK(group.incarnation != 0);
    const bool sender = group.direction == static_cast<std::uint8_t>(StatsDirection::send);
    CHECK(group.address[15] == (sender ? 42 : 41));
    // The one during which they agreed on it may be of either kind.
    const std::uint64_t most = sender ? kCount / 2 + early : 0;
    CHECK(total(group.latency) <= most);
    CHECK(total(group.latency) + (sender && early != 0 ? 1 : 0) >= most);
    CHECK(total(page.latency) == total(group.latency));
    CHECK(page.latency.sum_ns == group.latency.sum_ns);
    CHECK((group.latency.sum_ns > 0) == sender);
    CHECK((sender ? page.rail.tx_messages : page.rail.rx_messages) == kCount + early);
    CHECK(page.header.pid_namespace != 0);
    sent_messages += page.rail.tx_messages;
  }
  CHECK(sent_messages == kCount + early);
  REQUIRE(b->close(receive) == Result::success);
  REQUIRE(b->close(listener) == Result::success);
  a->finalize();
  b->finalize();
  CHECK(std::filesystem::is_empty(run_dir + "/stats"));
  std::filesystem::remove_all(run_dir);
}

TEST_CASE("a page of the next life begins at nothing") {
  char made[] = "/tmp/fabric-stats-XXXXXX";
  REQUIRE(::mkdtemp(made) != nullptr);
  Params params;
  params.run_dir = made;
  Stats stats;
  REQUIRE(stats.open(params, {loopback(1)}, 1).empty());
  stats.event(pages::StatsEventKind::path_down, 5, 0, 0, 1);
  add(stats.errors, 2);
  add(stats.refused_peers, 3);
  stats.close();
  REQUIRE(stats.open(params, {loopback(1)}, 2).empty());
  CHECK(stats.events().empty());
  stats.publish(3);
  const auto pages = read_pages(made);
  REQUIRE(pages.size() == 1);
  CHECK(pages[0].header.event_count == 0);
  CHECK(pages[0].header.errors == 0);
  CHECK(pages[0].header.refused_peers == 0);
  stats.close();
  std::filesystem::remove_all(made);
}

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
  core::Cts cts;
  cts.count = 1;
  cts.slots[0].size = 10'000;
  core.on_cts(cts);
  cts.group = 1;
  core.on_cts(cts);
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

TEST_CASE("a counter delta brings everything to group and rail once") {
  const TickClock clock;
  CommCounters counters;
  CounterDelta delta;
  Groups groups;
  Deliveries rails;
  const Groups::Index index = groups.join(address(2), 11, StatsDirection::send);
  counters.bytes.add(500);
  counters.delivered(clock, 0, 1'500);
  counters.delivered(clock, 1, 3'000);
  counters.delivered(clock, 1, 3'500);
  for (int i = 0; i < 3; ++i) {
    delta.apply(counters, clock, StatsDirection::send, groups.row(index), rails);
  }
  counters.delivered(clock, 1, 900);
  counters.failovers.add(1);
  delta.apply(counters, clock, StatsDirection::send, groups.row(index), rails);
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
