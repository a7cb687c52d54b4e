// Who is inside a comm: its caller or the control thread, never both. One atomic word, no lock on
// the caller's way: a caller who finds the control thread inside goes away at once and says "not
// yet", as NCCL's calls may; the control thread, which has the time, waits. A caller who was turned
// away and sleeps since is woken when the control thread leaves.
#pragma once

#include <atomic>
#include <cstdint>

#include "host/wait_set.h"

namespace fabric::host {

class CommGate {
 public:
  explicit CommGate(WaitSet& waits) : waits_(waits) {}
  CommGate(const CommGate&) = delete;
  CommGate& operator=(const CommGate&) = delete;

  // The caller's time inside. False: the control thread is there.
  class CallerGuard {
   public:
    explicit CallerGuard(CommGate& gate) : gate_(gate), inside_(gate.enter()) {}
    ~CallerGuard() {
      if (inside_) {
        gate_.leave();
      }
    }
    CallerGuard(const CallerGuard&) = delete;
    CallerGuard& operator=(const CallerGuard&) = delete;
    explicit operator bool() const { return inside_; }

   private:
    CommGate& gate_;
    const bool inside_;
  };

  // The control thread's, of which there is one: without `wait` it may find the caller there, too.
  class ControlGuard {
   public:
    explicit ControlGuard(CommGate& gate, bool wait = true)
        : gate_(gate), inside_(wait ? gate.enter_waiting() : gate.try_enter()) {}
    ~ControlGuard() {
      if (inside_) {
        gate_.leave_and_wake();
      }
    }
    ControlGuard(const ControlGuard&) = delete;
    ControlGuard& operator=(const ControlGuard&) = delete;
    explicit operator bool() const { return inside_; }

   private:
    CommGate& gate_;
    const bool inside_;
  };

 private:
  static constexpr std::uint32_t kInside = 1;
  static constexpr std::uint32_t kAwaited = 2;  // the control thread sleeps until it is free
  static constexpr std::uint32_t kTurned = 4;   // a caller was turned away

  bool try_enter() {
    std::uint32_t is = state_.load(std::memory_order_relaxed);
    while ((is & kInside) == 0) {
      if (state_.compare_exchange_weak(is, is | kInside, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  bool enter() {
    // Free again by the time that this is noted: whoever left did not see the note.
    while (!try_enter()) {
      if ((state_.fetch_or(kTurned, std::memory_order_relaxed) & kInside) != 0) {
        return false;
      }
    }
    return true;
  }
  void leave() {
    // Nobody may be waiting for long: to be overtaken by the next call is the exception.
    if ((state_.fetch_and(~kInside, std::memory_order_release) & kAwaited) != 0) {
      state_.notify_one();
    }
  }
  bool enter_waiting() {
    while (!try_enter()) {
      const std::uint32_t was = state_.fetch_or(kAwaited, std::memory_order_relaxed);
      if ((was & kInside) != 0) {
        state_.wait(was | kAwaited, std::memory_order_relaxed);
      }
    }
    return true;
  }
  void leave_and_wake() {
    const std::uint32_t was = state_.exchange(0, std::memory_order_release);
    if ((was & kTurned) != 0) {
      waits_.signal();
    }
  }

  WaitSet& waits_;
  std::atomic<std::uint32_t> state_{0};
};

}  // namespace fabric::host
