#include "host/page_watch.h"

#include <sys/inotify.h>
#include <unistd.h>

namespace fabric::host {

PageWatch::PageWatch(Poller& poller)
    : fd_(Fd::opened([] { return ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC); })) {
  if (!fd_.open()) {
    return;
  }
  poller.add(fd_.get(), EPOLLIN, [this](std::uint32_t) {
    // Any event makes a round of the control thread, and that reads the page.
    std::array<std::byte, 4096> away{};
    while (::read(fd_.get(), away.data(), away.size()) > 0) {
    }
  });
}

void PageWatch::follow(const std::string& path) {
  if (!fd_.open()) {
    return;
  }
  const int now = ::inotify_add_watch(fd_.get(), path.c_str(), IN_MODIFY);
  if (watched_ >= 0 && now != watched_) {
    ::inotify_rm_watch(fd_.get(), watched_);  // fails where the page is gone, and its watch with it
  }
  watched_ = now;
  blind_ = now < 0;
}

}  // namespace fabric::host
