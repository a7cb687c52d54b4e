// The descriptors that this library holds, for the sake of forked children. A fork without exec (a
// DataLoader's worker) copies them all: while the child lives, the kernel goes on accepting and
// acknowledging for a rank that is dead, and no peer notices its death. So a child closes its
// copies before fork() returns there (pthread_atfork).
//
// Whatever the child inherits of comms and contexts is of no use to it: it has their memory and
// none of their threads. fork_depth() tells what is inherited.
#pragma once

#include <atomic>
#include <cstdint>

namespace fabric {

namespace descriptors {
extern std::atomic<std::uint32_t> depth;
}

// Forks between the process that loaded the library and this one. What was made at another depth is
// an ancestor's.
inline std::uint32_t fork_depth() noexcept {
  return descriptors::depth.load(std::memory_order_relaxed);
}

// The same. Notices a child for which no handler ran (clone, _Fork), and runs it. A system call.
std::uint32_t checked_fork_depth() noexcept;

// While it lives no fork happens: opening a descriptor and recording it are one to a child. What it
// guards must neither fork nor close an Fd. A fork waits for 100 ms at most, so that no order of
// locks can stop it for good.
class ForkLock {
 public:
  ForkLock() noexcept;
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

// Records a descriptor: children close it. False: its number is not below 2^20, which is what Linux
// allows a process (fs.nr_open) unless it is set up otherwise; nothing was recorded. Below 0: none.
bool hold_descriptor(int fd) noexcept;
// Whoever calls this closes it, or has given it away.
void let_descriptor_go(int fd) noexcept;

}  // namespace fabric
