// Tells when addresses or devices of this network namespace changed (rtnetlink; no privilege is
// needed). A job outlives that: a rail may lose its address, get it back, or get another one.
#pragma once

#include "host/fd.h"
#include "host/poller.h"

namespace fabric::host {

class AddressWatch {
 public:
  explicit AddressWatch(Poller& poller);
  // Since the last call. True the first time.
  bool changed();
  // The kernel offers no notification: look by the clock.
  [[nodiscard]] bool blind() const { return !fd_.open(); }

 private:
  Fd fd_;
  bool changed_ = true;
};

}  // namespace fabric::host
