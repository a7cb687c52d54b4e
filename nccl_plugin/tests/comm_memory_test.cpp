// What thousands of comms leave behind when they are closed: nothing. Memory as the kernel counts
// it, so without sanitizers.
#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "host/poller.h"
#include "tests/comm_kit.h"
#include "tests/from_environment.h"

using namespace fabric;
using namespace fabric::host;
using namespace fabric::host::loopback;

namespace {

constexpr std::size_t kAtOnce = 50;
constexpr std::int64_t kMostGrowth = 1 << 20;  // bytes

// After whatever is free was given back.
std::int64_t resident() {
  ::malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  std::int64_t whole = 0;
  std::int64_t pages = 0;
  file >> whole >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// Until both ends of all closed comms are forgotten by the control threads.
void settle(const Net& a, const Net& b) {
  const auto until = Clock::now() + milliseconds(20'000);
  while (stats_of(a).send_comms + stats_of(b).recv_comms != 0 && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  REQUIRE(stats_of(a).send_comms + stats_of(b).recv_comms == 0);
}

void open_and_close(Net& a, Net& b, std::size_t count) {
  for (std::size_t done = 0; done < count; done += kAtOnce) {
    std::vector<Ends> comms;
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      comms.push_back(open(a, b));
    }
    REQUIRE(carries(a, b, comms.front(), 20'000, done));
    for (const Ends& ends : comms) {
      close(a, b, ends);
    }
  }
  settle(a, b);
}

}  // namespace

TEST_CASE("8,000 comms made and closed leave no memory behind") {
  const auto count = fabric::testing::from_environment("FABRIC_COMMS", 8'000);
  const auto a = net_of(0, 1);
  const auto b = net_of(1, 1);
  open_and_close(*a, *b, 1'200);  // the caches of the allocator, and 1,024 tombstones
  const std::int64_t before = resident();
  open_and_close(*a, *b, count);
  const std::int64_t grown = resident() - before;
  MESSAGE(count << " comms: " << grown / 1024 << " KiB more than before");
  CHECK(grown < kMostGrowth);
  CHECK(a->finalize() == Result::success);
  CHECK(b->finalize() == Result::success);
}

TEST_CASE("a descriptor's handler goes with the use of its number that it was added for") {
  Poller poller;
  const std::size_t own = poller.handlers();
  const Fd first(::eventfd(0, EFD_CLOEXEC));
  const auto old = poller.add(first.get(), EPOLLIN, [](std::uint32_t) {});
  const auto renewed = poller.add(first.get(), EPOLLIN, [](std::uint32_t) {});
  poller.forget(old);  // the number is another's by now
  CHECK_FALSE(poller.holds(old));
  CHECK(poller.holds(renewed));
  CHECK(poller.handlers() == own + 1);
  poller.forget(renewed);
  CHECK(poller.handlers() == own);
}
