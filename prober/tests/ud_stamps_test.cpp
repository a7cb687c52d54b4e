// Time stamps of verbs devices, over a table of functions without hardware.
#include <doctest/doctest.h>

#include <cerrno>

#include "shell/clock.h"
#include "shell/ud_port.h"
#include "ud_fake.h"

using namespace fabric::prober;
using namespace fabric::prober::test;

TEST_CASE("ud: a device that stamps says when a packet left and came") {
  TwoNics fake;
  constexpr Nanos kWire = 3'000'000;  // from the port to the wire, as it says
  for (FakeNic* nic : {&fake.first, &fake.second}) {
    nic->stamp_mask = (std::uint64_t{1} << 48U) - 1;
    nic->khz = 500'000;
    nic->ticks = [] { return static_cast<std::uint64_t>(read_clock(CLOCK_MONOTONIC_RAW)) / 2; };
  }
  {
    UdPort one(fake.functions(), rdma_link(1), 0);
    UdPort two(fake.functions(), rdma_link(2), 0);
    CHECK(one.stamped());
    ibv_ah* handle = one.make_handle(v4(0, 2, kRocePort), two.terms());
    struct Exchange {
      Nanos before, posted, left, reading, came;
    };
    const auto exchange = [&] {
      Exchange e{};
      e.before = read_clock(CLOCK_MONOTONIC_RAW);
      CHECK(one.send(packet_to(2, two.terms()), handle));
      fake.first.queues.back().ticks.back() += kWire / 2;
      fake.second.queues.front().ticks.back() += kWire / 2;
      e.posted = read_clock(CLOCK_MONOTONIC_RAW);
      while (read_clock(CLOCK_MONOTONIC_RAW) < e.posted + 2 * kWire) {
      }
      one.drain_sent([&](std::span<const std::uint8_t>, std::int64_t stamp) { e.left = stamp; });
      e.reading = read_clock(CLOCK_MONOTONIC_RAW);
      CHECK(two.drain(100, [&](const UdPort::Received& packet) {
        e.came = packet.stamp;
        CHECK(packet.source == v4(0, 1, kRocePort));
        CHECK(packet.from.qpn == one.terms().qpn);
        CHECK(packet.length == kWireSize);
      }) == 1);
      return e;
    };
    // Until its clock is known, the thread's own time serves.
    Exchange e = exchange();
    CHECK(e.left >= e.before);
    CHECK(e.left <= e.posted);
    CHECK(e.came >= e.reading);
    const Nanos patience = read_clock(CLOCK_MONOTONIC_RAW) + 60'000'000'000;
    while ((e.left <= e.posted || e.came >= e.reading) &&
           read_clock(CLOCK_MONOTONIC_RAW) < patience) {
      const Nanos now = read_clock(CLOCK_MONOTONIC);
      one.read_device_clock(now);
      two.read_device_clock(now);
      e = exchange();
    }
    for (const Nanos stamp : {e.left, e.came}) {
      CHECK(stamp >= e.before + kWire - 100'000);
      CHECK(stamp <= e.posted + kWire + 100'000);
    }
    // More than one poll takes, and a stamp of the future.
    for (int i = 0; i < 70; ++i) CHECK(one.send(packet_to(2, two.terms()), handle));
    fake.second.queues.front().ticks.front() += 1'000'000'000;
    int heard = 0;
    CHECK(two.drain(1000, [&](const UdPort::Received& packet) {
      ++heard;
      CHECK(packet.stamp <= read_clock(CLOCK_MONOTONIC_RAW));
    }) == 70);
    CHECK(heard == 70);
    fake.failing["poll_cq"] = EIO;
    CHECK(two.drain(1, [](const auto&) {}) == 0);
    CHECK(two.failed());
    fake.failing.clear();
  }
  CHECK(fake.first.objects == 0);
  CHECK(fake.second.objects == 0);
}

TEST_CASE("ud: a device that will not stamp is used without") {
  for (const char* call : {"query_device_ex", "query_rt_values_ex", "create_cq_ex"}) {
    TwoNics fake;
    fake.first.stamp_mask = 255;
    fake.first.khz = 1000;
    fake.failing[call] = EOPNOTSUPP;
    UdPort port(fake.functions(), rdma_link(1), 0);
    CHECK_FALSE(port.stamped());
    port.read_device_clock(read_clock(CLOCK_MONOTONIC));
  }
}
