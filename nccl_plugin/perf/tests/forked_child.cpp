// LD_PRELOAD for one rank of fabric-perf: once the file FABRIC_FORK_WHEN is there it forks a child,
// which lives on as a loader's worker that hangs in I/O, and is killed. The child's pid goes to the
// file FABRIC_FORK_PID.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

constexpr unsigned kLifeS = 300;
constexpr unsigned kLookUs = 10'000;

[[noreturn]] void live_on() {
  for (const int fd : {0, 1, 2}) {
    ::close(fd);  // whoever reads the rank's output waits for its end
  }
  ::setsid();  // it outlives whoever ends the rank's group
  ::alarm(kLifeS);
  while (true) {
    ::pause();
  }
}

[[gnu::constructor]] void begin() {
  const char* when = std::getenv("FABRIC_FORK_WHEN");
  const char* path = std::getenv("FABRIC_FORK_PID");
  if (when == nullptr || path == nullptr) {
    return;
  }
  std::thread([when, path] {
    while (::access(when, F_OK) != 0) {
      ::usleep(kLookUs);
    }
    const pid_t child = ::fork();
    if (child == 0) {
      live_on();
    }
    if (std::FILE* file = std::fopen(path, "we")) {
      std::fprintf(file, "%d", child);
      std::fclose(file);
    }
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

}  // namespace
