// Threads that may wait for what a device destroys.
#include "verbs/reaper.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

using fabric::verbs::Reaper;

TEST_CASE("reaper: several tasks at once, on threads of their own, and all before it ends") {
  constexpr int kTogether = 3;
  constexpr int kMany = 40;  // more than there are threads
  std::atomic<int> together{0};
  std::atomic<int> done{0};
  std::atomic<bool> here{false};
  const auto caller = std::this_thread::get_id();
  {
    Reaper reaper;
    for (int i = 0; i < kTogether; ++i) {
      reaper.run([&] {
        here = here || std::this_thread::get_id() == caller;
        for (++together; together < kTogether;) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        ++done;
      });
    }
    for (int i = 0; i < kMany; ++i) {
      reaper.run([&] { ++done; });
    }
  }
  CHECK(done == kTogether + kMany);
  CHECK(!here);
}
