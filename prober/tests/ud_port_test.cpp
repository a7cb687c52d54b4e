// UD queue pairs and the links that own them, over a table of functions without hardware.
#include "shell/ud_port.h"

#include <doctest/doctest.h>
#include <sys/epoll.h>

#include <chrono>
#include <thread>

#include "shell/clock.h"
#include "shell/fd.h"
#include "shell/rdma_ports.h"
#include "ud_fake.h"
#include "util.h"

using namespace fabric::prober;
using namespace fabric::prober::test;
namespace ring = fabric::ring;

TEST_CASE("ud: the GID is the RoCE v2 entry of the link's own address") {
  TwoNics fake;
  std::vector<ibv_gid_entry> table;
  CHECK(choose_gid(table, v4(0, 1)) == -1);
  for (std::uint32_t i = 0; i < 4; ++i) {
    table.push_back(fake.first.gids[i]);
    table.back().gid_index = i;
  }
  CHECK(choose_gid(table, v4(0, 1)) == 3);
  CHECK(choose_gid(table, v4(0, 2)) == -1);
}

TEST_CASE("ud: who sent a packet is read from an IPv4 or an IPv6 header, or from nothing") {
  std::array<std::uint8_t, 40> grh{};
  CHECK_FALSE(source_of_grh(grh, true));
  CHECK_FALSE(source_of_grh(grh, false));
  CHECK_FALSE(source_of_grh(std::span(grh).first(39), true));
  grh[20] = 0x45;
  const std::array<std::uint8_t, 4> ip{10, 0, 0, 2};
  std::copy(ip.begin(), ip.end(), grh.begin() + 32);
  CHECK(source_of_grh(grh, true) == v4(0, 2, kRocePort));
  grh[20] = 0x46;  // with options
  CHECK_FALSE(source_of_grh(grh, true));
  grh[0] = 0x60;
  const Address six = v6(3, 9, kRocePort);
  std::copy(six.ip.begin(), six.ip.end(), grh.begin() + 8);
  CHECK(source_of_grh(grh, false) == six);
}

TEST_CASE("ud: a packet goes from one port to the other, stamped, and names its sender") {
  TwoNics fake;
  {
    UdPort one(fake.functions(), rdma_link(1), 26);
    UdPort two(fake.functions(), rdma_link(2), 0);
    CHECK(one.terms().qpn != two.terms().qpn);
    CHECK(one.active());
    ibv_ah* handle = one.make_handle(v4(0, 2, kRocePort), two.terms());
    REQUIRE(handle != nullptr);
    CHECK(fake.first.handles.back().attributes.grh.sgid_index == 3);
    CHECK(fake.first.handles.back().attributes.grh.traffic_class == 26 << 2);
    const Nanos before = read_clock(CLOCK_MONOTONIC_RAW);
    CHECK(one.send(packet_to(2, two.terms()), handle));
    int sent = 0;
    one.drain_sent([&](std::span<const std::uint8_t> bytes, std::int64_t stamp) {
      ++sent;
      CHECK(bytes.size() == kWireSize);
      CHECK(bytes[0] == 7);
      CHECK(stamp >= before);
      CHECK(stamp <= read_clock(CLOCK_MONOTONIC_RAW));
    });
    CHECK(sent == 1);
    CHECK(one.unsent() == 0);
    int heard = 0;
    CHECK(two.drain(100, [&](const UdPort::Received& packet) {
      ++heard;
      CHECK(packet.source == v4(0, 1, kRocePort));
      CHECK(packet.from.qpn == one.terms().qpn);
      CHECK(packet.length == kWireSize);
      CHECK(packet.bytes.size() == kWireSize);
    }) == 1);
    CHECK(heard == 1);
    two.take_notices();
    one.free_handle(handle);
  }
  CHECK(fake.first.objects == 0);
  CHECK(fake.second.objects == 0);
}

TEST_CASE("ud: every packet finds a receive again, and a flood is read in parts") {
  TwoNics fake;
  UdPort one(fake.functions(), rdma_link(1), 0);
  UdPort two(fake.functions(), rdma_link(2), 0);
  ibv_ah* handle = one.make_handle(v4(0, 2, kRocePort), two.terms());
  std::size_t heard = 0;
  const auto count = [&](const UdPort::Received&) { ++heard; };
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 100; ++i) CHECK(one.send(packet_to(2, two.terms()), handle));
    one.drain_sent([](auto, auto) {});
    CHECK(two.drain(64, count) == 64);
    two.drain(1000, count);
  }
  CHECK(heard == 2000);
  for (std::size_t i = 0; i < 3 * UdPort::kReceives; ++i) {
    one.send(packet_to(2, two.terms()), handle);
    one.drain_sent([](auto, auto) {});
  }
  heard = 0;
  two.drain(100'000, count);
  CHECK(heard == UdPort::kReceives);  // the device dropped the rest
  CHECK_FALSE(two.failed());
}

TEST_CASE("ud: short, long and strange packets are handed on with the length that they have") {
  TwoNics fake;
  UdPort one(fake.functions(), rdma_link(1), 0);
  UdPort two(fake.functions(), rdma_link(2), 0);
  ibv_ah* handle = one.make_handle(v4(0, 2, kRocePort), two.terms());
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{191}, std::size_t{193}, std::size_t{4096}}) {
    fake.change = [&](std::vector<std::uint8_t>& bytes) { bytes.resize(size); };
    REQUIRE(one.send(packet_to(2, two.terms()), handle));
    one.drain_sent([](auto, auto) {});
    std::size_t length = 9999;
    two.drain(10, [&](const UdPort::Received& packet) {
      length = packet.length;
      CHECK(packet.bytes.size() == size);
    });
    CHECK(length == size);
    CHECK_FALSE(two.failed());
  }
}

TEST_CASE("ud: what cannot be opened says why, and leaves nothing behind") {
  TwoNics fake;
  const auto why = [&](const LinkConfig& link) -> std::string {
    try {
      const UdPort port(fake.functions(), link, 0);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  LinkConfig other = rdma_link(1);
  other.device = "mlx5_7";
  CHECK(why(other) == "there is no verbs device mlx5_7");
  other = rdma_link(1);
  other.address = v4(0, 9, kRocePort);
  CHECK(why(other) == "no RoCE v2 GID of 10.0.0.9 on port 1");
  for (const char* call : {"get_device_list", "open_device", "query_port", "query_gid_ex",
                           "alloc_pd", "reg_mr", "create_comp_channel", "create_cq", "create_qp",
                           "to_init", "to_rtr", "to_rts", "post_recv", "req_notify_cq"}) {
    CAPTURE(std::string(call));
    fake.failing = {{call, call == std::string("query_gid_ex") ? EOPNOTSUPP : EIO}};
    CHECK_FALSE(why(rdma_link(1)).empty());
    CHECK(fake.first.objects == 0);
  }
  fake.failing.clear();
  CHECK(why(rdma_link(1)).empty());
}

TEST_CASE("ud: a send that fails, a poll that fails and a fatal event end the port") {
  TwoNics fake;
  {
    UdPort port(fake.functions(), rdma_link(1), 0);
    ibv_ah* handle = port.make_handle(v4(0, 2, kRocePort), {5, 0});
    fake.send_status = IBV_WC_WR_FLUSH_ERR;
    CHECK(port.send(packet_to(2, {5, 0}), handle));
    port.drain_sent([](auto, auto) { CHECK(false); });
    CHECK(port.failed());
    CHECK(port.reason() == "send: flushed");
    CHECK_FALSE(port.send(packet_to(2, {5, 0}), handle));
  }
  fake.send_status = IBV_WC_SUCCESS;
  {
    UdPort port(fake.functions(), rdma_link(1), 0);
    fake.failing = {{"poll_cq", EIO}};
    CHECK(port.drain(10, [](const auto&) {}) == 0);
    CHECK(port.failed());
    fake.failing.clear();
  }
  {
    UdPort port(fake.functions(), rdma_link(1), 0);
    ibv_async_event event{};
    event.event_type = IBV_EVENT_DEVICE_FATAL;
    fake.first.events.push_back(event);
    CHECK(port.next_event() == UdPort::PortEvent::kFatal);
    CHECK(port.failed());
  }
  CHECK(fake.first.objects == 0);
}

TEST_CASE("ud: events of other ports change nothing") {
  TwoNics fake;
  UdPort port(fake.functions(), rdma_link(1), 0);
  ibv_async_event event{};
  event.event_type = IBV_EVENT_PORT_ERR;
  event.element.port_num = 2;
  fake.first.events.push_back(event);
  CHECK(port.next_event() == UdPort::PortEvent::kNone);
  CHECK(port.active());
  event.element.port_num = 1;
  fake.first.events.push_back(event);
  CHECK(port.next_event() == UdPort::PortEvent::kDown);
  CHECK_FALSE(port.active());
  event.event_type = IBV_EVENT_PORT_ACTIVE;
  fake.first.events.push_back(event);
  CHECK(port.next_event() == UdPort::PortEvent::kActive);
  CHECK(port.active());
  CHECK(port.is_current());
  fake.first.gids[3].gid.raw[15] = 77;
  CHECK_FALSE(port.is_current());
}

TEST_CASE("ud: on InfiniBand a LID is the address, and the sender is known by LID and queue pair") {
  TwoNics fake;
  for (FakeNic* nic : {&fake.first, &fake.second}) nic->infiniband = true;
  fake.second.lid = 9;
  CHECK_THROWS_WITH(UdPort(fake.functions(), rdma_link(1), 0), "the port has no LID yet");
  fake.first.lid = 4;
  UdPort one(fake.functions(), rdma_link(1), 0);
  UdPort two(fake.functions(), rdma_link(2), 0);
  CHECK(two.terms().lid == 9);
  ibv_ah* handle = one.make_handle(v4(0, 2, kRocePort), two.terms());
  CHECK(one.send(packet_to(2, two.terms()), handle));
  two.drain(10, [&](const UdPort::Received& packet) {
    CHECK_FALSE(packet.source);
    CHECK(packet.from == one.terms());
  });
}

namespace {

// Links 0 (UDP, without a socket here) and 1 (RDMA) of one host, with the engine that owns them.
struct Side {
  Fd epoll{::epoll_create1(EPOLL_CLOEXEC)};
  Engine engine;
  RdmaPorts ports;
  Records records;

  Side(const UdFake& fake, std::uint8_t own, std::uint8_t peer)
      : engine(own, [n = std::uint64_t{own}]() mutable { return n += 2; }),
        ports(epoll.get(), &fake.functions()) {
    engine.set_keys(ring_of({key(9)}));
    Config config;
    config.host_id = own;
    config.link_interval = 1 * kMs;
    config.links = {{0, "rail0", v4(0, own), false}};
    config.paths = {{0, 0, v4(0, peer), peer}};
    add_rdma_link(config, 0, "fake" + std::to_string(own), 1);
    ports.configure(std::span(config.links).subspan(1), 0);
    engine.configure(config, read_clock(CLOCK_MONOTONIC), 0);
  }

  void pass() {
    const Nanos now = read_clock(CLOCK_MONOTONIC);
    ports.look(engine, records, now);
    ports.receive(engine, records, 100, now);
  }
  ring::LinkRow row() const { return ports.row(1, 0); }
  bool bound() const { return (row().flags & ring::kLinkBound) != 0; }
};

// One pass of both, with all that each sends; UDP is carried by hand.
void exchange(Side& a, std::uint8_t own_a, Side& b, std::uint8_t own_b) {
  struct Way {
    Side& from;
    Side& to;
    std::uint8_t source;
  };
  for (const Way& way : {Way{a, b, own_a}, Way{b, a, own_b}}) {
    way.from.pass();
    std::vector<Outgoing> out;
    const Nanos now = read_clock(CLOCK_MONOTONIC);
    way.from.engine.take_due(now, 0, out);
    for (const Outgoing& packet : out) {
      if (packet.link == 1) {
        way.from.ports.send({&packet, 1}, way.from.engine, now);
      } else {
        way.to.engine.on_packet(0, v4(0, way.source), packet.bytes, {0, false, now},
                                way.to.records);
      }
    }
  }
}

template <typename Condition>
bool within(double seconds, Condition condition, const std::function<void()>& step) {
  const Nanos end = read_clock(CLOCK_MONOTONIC) + static_cast<Nanos>(seconds * 1e9);
  while (!condition()) {
    if (read_clock(CLOCK_MONOTONIC) > end) return false;
    step();
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
  return true;
}

}  // namespace

TEST_CASE("rdma ports: two hosts hear each other, and again after a queue pair failed") {
  TwoNics fake;
  Side one(fake, 1, 2);
  Side two(fake, 2, 1);
  const auto step = [&] { exchange(one, 1, two, 2); };
  const auto heard = [&] {
    return one.engine.hears(1, v4(0, 2, kRocePort)) && two.engine.hears(1, v4(0, 1, kRocePort));
  };
  REQUIRE(within(30, heard, step));
  CHECK(one.bound());
  ring::PathRow path{};
  one.engine.fill(1, path);
  REQUIRE(within(
      30,
      [&] {
        one.engine.fill(1, path);
        return path.rtt_last_ns != 0;
      },
      step));
  std::uint32_t before = 0;
  {
    const auto lock = fake.lock();
    before = fake.first.pairs.back().base.qp_num;
    fake.send_status = IBV_WC_WR_FLUSH_ERR;
  }
  REQUIRE(within(
      30, [&] { return !one.bound(); }, step));
  {
    const auto lock = fake.lock();
    fake.send_status = IBV_WC_SUCCESS;
  }
  const std::uint64_t received = one.row().received;
  REQUIRE(within(
      30, [&] { return one.bound() && one.row().received > received + 10; }, step));
  const auto lock = fake.lock();
  CHECK(fake.first.pairs.back().base.qp_num != before);
}

TEST_CASE("rdma ports: a device that is not there is tried again, and port events are recorded") {
  TwoNics fake;
  fake.failing = {{"open_device", ENODEV}};
  Side one(fake, 1, 2);
  const auto step = [&] { one.pass(); };
  CHECK_FALSE(within(
      0.3, [&] { return one.bound(); }, step));
  {
    const auto lock = fake.lock();
    fake.failing.clear();
  }
  REQUIRE(within(
      30, [&] { return one.bound(); }, step));
  CHECK((one.row().flags & ring::kLinkCarrier) != 0);
  ibv_async_event event{};
  event.event_type = IBV_EVENT_PORT_ERR;
  event.element.port_num = 1;
  {
    const auto lock = fake.lock();
    fake.first.events.push_back(event);
  }
  one.pass();
  CHECK((one.row().flags & ring::kLinkCarrier) == 0);
  const auto told = one.records.of(ring::EventKind::kRdmaPort);
  REQUIRE(told.size() == 1);
  CHECK(told[0].link == 1);
  CHECK((told[0].flags & ring::kFlagCarrier) == 0);
}

TEST_CASE("rdma ports: another GID opens the port anew, and a configuration without it closes it") {
  TwoNics fake;
  Side one(fake, 1, 2);
  const auto step = [&] { one.pass(); };
  REQUIRE(within(
      30, [&] { return one.bound(); }, step));
  {
    const auto lock = fake.lock();
    std::swap(fake.first.gids[2], fake.first.gids[3]);
  }
  ibv_async_event event{};
  event.event_type = IBV_EVENT_GID_CHANGE;
  event.element.port_num = 1;
  {
    const auto lock = fake.lock();
    fake.first.events.push_back(event);
  }
  REQUIRE(within(
      30, [&] { return !one.bound(); }, step));
  REQUIRE(within(
      30, [&] { return one.bound(); }, step));
  one.ports.configure({}, 0);
  CHECK(one.ports.empty());
  const Nanos end = read_clock(CLOCK_MONOTONIC) + 30'000'000'000;
  const auto objects = [&] {
    const auto lock = fake.lock();
    return fake.first.objects;
  };
  while (objects() != 0 && read_clock(CLOCK_MONOTONIC) < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  CHECK(objects() == 0);
}
