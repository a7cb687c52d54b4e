#include "host/wait_set.h"
#include "host/monotonic.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <ctime>

namespace fabric::host {

namespace {

timespec to_timespec(std::int64_t ns) {
  ns = std::max<std::int64_t>(ns, 0);
  return {ns / 1'000'000'000, ns % 1'000'000'000};
}

}  // namespace

WaitSet::WaitSet()
    : epoll_(Fd::opened([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
      event_(Fd::opened([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
  add(event_.get());
}

void WaitSet::add(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  if (fd == event_.get()) {
    event.events = EPOLLIN | EPOLLET;
  }
  event.data.fd = fd;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  generation_.fetch_add(1);
}

void WaitSet::signal() {
  generation_.fetch_add(1);
  ring();
}

void WaitSet::wait(int timeout_us) {
  if (!wanted() && !wanted_.exchange(true)) {
    signal();  // whoever sleeps already has to have its connections added
    return;
  }
  nap(timeout_us);
}

void WaitSet::nap(int timeout_us) {
  thread_local std::uint64_t seen = 0;
  const std::uint64_t before = generation();
  if (seen != before) {
    seen = before;
    // Take what is there, so that the next call blocks.
    if (drain_events()) {
      seen = generation_.fetch_add(1) + 1;
      if (led_.load()) {
        ring();  // it may have been woken for what is no longer there to be seen
      }
    }
    return;
  }
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  std::int64_t left = std::int64_t{timeout_us} * 1000;
  const std::int64_t end = monotonic_ns() + left;
  while (true) {
    const std::uint32_t turn = turn_.load();
    if (generation() != seen) {
      return;
    }
    if (!led_.exchange(true)) {
      break;
    }
    if (left <= 0) {
      return;
    }
    const timespec timeout = to_timespec(left);
    followers_.fetch_add(1);
    ::syscall(SYS_futex, &turn_, FUTEX_WAIT_PRIVATE, turn, &timeout, nullptr, 0);
    followers_.fetch_sub(1);
    left = end - monotonic_ns();
  }
  // Not before `led_` is set: who drains the events looks at it after it has changed the
  // generation.
  if (generation() == seen) {
    pollfd ready{epoll_.get(), POLLIN, 0};
    const timespec timeout = to_timespec(left);
    if (::ppoll(&ready, 1, &timeout, nullptr) > 0) {
      drain_events();
      seen = generation_.fetch_add(1) + 1;
    }
  }
  led_.store(false);
  turn_.fetch_add(1);
  if (followers_.load() != 0) {  // who comes later finds that `turn_` has changed
    ::syscall(SYS_futex, &turn_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

// Whether there was anything.
bool WaitSet::drain_events() {
  std::array<epoll_event, 64> events{};
  bool any = false;
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    any = any || count > 0;
    if (count < static_cast<int>(events.size())) {
      return any;
    }
  }
}

void WaitSet::ring() {
  const std::uint64_t one = 1;
  // A full counter is as readable as any other, so the result does not matter.
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

}  // namespace fabric::host
