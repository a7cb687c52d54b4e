// Links over fake NICs: chunks, CTS messages, credits, death and fence of a path.
#include <poll.h>

#include <cerrno>
#include <cstdlib>
#include <set>

#include "core/ack_timeout.h"
#include "verbs/tests/link_world.h"

using namespace fabric;
using namespace fabric::verbs;
using fake::Call;
using test::LinkWorld;

TEST_CASE("verbs link: messages of all sizes arrive whole") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  for (const std::size_t size :
       std::initializer_list<std::size_t>{0, 1, 64, 255, 256, 257, 512, 5000}) {
    world.post(size);
  }
  world.settle();
  CHECK(world.complete());
  CHECK(world.failures == 0);
  CHECK(world.duplicates == 0);
  CHECK(world.out(0).backlog() == 0);
}

TEST_CASE("verbs link: what completes right after arming leaves no descriptor readable") {
  LinkSettings settings = LinkWorld::small();
  settings.events = true;
  LinkWorld world(1, 1, settings);
  REQUIRE(world.dial(0));
  world.network.on_arm = [&world] { world.network.run(); };
  world.post(1000);
  for (int i = 0; i < 100; ++i) {
    world.poll_sender(0);
    world.poll_receiver(0);
  }
  for (const int fd : {world.out(0).descriptor(), world.in(0).descriptor()}) {
    pollfd readable{fd, POLLIN, 0};
    CHECK(::poll(&readable, 1, 0) == 0);  // or no later event would wake who sleeps on it
  }
  world.network.on_arm = nullptr;
  world.settle();
  CHECK(world.complete());
}

TEST_CASE("verbs link: many groups go round in the ring, and credits bound what is under way") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  const std::size_t depth = world.in(0).terms().receive_entries;
  for (int i = 0; i < 700; ++i) {
    world.post(100 + static_cast<std::size_t>(i) % 400);
    if (i % 16 == 15) {
      world.settle(20);
      for (auto& message : world.received) {
        world.receive_core.forget(message.group);
      }
    }
  }
  CHECK(depth == 5);
  world.settle();
  CHECK(world.complete());
  CHECK(world.failures == 0);
}

TEST_CASE("verbs link: a receive of which alone there is news is told in one write") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  world.settle();
  const std::size_t at_rest = world.in(0).backlog();
  world.post(100);
  world.poll_receiver(0);
  CHECK(world.in(0).backlog() == at_rest + kLineSize);  // its line, whose immediate counts it
  world.network.run();
  world.poll_receiver(0);
  world.poll_sender(0);  // sends it
  world.network.run();
  world.post(100);
  world.poll_receiver(0);
  CHECK(world.in(0).backlog() == at_rest + 2 * kLineSize);  // and that the first is whole
  world.settle();
  CHECK(world.complete());
}

TEST_CASE("verbs link: a receiver that does not look is no dead path, and loses nothing") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  world.settle(2);
  for (int i = 0; i < 30; ++i) {
    world.post(256);
  }
  world.settle(2);                  // the CTS messages
  for (int i = 0; i < 1000; ++i) {  // its NIC works on: 5 s
    world.network.run();
    world.now += 5'000'000;
    world.poll_sender(0);
    CHECK(world.out(0).judge(world.now) == core::Liveness::alive);
  }
  CHECK(world.failures == 0);
  world.settle();
  CHECK(world.complete());
}

TEST_CASE("verbs link: a peer's NIC that is silent is found in 60 to 250 ms") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  world.post(256);
  world.settle();
  REQUIRE(world.complete());
  world.post(256);
  world.settle(1);
  std::int64_t dead_after = 0;
  // Nothing moves any more, and the device says nothing of it.
  for (const std::int64_t start = world.now;
       dead_after == 0 && world.now - start < 2'000'000'000;) {
    world.poll_sender(0);
    world.now += 4'000'000;
    if (world.out(0).judge(world.now) == core::Liveness::dead) {
      dead_after = world.now - start;
    }
  }
  CHECK(dead_after >= core::kAckTimeoutNs);
  CHECK(dead_after <= core::kAckTimeoutAloneNs + 10'000'000);
}

TEST_CASE("verbs link: retries exceeded: fence, new queue pair, and all is sent again") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  world.settle(2);
  world.left(0).cut = true;
  for (int i = 0; i < 5; ++i) {
    world.post(600);
  }
  world.settle(5);
  CHECK(world.failures == 1);
  CHECK(!world.complete());
  world.left(0).cut = false;
  world.settle(5);
  REQUIRE(world.down(0));
  REQUIRE(world.dial(0));
  world.settle();
  CHECK(world.complete());
}

TEST_CASE("verbs link: acknowledgements alone are lost: duplicates come, and are dropped") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  world.settle(2);
  world.post(2000);
  world.poll_receiver(0);
  world.network.run();
  world.poll_sender(0);  // reads the CTS and sends
  world.right(0).lose_acknowledgements = true;
  world.network.run();
  world.settle(5);
  CHECK(world.failures == 1);
  world.right(0).lose_acknowledgements = false;
  REQUIRE(world.down(0));
  REQUIRE(world.dial(0));
  world.settle();
  CHECK(world.complete());
}

// libibverbs reads it in sysfs by the name that the device had when it was opened: udev renames it.
TEST_CASE("verbs link: on RoCE a P_Key table that cannot be read has the default one") {
  constexpr unsigned kAlways = 1000;
  LinkWorld world(1);
  world.left(0).fail(fake::Call::query_pkey, ENOENT, kAlways);
  REQUIRE(world.dial(0));
  CHECK(world.out(0).terms().pkey == 0xffff);
  world.post(1000);
  world.settle();
  CHECK(world.complete());
  world.left(0).ports[0].ethernet = false;
  world.fail(0);
  world.settle(5);
  CHECK(!world.dial(0));
  CHECK(world.last_error == "a0:1: its P_Key is not in the table");
}

TEST_CASE("verbs link: a dial reads GID, MTU and P_Key again, and waits for a usable address") {
  LinkWorld world(1);
  auto& rows = world.left(0).ports[0].gids;
  const fake::GidRow address = rows[1];
  rows[1] = {Gid{}, GidType::unknown, ENODATA};
  CHECK(!world.dial(0));
  CHECK(world.last_error == "a0:1: no usable GID (0 link-local)");
  rows.push_back(address);  // back, at another index
  world.left(0).ports[0].mtu = IBV_MTU_4096;
  REQUIRE(world.dial(0));
  CHECK(world.out(0).terms().mtu == IBV_MTU_4096);
  world.post(1000);
  world.settle();
  CHECK(world.complete());
  world.left(0).ports[0].pkeys = {0, 0xffff};
  world.fail(0);
  world.settle(5);
  REQUIRE(world.down(0));
  REQUIRE(world.dial(0));
  world.left(0).ports[0].pkeys = {0x8001};
  world.fail(0);
  world.settle(5);
  CHECK(!world.dial(0));
  CHECK(world.last_error == "a0:1: its P_Key is not in the table");
  world.left(0).ports[0].state = IBV_PORT_DOWN;
  CHECK(!world.dial(0));
  CHECK(world.last_error == "a0:1: the port is not active");
}

TEST_CASE("verbs link: whatever fails while a path is dialled leaves nothing behind") {
  for (const Call call :
       {Call::query_port, Call::query_gid, Call::reg_mr, Call::create_cq, Call::create_qp,
        Call::to_init, Call::to_rtr, Call::to_rts, Call::post_recv, Call::post_send}) {
    CAPTURE(static_cast<int>(call));
    LinkWorld world(1);
    const unsigned objects = world.left(0).objects;
    world.left(0).fail(call, call == Call::query_gid ? EINVAL : ENOMEM, 2);
    CHECK(!world.dial(0));
    CHECK(!world.last_error.empty());
    CHECK(world.left(0).objects == objects);
    world.left(0).fail(call, 0, 0);
    CHECK(world.dial(0));
  }
}

TEST_CASE("verbs link: a device that is gone ends a path at once, and its buffers are free") {
  LinkWorld world(2);
  REQUIRE(world.dial(0));
  REQUIRE(world.dial(1));
  world.settle(2);
  for (int i = 0; i < 6; ++i) {
    world.post(1500);
  }
  world.settle(1);
  world.right(0).unplug();
  world.fail(0);
  world.settle();
  CHECK(world.receivers[0]->gone());
  CHECK(world.down(0));
  CHECK(!world.dial(0));
  CHECK(world.last_error == "b0:1: the device is gone");
  CHECK(world.complete());
}

TEST_CASE("verbs link: a fence is answered only when the NIC has flushed") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  world.settle(2);
  world.right(0).slow_error = true;
  world.post(1000);
  world.poll_receiver(0);
  world.network.run();
  world.poll_sender(0);
  world.fail(0);
  for (int i = 0; i < 10; ++i) {  // the network does nothing meanwhile
    world.poll_sender(0);
    world.poll_receiver(0);
    world.fence(0);
  }
  CHECK(!world.down(0));
  CHECK(world.receive_core.retiring(world.path(0)));
  world.settle();
  CHECK(world.down(0));
  REQUIRE(world.dial(0));
  world.settle();
  CHECK(world.complete());
}

TEST_CASE("verbs link: validation writes are through when all of them are") {
  LinkWorld world(1);
  REQUIRE(world.dial(0));
  world.settle(2);
  world.out(0).start_validation();
  CHECK(world.out(0).room() == 0);
  bool validated = false;
  for (int i = 0; i < 20 && !validated; ++i) {
    host::SendProgress progress;
    world.out(0).poll(world.send_core, progress);
    world.network.run();
    validated = progress.validated;
    CHECK(!progress.dead);
  }
  CHECK(validated);
  CHECK(world.out(0).room() != 0);
}

TEST_CASE("verbs link: full chunks are split where the fabric routes adaptively") {
  LinkSettings settings = LinkWorld::small();
  settings.split_from = 200;
  LinkWorld world(1, 1, settings);
  REQUIRE(world.dial(0));
  for (const std::size_t size : std::initializer_list<std::size_t>{100, 256, 1000, 3000}) {
    world.post(size);
  }
  world.settle();
  CHECK(world.complete());
  CHECK(world.failures == 0);
}

namespace {

// One run: messages over some rails that fail at any moment, in an order that the seed chooses. No
// write may land in a receive that is done.
void play(std::uint32_t seed, std::size_t rails, std::size_t messages) {
  CAPTURE(seed);
  LinkWorld world(rails, seed);
  std::set<std::pair<std::uint64_t, std::uint64_t>> done;  // address, end
  bool late = false;
  world.network.on_write = [&](const fake::LandingWrite& write) {
    for (const auto& [first, end] : done) {
      late = late || (write.address < end && write.address + write.length > first);
    }
  };
  for (std::size_t rail = 0; rail < rails; ++rail) {
    REQUIRE(world.dial(rail));
    world.left(rail).slow_error = world.right(rail).slow_error = true;
  }
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(world.random() % n); };
  std::size_t posted = 0;
  for (std::size_t step = 0; step < 60'000; ++step) {
    world.now += 100'000;
    const std::size_t rail = pick(rails);
    switch (pick(12)) {
      case 0:
        if (posted < messages) {
          world.post(pick(900));
          ++posted;
        }
        break;
      case 1:
      case 2:
        world.poll_sender(rail);
        break;
      case 3:
      case 4:
        world.poll_receiver(rail);
        break;
      case 5:
        world.fence(rail);
        break;
      case 6:
        if (step < 40'000 && pick(8) == 0 && world.live(rail)) {
          world.fail(rail);  // the detector, the steer page, the peer
        }
        break;
      case 7:
        if (step < 40'000 && pick(12) == 0) {
          world.left(rail).cut = !world.left(rail).cut;
        } else if (step >= 40'000) {
          world.left(rail).cut = false;
          world.right(rail).lose_acknowledgements = false;
        }
        break;
      case 8:
        if (step < 40'000 && pick(12) == 0) {
          world.right(rail).lose_acknowledgements = !world.right(rail).lose_acknowledgements;
        }
        break;
      case 9:
        if (world.down(rail)) {
          static_cast<void>(world.dial(rail));
        }
        break;
      default:
        world.network.step(pick);
    }
    for (std::size_t i = 0; i < world.received.size(); ++i) {
      const auto& message = world.received[i];
      if (world.receive_core.done(message.group)) {
        const auto first = reinterpret_cast<std::uintptr_t>(message.bytes.data());
        done.insert({first, first + message.bytes.size()});
      }
    }
    if (posted == messages && world.complete()) {
      break;
    }
  }
  CHECK(world.complete());
  CHECK(!late);
}

}  // namespace

TEST_CASE("verbs link: any schedule of failures on any rail loses and doubles no byte") {
  const char* wanted = std::getenv("FABRIC_VERBS_SCHEDULES");
  const auto schedules = static_cast<std::uint32_t>(wanted == nullptr ? 40 : std::atoi(wanted));
  for (std::uint32_t seed = 1; seed <= schedules; ++seed) {
    play(seed, 1 + seed % 6, 12);
  }
}
