// iflush over fake NICs: exactly those over which the data landed are flushed.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/comm_kit.h"
#include "verbs/tests/transport_kit.h"

using namespace fabric;
using namespace fabric::host::loopback;
using namespace fabric::verbs::test;

namespace {

constexpr std::size_t kSize = 1 << 20;

// The receiving host's side of a pair with a registered buffer.
struct Flushes {
  Wires wires;
  std::vector<std::byte> bytes = std::vector<std::byte>(kSize);
  Pair pair;
  Region* region = nullptr;

  explicit Flushes(std::size_t rails) : wires(rails), pair(pair_of(rails)) {
    for (std::size_t rail = 0; rail < rails; ++rail) {
      REQUIRE(connected(*pair.a, rail));
    }
    REQUIRE(pair.b->register_memory({bytes.data(), bytes.size()}, &region) == Result::success);
  }
  ~Flushes() { deregister(); }
  Flushes(const Flushes&) = delete;
  Flushes& operator=(const Flushes&) = delete;

  // One message into the buffer.
  bool receive(std::uint64_t seed) {
    const std::vector<std::byte> want = contents(kSize, seed);
    Request* sent = post(*pair.a, pair.send, want);
    const ReceiveSlot slot{bytes.data(), bytes.size(), 0, region};
    Request* received = post(*pair.b, pair.receive, {&slot, 1});
    const Result result = both(sent, received);
    return result == Result::success && bytes == want;
  }
  // All of the buffer, as NCCL does it. Null: it is done.
  Request* iflush(std::size_t size = kSize) {
    const FlushRange range{bytes.data(), size, region};
    Request* made = nullptr;
    REQUIRE(pair.b->iflush(pair.receive, {&range, 1}, &made) == Result::success);
    return made;
  }
  // in_progress: it does not end.
  Result finish(Request* request, milliseconds most = milliseconds(10'000)) {
    const auto until = Clock::now() + most;
    bool done = request == nullptr;
    Result result = Result::success;
    while (!done && result == Result::success && Clock::now() < until) {
      result = pair.b->test(request, &done, nullptr);
      pair.b->wait(500);
    }
    return done || result != Result::success ? result : Result::in_progress;
  }
  void deregister() {
    if (region != nullptr) {
      CHECK(pair.b->deregister_memory(std::exchange(region, nullptr)) == Result::success);
    }
  }
  void close() { CHECK(pair.b->close(std::exchange(pair.receive, nullptr)) == Result::success); }
  template <typename F>
  void change(const std::string& name, F&& of_nic) {
    wires.locked([&] { of_nic(wires.nic(name)); });
  }
  // Does the NIC know the buffer?
  bool registered(const std::string& name) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return wires.locked([&] {
      const auto& all = wires.nic(name).registered;
      return std::any_of(all.begin(), all.end(), [&](const auto& entry) {
        return entry.second.address <= address &&
               address < entry.second.address + entry.second.length;
      });
    });
  }
  std::uint64_t reads(const std::string& name) {
    return wires.locked([&] { return wires.nic(name).reads; });
  }
  std::uint64_t landed(const std::string& name) { return wires.landed_at(name); }
  // Bytes that came over the other rail.
  std::uint64_t beside() { return wires.network.find("b1") == nullptr ? 0 : landed("b1"); }

 private:
  Result both(Request* sent, Request* received) {
    const auto until = Clock::now() + milliseconds(20'000);
    bool there = false;
    bool here = false;
    Result result = Result::success;
    while ((!there || !here) && result == Result::success && Clock::now() < until) {
      result = here ? result : pair.b->test(received, &here, nullptr);
      if (!there && result == Result::success) {
        result = pair.a->test(sent, &there, nullptr);
      }
    }
    return there && here ? result : Result::in_progress;
  }
};

// Receives until a whole message came over verbs, and over the first rail alone.
bool first_rail_only(Flushes& one) {
  const auto until = Clock::now() + milliseconds(20'000);
  for (std::uint64_t seed = 100; Clock::now() < until; ++seed) {
    const std::uint64_t before = one.landed("b0");
    const std::uint64_t beside = one.beside();
    if (!one.receive(seed)) {
      return false;
    }
    if (one.landed("b0") - before >= kSize && one.beside() == beside) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("flush: the NIC over which a receive came, and no other") {
  Flushes one(2);
  REQUIRE(first_rail_only(one));
  Request* const request = one.iflush();
  REQUIRE(request != nullptr);
  CHECK(one.finish(request) == Result::success);
  CHECK(one.reads("b0") == 1);
  CHECK(one.reads("b1") == 0);
  CHECK(one.finish(one.iflush(kSize / 2)) == Result::success);
  CHECK(one.reads("b0") == 2);
  CHECK(one.reads("a0") + one.reads("a1") + one.reads("b1") == 0);
  CHECK(one.receive(2));  // the requests are free again
}

TEST_CASE("flush: all NICs that know a buffer of which no receive is known") {
  Flushes one(2);
  REQUIRE(first_rail_only(one));
  const FlushRange inside{one.bytes.data() + 1, 16, one.region};
  Request* request = nullptr;
  REQUIRE(one.pair.b->iflush(one.pair.receive, {&inside, 1}, &request) == Result::success);
  REQUIRE(request != nullptr);
  CHECK(one.finish(request) == Result::success);
  CHECK(one.reads("b0") == 1);
  CHECK(one.reads("b1") == 1);
  // Memory that no NIC knows, and a region that is none of ours.
  std::vector<std::byte> others(64);
  int none = 0;
  for (Region* region : {static_cast<Region*>(nullptr), reinterpret_cast<Region*>(&none)}) {
    const FlushRange range{others.data(), others.size(), region};
    REQUIRE(one.pair.b->iflush(one.pair.receive, {&range, 1}, &request) == Result::success);
    CHECK(request == nullptr);
  }
}

TEST_CASE("flush: what came over TCP needs none") {
  Flushes one(1);
  REQUIRE(first_rail_only(one));
  one.change("b0", [](verbs::fake::Nic& nic) { nic.cut = true; });
  const auto until = Clock::now() + milliseconds(20'000);
  std::uint64_t before = 0;
  do {  // the path becomes TCP
    before = one.landed("b0");
    REQUIRE(one.receive(before));
  } while (one.landed("b0") != before && Clock::now() < until);
  REQUIRE(one.receive(1));
  CHECK(one.iflush() == nullptr);
  CHECK(one.reads("b0") == 0);
}

TEST_CASE("flush: two comms on two threads share the queue pair of a rail") {
  constexpr int kEach = 50;
  Flushes one(1);
  REQUIRE(first_rail_only(one));
  const Ends other = open(*one.pair.a, *one.pair.b);
  std::array<int, 2> flushed{};
  const auto flush = [&](RecvComm* comm, int& count) {
    const FlushRange range{one.bytes.data(), kSize, one.region};
    for (Request* request = nullptr; count < kEach; ++count) {
      if (one.pair.b->iflush(comm, {&range, 1}, &request) != Result::success ||
          request == nullptr || one.finish(request) != Result::success) {
        return;
      }
    }
  };
  std::thread beside([&] { flush(other.receive, flushed[1]); });
  flush(one.pair.receive, flushed[0]);
  beside.join();
  CHECK(flushed[0] == kEach);
  CHECK(flushed[1] == kEach);
  CHECK(one.reads("b0") == 2 * kEach);
  const int own = one.wires.locked([&] {
    int connected_to_themselves = 0;
    for (const auto& [number, pair] : one.wires.network.pairs) {
      connected_to_themselves += pair->attributes.dest_qp_num == number ? 1 : 0;
    }
    return connected_to_themselves;
  });
  CHECK(own == 1);
  close(*one.pair.a, *one.pair.b, other);
}

TEST_CASE("flush: a READ that fails is repeated once, then it is an error") {
  Flushes one(1);
  REQUIRE(first_rail_only(one));
  one.change("b0", [](verbs::fake::Nic& nic) { nic.failing_reads = 1; });
  CHECK(one.finish(one.iflush()) == Result::success);
  CHECK(one.reads("b0") == 1);
  one.change("b0", [](verbs::fake::Nic& nic) { nic.failing_reads = 2; });
  CHECK(one.finish(one.iflush()) == Result::internal_error);
  CHECK(one.reads("b0") == 1);
  CHECK(one.finish(one.iflush()) == Result::success);
  CHECK(one.reads("b0") == 2);
}

TEST_CASE("flush: a port that is down delays it") {
  Flushes one(1);
  REQUIRE(first_rail_only(one));
  one.change("b0", [](verbs::fake::Nic& nic) { nic.ports[0].state = IBV_PORT_DOWN; });
  Request* const request = one.iflush();
  CHECK(one.finish(request, milliseconds(100)) == Result::in_progress);
  one.change("b0", [](verbs::fake::Nic& nic) { nic.ports[0].state = IBV_PORT_ACTIVE; });
  CHECK(one.finish(request) == Result::success);
  CHECK(one.reads("b0") == 1);
}

TEST_CASE("flush: of a device that is unplugged nothing is in flight any more") {
  for (const bool has_pair : {false, true}) {
    CAPTURE(has_pair);
    Flushes one(2);
    REQUIRE(first_rail_only(one));
    CHECK((!has_pair || one.finish(one.iflush()) == Result::success));
    const std::uint64_t before = one.reads("b0");
    one.change("b0", [](verbs::fake::Nic& nic) { nic.holds_sends = true; });
    Request* const request = one.iflush();
    REQUIRE(request != nullptr);
    CHECK(one.finish(request, milliseconds(50)) == Result::in_progress);
    one.wires.unplug("b0");
    CHECK(one.finish(request) == Result::success);
    CHECK(one.reads("b0") == before);
    CHECK(one.finish(one.iflush()) == Result::success);  // over the rail that has none now
  }
}

TEST_CASE("flush: a comm that is closed with flushes under way lets go of the buffer") {
  Flushes one(1);
  REQUIRE(first_rail_only(one));
  CHECK(one.finish(one.iflush()) == Result::success);
  one.change("b0", [](verbs::fake::Nic& nic) { nic.holds_sends = true; });
  for (int i = 0; i < 3; ++i) {
    REQUIRE(one.iflush() != nullptr);
  }
  one.close();
  one.deregister();
  CHECK(one.registered("b0"));  // the NIC still reads it
  one.change("b0", [](verbs::fake::Nic& nic) { nic.holds_sends = false; });
  const auto until = Clock::now() + milliseconds(10'000);
  while (one.registered("b0") && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  CHECK_FALSE(one.registered("b0"));
  CHECK(one.reads("b0") == 2);  // the others never began
}

TEST_CASE("flush: a net that ends with a flush under way, and one that is finalized") {
  Flushes one(1);
  REQUIRE(first_rail_only(one));
  SUBCASE("under way") {
    CHECK(one.finish(one.iflush()) == Result::success);
    one.change("b0", [](verbs::fake::Nic& nic) { nic.holds_sends = true; });
    CHECK(one.iflush() != nullptr);
  }
  SUBCASE("finalized") {
    CHECK(one.pair.b->finalize() == Result::success);
    CHECK(one.finish(one.iflush()) == Result::internal_error);  // nobody makes the pair
  }
}
