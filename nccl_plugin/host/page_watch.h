// Tells when the daemon wrote the steer page (inotify): its weights apply at once, not at the next
// tick.
#pragma once

#include <string>

#include "host/fd.h"
#include "host/poller.h"

namespace fabric::host {

class PageWatch {
 public:
  explicit PageWatch(Poller& poller);
  // The page was opened: it, or another one in its place, is watched from now on.
  void follow(const std::string& path);
  // No event will tell: look by the clock.
  [[nodiscard]] bool blind() const { return blind_; }

 private:
  Fd fd_;
  int watched_ = -1;
  bool blind_ = true;
};

}  // namespace fabric::host
