// A path that had to become TCP in a busy job is over verbs again once both NICs are there, and no
// byte is wrong on the way.
#include <random>

#include "verbs/tests/stream.h"

using namespace fabric;
using namespace fabric::host::loopback;
using namespace fabric::verbs::test;

namespace {

constexpr std::uint64_t kMuch = 4U << 20U;  // bytes: far more than one message
constexpr milliseconds kGone{300};

// What an RDMA device does that is removed, and added again, while the job goes on: the stream ends
// only when RDMA has carried much over the receiver's device `b`. False: it does not come back.
bool returns(Wires& wires, Pair& pair, Stream& stream, const std::string& removed,
             const std::string& b) {
  if (!stream.run(pair, 20, [&] { return wires.landed_at(b) != 0; })) {
    return false;  // another rail may have carried the first messages alone
  }
  std::atomic<bool> added{false};
  std::thread fault([&] {
    wires.unplug(removed);
    std::this_thread::sleep_for(kGone);
    wires.plug(removed);
    added = true;
  });
  std::optional<std::uint64_t> before;
  const bool intact = stream.run(pair, 20, [&] {
    if (!added) {
      return false;
    }
    before = before.value_or(wires.landed_at(b));
    return wires.landed_at(b) - *before >= kMuch;
  });
  fault.join();
  return intact;
}

}  // namespace

TEST_CASE("verbs return: a device that is removed and added again, beside another rail") {
  for (const std::string removed : {"a0", "b0"}) {
    CAPTURE(removed);
    Wires wires(2);
    Stream stream(256 << 10);
    Pair pair = pair_of(2);
    REQUIRE(connected(*pair.a, 0));
    REQUIRE(connected(*pair.a, 1));
    CHECK(returns(wires, pair, stream, removed, "b0"));
  }
}

TEST_CASE("verbs return: the device of the only rail, in a job that never rests") {
  for (const std::string removed : {"a0", "b0"}) {
    CAPTURE(removed);
    Wires wires(1);
    Stream stream(256 << 10);
    Pair pair = pair_of(1);
    CHECK(returns(wires, pair, stream, removed, "b0"));
  }
}

TEST_CASE("verbs return: small messages, which are copied to memory that the new device knows") {
  for (const std::string removed : {"a0", "b0"}) {
    CAPTURE(removed);
    Wires wires(1);
    Stream stream(4096);
    Pair pair = pair_of(1);
    CHECK(returns(wires, pair, stream, removed, "b0"));
  }
}

// Attempts die at each of their steps, and the stream beside them as well.
TEST_CASE("verbs return: whatever fails on the way, no byte is wrong and the job goes on") {
  Wires wires(1);
  Stream stream(64 << 10);
  Pair pair = pair_of(1);
  std::mt19937 random(1);
  const auto hit = [&](bool on) {
    if (!on) {
      return;
    }
    const std::uint32_t kind = random() % 4;
    if (kind == 0) {
      wires.nic("a0").unplug();
      wires.network.add_nic("a0", address(0, 0));
    } else if (kind == 1) {
      wires.nic("b0").unplug();
      wires.network.add_nic("b0", address(1, 0));
    } else if (kind == 2) {
      kill_connections("127.0." + std::to_string(10 + random() % 2) + ".1");
    } else {
      for (const auto& [number, queue_pair] : wires.network.pairs) {
        if (!queue_pair->destroyed && queue_pair->state == IBV_QPS_RTS && random() % 2 == 0) {
          wires.network.exceed_retries(*queue_pair);
        }
      }
    }
  };
  Faults faults(wires, 4, milliseconds(1), milliseconds(1300), hit);
  CHECK(stream.run(pair, 20, [&] { return faults.over(); }));
}
