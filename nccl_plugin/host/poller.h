// Events of file descriptors for the control thread. One handler a descriptor; an event of a
// descriptor that was closed and used again meanwhile never reaches the new one's handler.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>

#include "host/fd.h"

namespace fabric::host {

class Poller {
 public:
  using Handler = std::function<void(std::uint32_t events)>;

  Poller()
      : epoll_(Fd::opened([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
        event_(Fd::opened([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
    add(event_.get(), EPOLLIN, [this](std::uint32_t) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
    });
  }

  // False: there was no descriptor for it, and nothing will ever happen.
  [[nodiscard]] bool usable() const { return epoll_.open() && event_.open(); }

  // Which descriptor, and which use of its number.
  struct Watch {
    int fd = -1;
    std::uint32_t generation = 0;
  };

  Watch add(int fd, std::uint32_t events, Handler handler) {
    handlers_[fd] = {++generation_, std::move(handler)};
    epoll_event event{};
    event.events = events;
    event.data.u64 = (std::uint64_t{generation_} << 32U) | static_cast<std::uint32_t>(fd);
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
    }
    return {fd, generation_};
  }

  void remove(int fd) {
    if (handlers_.erase(fd) != 0) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
  }
  // A descriptor that was closed, or may be in another thread, leaves its handler here until the
  // number is used again. The kernel is not asked: the number may be another thread's by now.
  void forget(const Watch& watch) {
    if (holds(watch)) {
      handlers_.erase(watch.fd);
    }
  }
  [[nodiscard]] bool holds(const Watch& watch) const {
    const auto found = handlers_.find(watch.fd);
    return found != handlers_.end() && found->second.generation == watch.generation;
  }
  [[nodiscard]] std::size_t handlers() const { return handlers_.size(); }

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
      const auto found = handlers_.find(static_cast<int>(tag & 0xffffffffU));
      if (found != handlers_.end() && found->second.generation == (tag >> 32U)) {
        const Handler handler = found->second.handler;  // it may replace itself
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
  std::unordered_map<int, Entry> handlers_;
};

}  // namespace fabric::host
