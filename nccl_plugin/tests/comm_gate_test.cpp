#include "host/comm_gate.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

using namespace fabric::host;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool calls(CommGate& gate) { return static_cast<bool>(CommGate::CallerGuard(gate)); }
bool visits(CommGate& gate, bool wait = true) {
  return static_cast<bool>(CommGate::ControlGuard(gate, wait));
}

}  // namespace

TEST_CASE("a caller who finds the control thread inside goes away, and is called back") {
  WaitSet waits;
  CommGate gate(waits);
  waits.wait(0);  // what has been signalled so far
  const std::uint64_t before = waits.generation();
  {
    const CommGate::ControlGuard visit(gate);
    REQUIRE(static_cast<bool>(visit));
    CHECK_FALSE(calls(gate));
    CHECK(waits.generation() == before);
  }
  CHECK(waits.generation() != before);
  CHECK(calls(gate));
}

TEST_CASE("who was not turned away is not called") {
  WaitSet waits;
  CommGate gate(waits);
  const std::uint64_t before = waits.generation();
  CHECK(calls(gate));
  CHECK(visits(gate));
  CHECK(visits(gate, false));
  CHECK(waits.generation() == before);
}

TEST_CASE("the control thread waits for the caller, or does not, as it asks") {
  WaitSet waits;
  CommGate gate(waits);
  std::optional<CommGate::CallerGuard> call(std::in_place, gate);
  REQUIRE(static_cast<bool>(*call));
  CHECK_FALSE(visits(gate, false));
  std::atomic<bool> inside{false};
  std::thread control([&] {
    const CommGate::ControlGuard visit(gate);
    inside = static_cast<bool>(visit);
  });
  std::this_thread::sleep_for(milliseconds(20));
  CHECK_FALSE(inside);
  call.reset();
  control.join();
  CHECK(inside);
  CHECK(calls(gate));
}

TEST_CASE("never two inside, and neither is kept out for good") {
  WaitSet waits;
  CommGate gate(waits);
  long guarded = 0;  // plain: what the sanitizer looks at
  long visited = 0;
  std::atomic<bool> over{false};
  long called = 0;
  std::thread caller([&] {
    while (!over) {
      if (const CommGate::CallerGuard call(gate); call) {
        ++guarded;
        ++called;
      } else {
        waits.wait(1'000'000);  // woken when the visit ends
      }
    }
  });
  const auto until = Clock::now() + milliseconds(300);
  while (Clock::now() < until) {
    const CommGate::ControlGuard visit(gate, visited % 2 == 0);
    if (visit) {
      ++guarded;
    }
    visited += visit ? 1 : 0;
  }
  over = true;
  waits.signal();
  caller.join();
  CHECK(called > 0);
  CHECK(visited > 0);
  CHECK(guarded == called + visited);
}
