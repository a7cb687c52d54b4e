// One way, with many messages in flight, over fake NICs that are slow or fail again and again: the
// job goes on, over another queue pair or over TCP.
#include "verbs/tests/stream.h"

using namespace fabric;
using namespace fabric::host::loopback;
using namespace fabric::verbs::test;

TEST_CASE("verbs standstill: a NIC that stops for longer than a path may be silent") {
  for (const std::string name : {"a0", "b0"}) {
    CAPTURE(name);
    Wires wires(1);
    Stream stream(256 << 10);
    Pair pair = pair_of(1);
    REQUIRE(stream.run(pair, 20, [] { return true; }));
    Faults faults(wires, 2, milliseconds(500), milliseconds(100),
                  [&](bool on) { wires.nic(name).stopped = on; });
    CHECK(stream.run(pair, 20, [&] { return faults.over(); }));
  }
}

TEST_CASE("verbs standstill: only the answers of the receiver's NIC are late") {
  Wires wires(1);
  Stream stream(256 << 10);
  Pair pair = pair_of(1);
  REQUIRE(stream.run(pair, 20, [] { return true; }));
  Faults faults(wires, 2, milliseconds(500), milliseconds(100),
                [&](bool on) { wires.nic("b0").holds_sends = on; });
  CHECK(stream.run(pair, 20, [&] { return faults.over(); }));
}

TEST_CASE("verbs standstill: queue pairs that fail again and again") {
  for (const std::string name : {"a0", "b0"}) {
    CAPTURE(name);
    Wires wires(1);
    Stream stream(64 << 10);
    Pair pair = pair_of(1);
    Faults faults(wires, 10, milliseconds(10), milliseconds(90), [&](bool on) {
      for (const auto& [number, queue_pair] : wires.network.pairs) {
        if (on && queue_pair->nic->name() == name && !queue_pair->destroyed &&
            queue_pair->state == IBV_QPS_RTS) {
          wires.network.exceed_retries(*queue_pair);
        }
      }
    });
    CHECK(stream.run(pair, 20, [&] { return faults.over(); }));
  }
}

TEST_CASE("verbs standstill: small packets pass and large ones do not: TCP takes over") {
  Wires wires(1);
  wires.nic("a0").largest = 1024;
  Stream stream(64 << 10);
  Pair pair = pair_of(1);
  CHECK(stream.run(pair, 20, [] { return true; }));
}

TEST_CASE(
    "verbs standstill: a device that never ends destroying a queue pair holds up nothing else") {
  std::atomic<bool> hangs{true};
  std::atomic<int> called{0};
  Wires wires(2);
  wires.network.on_destroy = [&] {
    const auto until = Clock::now() + 2 * kLimit;
    for (++called; hangs && Clock::now() < until;) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  Stream stream(64 << 10);
  Pair pair = pair_of(2);
  REQUIRE(stream.run(pair, 20, [] { return true; }));
  wires.locked([&] {
    for (const auto& [number, queue_pair] : wires.network.pairs) {
      if (queue_pair->nic->name() == "a0" && queue_pair->state == IBV_QPS_RTS) {
        wires.network.exceed_retries(*queue_pair);
      }
    }
  });
  CHECK(stream.run(pair, 200, [&] { return called != 0; }));
  hangs = false;
}
