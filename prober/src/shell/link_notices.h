// What rtnetlink tells of links, as a hint that a carrier counter is worth reading now. The kernel
// coalesces link events to about one a second, so it is no more than that.
#pragma once

#include "core/stalls.h"
#include "shell/fd.h"

namespace fabric::prober {

class LinkNotices {
 public:
  // Watched for input by `epoll`. Without rtnetlink no link is ever quiet.
  explicit LinkNotices(int epoll);
  int fd() const { return socket_.get(); }
  // Reads all that is there; whether any link was told of.
  bool drain(Nanos now);
  // Nothing was told for so long that the kernel holds no event of this namespace back.
  bool quiet(Nanos now) const { return socket_ && now - told_ >= kLoud; }

 private:
  static constexpr Nanos kLoud = 10'000'000'000;
  Fd socket_;
  Nanos told_ = 0;
};

}  // namespace fabric::prober
