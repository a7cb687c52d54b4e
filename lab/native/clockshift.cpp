// LD_PRELOAD: shifts CLOCK_REALTIME for the processes of a lab that are to see it jump; the
// machine's own clock, which everything else lives by, is left alone. FABRIC_CLOCKSHIFT names a
// file: 8 bytes of nanoseconds to add, which may change at any time, and 8 bytes that count shifted
// reads. CLOCK_MONOTONIC passes as it is: it does not jump in reality either.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

struct Page {
  std::atomic<std::int64_t> offset_ns;
  std::atomic<std::uint64_t> shifted;
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "shared with another process");

constexpr std::int64_t kSecond = 1'000'000'000;

Page* open_page() {
  const char* path = std::getenv("FABRIC_CLOCKSHIFT");
  if (path == nullptr) return nullptr;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<Page*>(at);
}

Page* page() {
  static Page* const opened = open_page();
  return opened;
}

using Gettime = int (*)(clockid_t, timespec*);

Gettime real() {
  static const auto found = reinterpret_cast<Gettime>(dlsym(RTLD_NEXT, "clock_gettime"));
  return found;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const int result = real()(clock, out);
  if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
  const std::int64_t offset = page() != nullptr ? page()->offset_ns.load() : 0;
  if (offset == 0) return result;
  page()->shifted.fetch_add(1);
  std::int64_t seconds = out->tv_sec + offset / kSecond;
  std::int64_t rest = out->tv_nsec + offset % kSecond;
  if (rest < 0) {
    rest += kSecond;
    --seconds;
  } else if (rest >= kSecond) {
    rest -= kSecond;
    ++seconds;
  }
  out->tv_sec = seconds;
  out->tv_nsec = rest;
  return result;
}

__attribute__((visibility("default"))) int gettimeofday(timeval* out, void* /*zone*/) noexcept {
  timespec now{};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  if (result == 0) *out = {now.tv_sec, now.tv_nsec / 1000};
  return result;
}

__attribute__((visibility("default"))) time_t time(time_t* out) noexcept {
  timespec now{};
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
