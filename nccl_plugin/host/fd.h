// A file descriptor that closes itself. A forked child has no copy of it (src/descriptors.h), and
// an Fd that it inherits is closed there: the number may be another's by then.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "src/descriptors.h"

namespace fabric::host {

class Fd {
 public:
  Fd() = default;
  // Of what `call` opens, or nothing with its errno. To a fork that is one step.
  template <typename Call>
  static Fd opened(Call&& call) {
    const ForkLock lock;
    return Fd(call(), 0);
  }
  // Of one that is open. A fork just before this leaves the child its copy.
  explicit Fd(int fd) : Fd(fd, 0) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), depth_(other.depth_) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
      depth_ = other.depth_;
    }
    return *this;
  }
  ~Fd() { close(); }
  [[nodiscard]] int get() const { return depth_ == fork_depth() ? fd_ : -1; }
  [[nodiscard]] bool open() const { return get() >= 0; }
  void reset() { close(); }
  void reset(int fd) { *this = Fd(fd); }

 private:
  Fd(int fd, int) : fd_(fd), depth_(fork_depth()) {
    if (!hold_descriptor(fd_)) {
      ::close(std::exchange(fd_, -1));
      errno = EMFILE;
    }
  }
  void close() {
    if (get() >= 0) {
      const ForkLock lock;
      let_descriptor_go(fd_);
      ::close(fd_);
    }
    fd_ = -1;
  }

  int fd_ = -1;
  std::uint32_t depth_ = 0;
};

}  // namespace fabric::host
