// Whether this process lacks a descriptor (or the kernel the memory) for a connection that waits
// for one. The control thread finds out again and again while that is so; whoever waits for the
// connection asks. Times are ns of monotonic_ns().
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

namespace fabric::host {

class DescriptorShortage {
 public:
  // The errno of a call that opens one. True: the first of this process that shows a shortage,
  // which is to be logged.
  bool note(int error, std::int64_t now) {
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) {
      return false;
    }
    error_.store(error);
    last_.store(now);
    return !std::exchange(logged_, true);
  }
  // As of the last attempt, of which there are several a second.
  [[nodiscard]] bool lasts(std::int64_t now) const {
    const std::int64_t last = last_.load();
    return last != 0 && now - last < kRecentNs;
  }
  // "no descriptor is free: RLIMIT_NOFILE is 24 (ulimit -n), and each end ..."
  [[nodiscard]] std::string text() const {
    const std::string each = ", and each end of a comm needs one for each of its paths";
    if (error_.load() == ENFILE) {
      return "no descriptor is free on this host (fs.file-max)" + each;
    }
    if (error_.load() == ENOBUFS || error_.load() == ENOMEM) {
      return "the kernel has no memory for another socket";
    }
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return "no descriptor is free: RLIMIT_NOFILE is " + std::to_string(limit.rlim_cur) +
           " (ulimit -n)" + each;
  }

 private:
  static constexpr std::int64_t kRecentNs = 3'000'000'000;
  std::atomic<std::int64_t> last_{0};  // 0: there was none
  std::atomic<int> error_{0};
  bool logged_ = false;  // control thread only
};

}  // namespace fabric::host
