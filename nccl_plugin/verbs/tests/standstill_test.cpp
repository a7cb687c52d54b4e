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
