#include "host/tenure.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

using namespace fabric::host;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool calls(Tenure& tenure) { return static_cast<bool>(Tenure::Call(tenure)); }
bool visits(Tenure& tenure, bool wait = true) {
  return static_cast<bool>(Tenure::Visit(tenure, wait));
}

}  // namespace

TEST_CASE("a caller who finds the control thread inside goes away, and is called back") {
  WaitSet waits;
  Tenure tenure(waits);
  waits.wait(0);  // what has been signalled so far
  const std::uint64_t before = waits.generation();
  {
    const Tenure::Visit visit(tenure);
    REQUIRE(static_cast<bool>(visit));
    CHECK_FALSE(calls(tenure));
    CHECK(waits.generation() == before);
  }
  CHECK(waits.generation() != before);
  CHECK(calls(tenure));
}

TEST_CASE("who was not turned away is not called") {
  WaitSet waits;
  Tenure tenure(waits);
  const std::uint64_t before = waits.generation();
  CHECK(calls(tenure));
  CHECK(visits(tenure));
  CHECK(visits(tenure, false));
  CHECK(waits.generation() == before);
}

TEST_CASE("the control thread waits for the caller, or does not, as it asks") {
  WaitSet waits;
  Tenure tenure(waits);
  std::optional<Tenure::Call> call(std::in_place, tenure);
  REQUIRE(static_cast<bool>(*call));
  CHECK_FALSE(visits(tenure, false));
  std::atomic<bool> inside{false};
  std::thread control([&] {
    const Tenure::Visit visit(tenure);
    inside = static_cast<bool>(visit);
  });
  std::this_thread::sleep_for(milliseconds(20));
  CHECK_FALSE(inside);
  call.reset();
  control.join();
  CHECK(inside);
  CHECK(calls(tenure));
}

TEST_CASE("never two inside, and neither is kept out for good") {
  WaitSet waits;
  Tenure tenure(waits);
  long guarded = 0;  // plain: what the sanitizer looks at
  long visited = 0;
  std::atomic<bool> over{false};
  long called = 0;
  std::thread caller([&] {
    while (!over) {
      if (const Tenure::Call call(tenure); call) {
        ++guarded;
        ++called;
      } else {
        waits.wait(1'000'000);  // woken when the visit ends
      }
    }
  });
  const auto until = Clock::now() + milliseconds(300);
  while (Clock::now() < until) {
    const Tenure::Visit visit(tenure, visited % 2 == 0);
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
