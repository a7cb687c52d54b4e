// Lets callers block until some comm may have progressed. Edge-triggered: whoever wakes is expected
// to test all its requests. An event is taken by one thread and meant for any of them, so all
// are woken: one of those who sleep does so on the connections, and wakes the others when it
// leaves.
//
// A connection that is watched costs its sender some 3 % of a core (each packet takes the lock of
// this set), and NCCL only polls: so comms add theirs when somebody waits, and not before.
#pragma once

#include <atomic>
#include <cstdint>

#include "host/fd.h"

namespace fabric::host {

class WaitSet {
 public:
  WaitSet();
  void add(int fd);  // a data connection; closing it takes it out
  void signal();     // something changed that no data connection shows
  // The first call returns at once: whoever tests its requests then has their connections added.
  void wait(int timeout_us);
  // Somebody has waited: connections are to be added.
  [[nodiscard]] bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  // For who posts and waits, without a test between: it is done already. His next wait returns at
  // once; those who sleep go on.
  void nudge() {
    if (wanted()) {
      generation_.fetch_add(1);
    }
  }
  // Until a signal(), or something on a connection that is in.
  void nap(int timeout_us);
  // Grows whenever a caller blocks here; of those who poll it knows nothing.
  [[nodiscard]] std::uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }
  // Changes with every wake-up: a comm that sees a new value looks at all its connections.
  [[nodiscard]] std::uint64_t generation() const {
    return generation_.load(std::memory_order_acquire);
  }

 private:
  bool drain_events();
  void ring();

  Fd epoll_;
  Fd event_;
  std::atomic<std::uint64_t> generation_{1};
  std::atomic<std::uint64_t> sleeps_{0};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> led_{false};        // a thread sleeps on the connections
  std::atomic<std::uint32_t> turn_{0};  // grows when it leaves; the others sleep on this
  std::atomic<std::uint32_t> followers_{0};
};

}  // namespace fabric::host
