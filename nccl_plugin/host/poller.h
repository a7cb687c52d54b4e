// Events of file descriptors for the control thread. One handler a descriptor; an event of a
// descriptor that was closed and used again meanwhile never reaches the new one's handler.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "host/fd.h"

namespace fabric::host {

class Poller {
 public:
  using Handler = std::function<void(std::uint32_t events)>;

  Poller()
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    add(event_.get(), EPOLLIN, [this](std::uint32_t) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
    });
  }

  void add(int fd, std::uint32_t events, Handler handler) {
    const auto at = static_cast<std::size_t>(fd);
    if (handlers_.size() <= at) {
      handlers_.resize(at + 1);
    }
    handlers_[at] = {++generation_, std::move(handler)};
    epoll_event event{};
    event.events = events;
    event.data.u64 = (std::uint64_t{generation_} << 32U) | at;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
    }
  }

  void remove(int fd) {
    const auto at = static_cast<std::size_t>(fd);
    if (fd >= 0 && at < handlers_.size()) {
      handlers_[at] = {};
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
  }

  void wake() {  // any thread
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }

  // How many events there were; 0: none within that time.
  int run(int timeout_ms) {
    std::array<epoll_event, 64> events{};
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
      const std::size_t at = tag & 0xffffffffU;
      if (at < handlers_.size() && handlers_[at].generation == (tag >> 32U)) {
        const Handler handler = handlers_[at].handler;  // it may replace itself
        handler(events[static_cast<std::size_t>(i)].events);
      }
    }
    return std::max(count, 0);
  }

 private:
  struct Entry {
    std::uint32_t generation = 0;
    Handler handler;
  };
  Fd epoll_;
  Fd event_;
  std::uint32_t generation_ = 0;
  std::vector<Entry> handlers_;
};

}  // namespace fabric::host
