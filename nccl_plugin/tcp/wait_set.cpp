#include "tcp/wait_set.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <ctime>

namespace fabric::tcp {

WaitSet::WaitSet()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
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
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

void WaitSet::signal() {
  const std::uint64_t one = 1;
  generation_.fetch_add(1, std::memory_order_acq_rel);
  // A full counter is as readable as any other, so the result does not matter.
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

void WaitSet::wait(int timeout_us) {
  if (!wanted() && !wanted_.exchange(true)) {
    generation_.fetch_add(1, std::memory_order_acq_rel);
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
    std::array<epoll_event, 64> events{};
    if (::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0) > 0) {
      seen = generation_.fetch_add(1, std::memory_order_acq_rel) + 1;
    }
    return;
  }
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  pollfd ready{epoll_.get(), POLLIN, 0};
  const timespec timeout{timeout_us / 1'000'000, (timeout_us % 1'000'000) * 1000L};
  if (::ppoll(&ready, 1, &timeout, nullptr) <= 0) {
    return;
  }
  std::array<epoll_event, 64> events{};
  while (::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0) ==
         static_cast<int>(events.size())) {
  }
  seen = generation_.fetch_add(1, std::memory_order_acq_rel) + 1;
}

}  // namespace fabric::tcp
