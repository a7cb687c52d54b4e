#include "host/wait_set.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace fabric::host;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kTimeoutUs = 20'000'000;

// A connection: what is written to one end can be read at the other, which is watched.
struct Wire {
  Fd near;
  Fd far;

  explicit Wire(WaitSet& waits) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
    near = Fd(ends[0]);
    far = Fd(ends[1]);
    waits.add(near.get());
  }
  bool read() const {
    char byte = 0;
    return ::recv(near.get(), &byte, 1, MSG_DONTWAIT) == 1;
  }
  void write() const { REQUIRE(::send(far.get(), "x", 1, MSG_NOSIGNAL) == 1); }
};

}  // namespace

TEST_CASE("threads that wait for different connections take no wake-up from each other") {
  constexpr int kThreads = 3;
  constexpr int kRounds = 1'500;
  WaitSet waits;
  waits.wait(0);
  std::vector<Wire> wires;
  for (int i = 0; i < kThreads; ++i) {
    wires.emplace_back(waits);
  }
  std::array<std::atomic<int>, kThreads> got{};
  std::atomic<int> late{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      while (got[i] < kRounds) {
        if (wires[i].read()) {
          ++got[i];
          continue;
        }
        const auto start = Clock::now();
        waits.wait(kTimeoutUs);
        if (Clock::now() - start > seconds(10)) {
          ++late;
          return;
        }
      }
      // Those who go on are not held up by who has gone.
    });
  }
  for (int round = 0; round < kRounds && late == 0; ++round) {
    for (const Wire& wire : wires) {
      wire.write();
    }
    // Mostly all of them sleep by the next one; now and then they do not.
    for (std::size_t i = 0; i < kThreads; ++i) {
      while (got[i] <= round && late == 0 && round % 8 != 7) {
        std::this_thread::yield();
      }
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(late == 0);
  for (const auto& count : got) {
    CHECK(count == kRounds);
  }
}

TEST_CASE("a signal wakes all who sleep") {
  WaitSet waits;
  waits.wait(0);
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      waits.wait(0);  // what has been signalled so far
      const auto start = Clock::now();
      while (Clock::now() - start < milliseconds(1)) {
        waits.wait(1);
      }
      const std::uint64_t before = waits.generation();
      while (waits.generation() == before && Clock::now() - start < seconds(20)) {
        waits.wait(kTimeoutUs);
      }
      woken += Clock::now() - start < seconds(10) ? 1 : 0;
    });
  }
  std::this_thread::sleep_for(milliseconds(100));
  waits.signal();
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(woken == 4);
}

TEST_CASE("a wait ends when its time is over, whoever else sleeps") {
  WaitSet waits;
  waits.wait(0);
  std::atomic<bool> over{false};
  std::thread longer([&] {
    while (!over) {
      waits.wait(kTimeoutUs);
    }
  });
  std::this_thread::sleep_for(milliseconds(20));
  waits.wait(0);
  const auto start = Clock::now();
  waits.wait(5'000);
  waits.wait(5'000);
  CHECK(Clock::now() - start >= milliseconds(4));
  CHECK(Clock::now() - start < seconds(10));
  over = true;
  waits.signal();
  longer.join();
}
