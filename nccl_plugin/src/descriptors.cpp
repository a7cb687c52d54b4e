#include "src/descriptors.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <ctime>

namespace fabric {

namespace descriptors {
constinit std::atomic<std::uint32_t> depth{0};
}

namespace {

constexpr std::size_t kWordBits = 64;
constexpr std::size_t kMost = std::size_t{1} << 20U;
constexpr int kForkTries = 1000;
constexpr timespec kBetweenTries{0, 100'000};

// Bits of descriptors. Zero bytes of the library's data, of which few are ever touched.
constinit std::array<std::atomic<std::uint64_t>, kMost / kWordBits> held{};
constinit std::atomic<std::size_t> words{0};  // of `held`, that were ever used
constinit std::atomic<pid_t> process{0};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<bool> fork_holds{false};
constinit std::atomic<pthread_t> forking{};  // with fork_holds: the thread that took the mutex

void before_fork() {
  // Not for ever: a signal handler may fork in the middle of what the mutex guards.
  for (int i = 0; i < kForkTries; ++i) {
    if (::pthread_mutex_trylock(&mutex) == 0) {
      forking.store(::pthread_self());
      fork_holds.store(true);
      return;
    }
    ::nanosleep(&kBetweenTries, nullptr);
  }
}

void after_fork_in_parent() {
  if (fork_holds.load() && ::pthread_equal(forking.load(), ::pthread_self()) != 0) {
    fork_holds.store(false);
    ::pthread_mutex_unlock(&mutex);
  }
}

// Only what a signal handler may call: the other threads are gone, with whatever they held.
void after_fork_in_child() {
  const int saved = errno;
  mutex = PTHREAD_MUTEX_INITIALIZER;
  fork_holds.store(false);
  const std::size_t used = words.load();
  for (std::size_t word = 0; word < used; ++word) {
    std::uint64_t bits = held[word].exchange(0);
    while (bits != 0) {
      ::close(static_cast<int>(word * kWordBits) + std::countr_zero(bits));
      bits &= bits - 1;
    }
  }
  descriptors::depth.fetch_add(1);
  process.store(::getpid());
  errno = saved;
}

// The library is never unloaded (-z nodelete), so the handlers stay valid.
[[gnu::constructor]] void register_handlers() {
  process.store(::getpid());
  ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

std::uint32_t checked_fork_depth() noexcept {
  if (process.load() != ::getpid()) {
    after_fork_in_child();
  }
  return fork_depth();
}

ForkLock::ForkLock() noexcept { ::pthread_mutex_lock(&mutex); }

ForkLock::~ForkLock() { ::pthread_mutex_unlock(&mutex); }

bool hold_descriptor(int fd) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (fd < 0 || number >= kMost) {
    return fd < 0;
  }
  const std::size_t word = number / kWordBits;
  held[word].fetch_or(std::uint64_t{1} << (number % kWordBits));
  std::size_t used = words.load();
  while (used <= word && !words.compare_exchange_weak(used, word + 1)) {
  }
  return true;
}

void let_descriptor_go(int fd) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (fd >= 0 && number < kMost) {
    held[number / kWordBits].fetch_and(~(std::uint64_t{1} << (number % kWordBits)));
  }
}

}  // namespace fabric
