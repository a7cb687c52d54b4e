// Who is inside a comm: its caller or the control thread, never both. One atomic word, no lock on
// the caller's way: a caller who finds the control thread inside goes away at once and says "not
// yet", as NCCL's calls may; the control thread, which has the time, waits. A caller who was turned
// away and sleeps since is woken when the control thread leaves.
#pragma once

#include <atomic>
#include <cstdint>

#include "host/wait_set.h"

namespace fabric::host {

class Tenure {
 public:
  explicit Tenure(WaitSet& waits) : waits_(waits) {}
  Tenure(const Tenure&) = delete;
  Tenure& operator=(const Tenure&) = delete;

  // The caller's time inside. False: the control thread is there.
  class Call {
   public:
    explicit Call(Tenure& tenure) : tenure_(tenure), inside_(tenure.enter()) {}
    ~Call() {
      if (inside_) {
        tenure_.leave();
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    explicit operator bool() const { return inside_; }

   private:
    Tenure& tenure_;
    const bool inside_;
  };

  // The control thread's, of which there is one: without `wait` it may find the caller there, too.
  class Visit {
   public:
    explicit Visit(Tenure& tenure, bool wait = true)
        : tenure_(tenure), inside_(wait ? tenure.await() : tenure.try_enter()) {}
    ~Visit() {
      if (inside_) {
        tenure_.end_visit();
      }
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    explicit operator bool() const { return inside_; }

   private:
    Tenure& tenure_;
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
  bool await() {
    while (!try_enter()) {
      const std::uint32_t was = state_.fetch_or(kAwaited, std::memory_order_relaxed);
      if ((was & kInside) != 0) {
        state_.wait(was | kAwaited, std::memory_order_relaxed);
      }
    }
    return true;
  }
  void end_visit() {
    const std::uint32_t was = state_.exchange(0, std::memory_order_release);
    if ((was & kTurned) != 0) {
      waits_.signal();
    }
  }

  WaitSet& waits_;
  std::atomic<std::uint32_t> state_{0};
};

}  // namespace fabric::host
